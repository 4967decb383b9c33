"""DC-PFL under partial participation against a plain NumPy replay: one client, one layer and one table at a time."""

from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fljax.algorithms.dcpfl import dcpfl
from fljax.data.synthetic import linear_groups
from fljax.models import mlp
from fljax.rounds.cohort import sample_cohort
from fljax.run.one_round import split_key
from fljax.types import Work
from tests import oracle
from tests.algorithms.round_by_round import simulate
from tests.slow import slow

N, ROUNDS, DROPOUT = 8, 26, 0.2
LR, STEP, ALPHA, LOW, WARMUP, PAUSE, WINDOW, N_AFTER, EPOCHS = 0.2, 0.3, 3, 0.8, 4, 2, 2, 1, 3
LAYERS = ("fc1", "fc2")


def min_max_scaled(arrays):
    numbers = np.concatenate([np.ravel(array) for array in arrays])
    width = numbers.max() - numbers.min()
    return (numbers - numbers.min()) / width if width else np.zeros_like(numbers)


def distance_of_scaled(a, b, layers):
    a, b = (min_max_scaled([leaf for name in layers for leaf in w[name].values()]) for w in (a, b))
    return np.abs(a - b).mean()


def canonical(label):
    """Groups numbered by their lowest member."""
    new_numbers = {}
    return [new_numbers.setdefault(k, len(new_numbers)) for k in label]


def mean(models):
    return oracle.average(models, [1.0] * len(models))


class Replay:
    """The server's tables and the clients' models."""

    def __init__(self, start, data):
        self.data, self.models, self.seen = data, [start] * N, [0] * N
        self.label, self.steps, self.next = [0] * N, 0, None
        self.theta = [start] * N
        self.averaged, self.interval = np.zeros((N, 2), int), np.ones((N, 2), int)
        self.total, self.met, self.merges = np.zeros((N, N)), np.zeros((N, N)), None
        self.losses, self.radii, self.resting = [], [], 0
        self.records = []

    def local(self, w, i):
        return oracle.local_sgd(w, [self.data[i]] * EPOCHS, LR)

    def download(self, i):
        k = self.label[i]
        averaged_since = {name for layer, name in enumerate(LAYERS) if self.averaged[k, layer] >= self.seen[i]}
        return {
            name: (self.theta[k] if name in averaged_since else self.models[i])[name] for name in LAYERS
        }, averaged_since

    def inherited(self, label):
        """For each group of ``label`` the group that its lowest member comes from."""
        return {k: self.label[label.index(k)] for k in set(label)}

    def in_structure(self, models, label, active):
        trained = {i: self.local(models[label[i]], i) for i in active}
        return trained, np.mean([oracle.training_loss(trained[i], *self.data[i]) for i in active])

    def means_of(self, label, trained):
        """M1: means of the models sent in this round by the groups of ``label``; a group of nobody has its parent's."""
        origin = self.inherited(label)
        sent = {k: [w for i, w in trained.items() if label[i] == k] for k in set(label)}
        return {k: mean(models) if models else self.theta[origin[k]] for k, models in sent.items()}

    def round(self, t, active):
        was_trial, adopted, downlink = self.next is not None, False, {}
        sizes = {name: sum(leaf.size for leaf in self.models[0][name].values()) for name in LAYERS}
        members = {i: self.label.count(self.label[i]) for i in active}
        is_split = {i: was_trial and self.next[0].count(self.next[0][i]) < members[i] for i in active}
        for i in active:
            downlink[i] = (
                sum(sizes.values()) * (1 + is_split[i]) if was_trial else sum(sizes[n] for n in self.download(i)[1])
            )
        if was_trial:
            (present, loss), (split, split_loss) = (
                self.in_structure(models, label, active)
                for models, label in ((self.theta, self.label), (self.next_theta, self.next[0]))
            )
            adopted = split_loss < loss
            trained = split if adopted else present
        else:
            starts = {i: self.download(i)[0] for i in active}
            start_loss = np.mean([oracle.training_loss(starts[i], *self.data[i]) for i in active])
            trained = {i: self.local(starts[i], i) for i in active}
        label, (self.next, on_trial) = self.label, (None, self.next)
        if adopted:
            label, self.steps = on_trial
        if t < WARMUP:
            self.measure(trained, active)
        if t == WARMUP - 1:
            self.build()
        if was_trial:
            self.losses, self.radii, self.resting = [], [], max(self.resting - 1, 0) if adopted else PAUSE
        else:
            self.watch(start_loss, t)
        if t >= WARMUP and self.ended():
            self.next = self.lower(label)
        due = self.average(t, trained, label, full=t < WARMUP or t % ALPHA == 0 or was_trial or self.next is not None)
        if self.next is not None:
            self.next_theta = self.means_of(self.next[0], trained)
        uplink = {
            i: (sum(sizes[n] for layer, n in enumerate(LAYERS) if due[label[i], layer] or was_trial)) * (members[i] > 1)
            + 1
            + is_split[i]
            for i in active
        }
        for i in active:
            self.models[i], self.seen[i] = trained[i], t + 1
        self.records.append(
            SimpleNamespace(
                trial=was_trial,
                adopted=adopted,
                label=label,
                up=uplink,
                down={i: downlink[i] * (members[i] > 1) for i in active},
            )
        )

    def measure(self, trained, active):
        for i in active:
            for j in active:
                self.met[i, j] += 1
                self.total[i, j] += distance_of_scaled(trained[i], trained[j], LAYERS)

    def build(self):
        has_met = (self.met > 0) & ~np.eye(N, dtype=bool)
        discrepancy = self.total / np.maximum(self.met, 1)
        discrepancy = np.where(has_met, discrepancy, discrepancy[has_met].mean())
        np.fill_diagonal(discrepancy, 0)
        self.merges = linkage(squareform(discrepancy, checks=False), "average")

    def watch(self, loss, t):
        """l_w, its two differences and the radius, for the rounds from T_start on."""
        if self.resting:
            self.resting -= 1
            return
        self.losses.append(loss)
        radius = 0.0
        if len(self.losses) >= WINDOW + 2 and t >= WARMUP:
            smoothed, smoothed_1, smoothed_2 = (
                np.mean(self.losses[len(self.losses) - n_back - WINDOW :][:WINDOW]) for n_back in (0, 1, 2)
            )
            difference, second_difference = smoothed - smoothed_1, (smoothed - smoothed_1) - (smoothed_1 - smoothed_2)
            radius = (1 + difference**2) ** 1.5 / second_difference if second_difference > 1e-12 else np.inf
        self.radii.append(radius)

    def ended(self):
        *_, radius, later = [0.0, 0.0, *self.radii]
        return 0 < radius < later and np.isfinite(radius)

    def lower(self, label):
        steps = self.steps
        while True:
            steps += 1
            threshold = max(1 - steps * STEP, 0) if 1 - steps * STEP >= STEP / 2 else 0
            next_label = canonical(fcluster(self.merges, threshold * self.merges[:, 2].max(), "distance").tolist())
            if next_label != label:
                return next_label, steps
            if threshold == 0:
                return None

    def average(self, t, trained, label, full):
        origin = self.inherited(label)
        tables = [[table[origin.get(k, k)] for k in range(N)] for table in (self.theta, self.averaged, self.interval)]
        self.theta, self.averaged, self.interval, self.label = (
            tables[0],
            np.array(tables[1]),
            np.array(tables[2]),
            label,
        )
        due = full | (t % self.interval == 0)
        for k in set(label):
            sent = [w for i, w in trained.items() if label[i] == k]
            if not sent:
                continue
            group_mean = mean(sent)
            self.theta[k] = {
                name: (group_mean if due[k, layer] else self.theta[k])[name] for layer, name in enumerate(LAYERS)
            }
            self.averaged[k] = np.where(due[k], t + 1, self.averaged[k])
            if full:
                discrepancy = np.array(
                    [np.mean([distance_of_scaled(w, self.theta[k], (name,)) for w in sent]) for name in LAYERS]
                )
                self.interval[k] = np.where(
                    (discrepancy < LOW * discrepancy.mean()) | (discrepancy.mean() < 1e-6), ALPHA, 1
                )
        return due


def replayed(start, federation, cohorts):
    data = federation.train
    rows = [np.asarray(data.index)[i, : np.asarray(data.size)[i]] for i in range(N)]
    pool_x, pool_y = np.asarray(data.pool.x, np.float64), np.asarray(data.pool.y)
    replay = Replay(start, [(pool_x[r], pool_y[r]) for r in rows])
    for t, cohort in enumerate(cohorts):
        ids = np.asarray(cohort.ids).tolist()
        replay.round(t, [i for i, is_active in zip(ids, np.asarray(cohort.active), strict=True) if is_active])
    return replay


@pytest.mark.parametrize("seed", [1, *slow(4)])
def test_under_partial_participation_it_equals_a_replay_of_its_tables(seed):
    federation, model = (
        linear_groups(N, 3, examples=32, ragged=0.3, seed=seed),
        mlp(input_shape=(4, 4, 1), hidden=(6,), n_classes=4),
    )
    key = jax.random.key(seed)
    algorithm = dcpfl(model, Work(EPOCHS, 64), trial_loss="train", period_end="formula", window=WINDOW, n_after=N_AFTER)
    hyper = dcpfl.Hyper(lr=LR, momentum=None, step=STEP, alpha=ALPHA, low=LOW, warmup=WARMUP, pause=PAUSE)
    state, metrics = jax.device_get(
        simulate(algorithm, hyper, federation, key, ROUNDS, participation=0.75, dropout=DROPOUT)
    )
    keys = split_key(key)
    drawn = jax.jit(lambda t: sample_cohort(keys.cohort, t, federation, 6, DROPOUT))
    cohorts = [drawn(np.int32(t)) for t in range(ROUNDS)]
    start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jax.jit(model.init)(keys.init))
    replay = replayed(start, federation, cohorts)
    for t, record in enumerate(replay.records):
        assert (record.trial, record.adopted) == (metrics["trial"][t], metrics["adopted"][t]), t
        assert metrics["n_clusters"][t] == max(record.label) + 1
        is_lower = metrics["trial_loss_split"][t] < metrics["trial_loss_present"][t]
        assert record.adopted == (record.trial and is_lower)
        position = {int(i): p for p, i in enumerate(metrics["ids"][t])}
        for i in record.up:
            counters = [metrics[name][t][position[i]] for name in ("label", "uplink", "downlink")]
            assert counters == [record.label[i], record.up[i], record.down[i]], (t, i)
    trials = [record.adopted for record in replay.records if record.trial]
    assert {True, False} <= set(trials)  # the premise: splits that were adopted and one that was not
    table, n_groups = state.server.table, max(replay.label) + 1
    np.testing.assert_array_equal(state.server.groups.label, replay.label)
    np.testing.assert_array_equal(state.clients.seen, replay.seen)
    np.testing.assert_array_equal(table.averaged[:n_groups], replay.averaged[:n_groups])
    np.testing.assert_array_equal(table.interval[:n_groups], replay.interval[:n_groups])
    assert len(np.unique(table.interval[:n_groups])) == 2  # some layers wait
    np.testing.assert_allclose(state.server.groups.discrepancy, replay.total, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(state.server.groups.n_met, replay.met)
    # Twenty-six rounds of float32 against float64.
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *replay.models)
    chex.assert_trees_all_close(state.clients.model, stacked, rtol=1e-3, atol=1e-4)
    groups = jax.tree.map(lambda *leaves: np.stack(leaves[:n_groups]), *replay.theta)
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[:n_groups], table.theta), groups, rtol=1e-3, atol=1e-4)
