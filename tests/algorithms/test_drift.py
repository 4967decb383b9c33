"""Methods against client drift: in NumPy, step by step, and on quadratics, where FedAvg stops beside the optimum."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import rounds, tree
from fljax.algorithms.fedadmm import fedadmm
from fljax.algorithms.feddyn import feddyn
from fljax.algorithms.fednova import fednova, step_mass
from fljax.algorithms.scaffold import scaffold
from fljax.client.steps import n_steps
from fljax.data.synthetic import linear_groups
from fljax.rounds.cohort import sample_cohort
from fljax.run.one_round import as_traced
from fljax.types import ClientData, Examples, Federation, Model, Work
from tests import oracle
from tests.algorithms.round_by_round import drawn_cohort, simulate
from tests.algorithms.test_oracles import (  # noqa: F401
    DROPOUT,
    LR,
    PLACES,
    WORK,
    Reference,
    assert_models,
    reference,
    run,
    without_a_class,
)
from tests.oracle import rows_of
from tests.slow import slow, slow_rows

DIMENSION = 3


def quadratic() -> Model:
    """Linear regression by least squares: ``F_i(w) = mean |x w - y|^2 / 2``."""

    def init(key):
        return {"fc": {"w": jnp.zeros(DIMENSION)}}

    def apply(params, x, key):
        return (x.reshape(x.shape[0], -1) @ params["fc"]["w"])[:, None], params

    return Model(init, apply, ("fc",), loss=lambda logits, y: (logits[:, 0] - y.astype(jnp.float32)) ** 2 / 2)


class Quadratics(NamedTuple):
    """Clients of unequal sizes, curvatures and optima, and where the mean of their losses is least."""

    federation: Federation
    optimum: np.ndarray


@pytest.fixture(scope="module")
def quadratics() -> Quadratics:
    rng, sizes = np.random.default_rng(0), (4, 8, 12, 24)
    x = [rng.normal(size=(n, DIMENSION)) * rng.uniform(0.5, 1.5, DIMENSION) for n in sizes]
    y = [np.round(3 * rng.normal(size=n) + 4 * rng.normal()).astype(int) for n in sizes]
    first_rows = np.cumsum((0, *sizes[:-1]))
    index = np.stack([np.minimum(b + np.arange(24), 47) for b in first_rows])
    pool = Examples(jnp.asarray(np.concatenate(x), jnp.float32)[:, None, :, None], jnp.asarray(np.concatenate(y)))
    data = ClientData(pool, jnp.asarray(index), jnp.asarray(sizes))
    curvature = sum(a.T @ a / len(a) for a in x)
    linear_term = sum(a.T @ b / len(b) for a, b in zip(x, y, strict=True))
    return Quadratics(Federation(data, None, data, None, None), np.linalg.solve(curvature, linear_term))


def error(algorithm, hyper, quadratics, key, n_rounds, participation=1.0):
    """How far the server's model ends from the optimum."""
    options = {"participation": participation, "evaluate_every": n_rounds}
    state, _ = simulate(algorithm, hyper, quadratics.federation, key, n_rounds, **options)
    shared = getattr(state.server, "shared", state.server)
    return float(np.linalg.norm(np.asarray(shared["fc"]["w"]) - quadratics.optimum))


FULL_BATCHES = Work(8, 24)
"""Eight full-batch steps a round: what moves a fixed point then is drift alone."""


@pytest.mark.slow
@pytest.mark.parametrize("participation", [0.5, *slow(1.0)])
@pytest.mark.parametrize(
    ("make", "numbers"), [(scaffold, {}), *slow_rows((feddyn, {"alpha": 0.5}), (fedadmm, {"rho": 0.5}))]
)
def test_drift_is_taken_out_on_quadratics(key, quadratics, make, numbers, participation):
    error_of_fedavg = error(
        fljax.fedavg(quadratic(), FULL_BATCHES, weighting="uniform"), fljax.fedavg.Hyper(lr=0.1), quadratics, key, 300
    )
    algorithm, hyper = make(quadratic(), FULL_BATCHES), fljax.ALGORITHMS[make.name].Hyper(lr=0.1, **numbers)
    assert error_of_fedavg > 0.1
    assert error(algorithm, hyper, quadratics, key, 300, participation) < 1e-3


@pytest.mark.slow
def test_scaffold_of_unequal_steps_finds_the_optimum_too(key, quadratics):
    """1, 2, 3 and 6 minibatch steps: noise is left, the pull towards the client of most steps is not."""
    work, lr = Work(1, 4), 0.02
    sizes = quadratics.federation.train.size
    np.testing.assert_array_equal(n_steps(sizes, work), [1, 2, 3, 6])
    error_of_fedavg = error(
        fljax.fedavg(quadratic(), work, weighting="uniform"), fljax.fedavg.Hyper(lr=lr), quadratics, key, 500
    )
    error_of_scaffold = error(scaffold(quadratic(), work), scaffold.Hyper(lr=lr), quadratics, key, 500)
    assert error_of_scaffold < 0.3 * error_of_fedavg


@pytest.mark.slow
def test_scaffold_of_equal_steps_with_everyone_in_numpy(key, quadratics):
    """Option II of the paper's algorithm, line by line: eight full-batch steps of every client, three rounds."""
    data, lr, steps = quadratics.federation.train, 0.1, FULL_BATCHES.epochs
    x, y = np.asarray(data.pool.x, np.float64).reshape(48, DIMENSION), np.asarray(data.pool.y, np.float64)
    rows = [np.asarray(index[: int(size)]) for index, size in zip(data.index, data.size, strict=True)]
    theta, c, controls = np.zeros(DIMENSION), np.zeros(DIMENSION), np.zeros((4, DIMENSION))
    for _ in range(3):
        sent, new_controls = np.zeros_like(controls), np.zeros_like(controls)
        for i, r in enumerate(rows):
            w = theta
            for _ in range(steps):
                w = w - lr * (x[r].T @ (x[r] @ w - y[r]) / len(r) - controls[i] + c)
            sent[i], new_controls[i] = w, controls[i] - c + (theta - w) / (steps * lr)
        theta, c, controls = sent.mean(0), c + (new_controls - controls).mean(0), new_controls
    algorithm = scaffold(quadratic(), FULL_BATCHES)
    state, _ = simulate(algorithm, scaffold.Hyper(lr=lr), quadratics.federation, key, 3, evaluate_every=3)
    np.testing.assert_allclose(state.server.shared["fc"]["w"], theta, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.server.control["fc"]["w"], c, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.clients["fc"]["w"], controls, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("left_out", "drop_last"), [*slow_rows(([1], False)), ([0, 1, 2], True)])
def test_scaffold_leaves_out_clients_without_a_batch(key, quadratics, left_out, drop_last):
    """In the first round, where all controls are 0 and clients take plain steps: those without examples or a batch."""
    federation = quadratics.federation
    size = federation.train.size.at[1].set(0)
    state, _ = simulate(
        scaffold(quadratic(), FULL_BATCHES._replace(drop_last=drop_last)),
        scaffold.Hyper(lr=0.1),
        federation._replace(train=federation.train._replace(size=size)),
        key,
        1,
    )
    x, y = (np.asarray(part, np.float64) for part in federation.train.pool)
    sent, senders = [], [i for i in range(4) if i not in left_out]
    for i in senders:
        rows, w = np.asarray(federation.train.index[i, : size[i]]), np.zeros(DIMENSION)
        for _ in range(FULL_BATCHES.epochs):
            w = w - 0.1 * x[rows].reshape(-1, DIMENSION).T @ (x[rows].reshape(-1, DIMENSION) @ w - y[rows]) / len(rows)
        sent.append(w)
    expected = -np.array(sent) / (FULL_BATCHES.epochs * 0.1)
    controls = np.asarray(state.clients["fc"]["w"])
    np.testing.assert_array_equal(controls[left_out], 0)
    np.testing.assert_allclose(controls[senders], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.server.shared["fc"]["w"], np.mean(sent, axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.server.control["fc"]["w"], expected.sum(axis=0) / 4, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.05, 0.5])
def test_scaffold_does_not_diverge_at_the_papers_settings(key, lr):
    """Logistic regression of clients that have one label each, a fifth a round, 5 epochs of five batches."""
    sorted_clients = linear_groups(20, 1, examples=50, noise=1.0, test_fraction=0.2)
    order = jnp.argsort(sorted_clients.train.pool.y[sorted_clients.train.index].ravel(), stable=True)
    index = sorted_clients.train.index.ravel()[order].reshape(sorted_clients.train.index.shape)
    clients = sorted_clients._replace(train=sorted_clients.train._replace(index=index))
    model, work = fljax.MODELS["logistic_regression"](input_shape=(4, 4, 1), n_classes=4), Work(5, 8)
    np.testing.assert_array_equal(n_steps(clients.train.size, work), 25)
    options = {"participation": 0.2, "evaluate_every": 10}
    metrics = fljax.simulate(scaffold(model, work), scaffold.Hyper(lr=lr), clients, key, 100, **options)[1]
    loss = np.asarray(metrics["test_loss"])[9::10]
    assert loss.max() < np.log(4)  # never worse than saying nothing
    assert loss[-1] < 0.2


def median_model(models, weights):
    return oracle.combine(lambda *leaves: np.median(leaves, axis=0), *models)


RULES = {"mean": (rounds.mean, oracle.average), "median": (rounds.median, median_model)}
HALF_WAY = rounds.interpolated(rounds.mean, share=lambda hyper, weight: 0.5)


@pytest.mark.parametrize(
    ("weighting", "rule"), [("size", "mean"), *slow_rows(("uniform", "mean"), ("uniform", "median"))]
)
def test_scaffold_in_numpy(key, model, federation, reference, weighting, rule):  # noqa: F811
    """Unequal steps and half of the clients a round; the rule makes both the model and the control variate."""
    combine, average = RULES[rule]
    zero = oracle.combine(np.zeros_like, reference.start)
    theta, c, controls = reference.start, zero, [zero] * 8
    weights = [1.0 if weighting == "uniform" else float(n) for n in np.asarray(federation.train.size)]
    for r, cohort in enumerate(reference.rounds()):
        sent, changes, cohort_weights, lr = [], [], [weights[i] for i, *_ in cohort], LR * 0.8**r
        for i, k, _ in cohort:
            batches, w = reference.batches(i, k), theta
            for x, y in batches:
                step = oracle.combine(lambda g, a, b: g - a + b, oracle.gradient(w, x, y), controls[i], c)
                w = oracle.combine(lambda w, g, lr=lr: w - lr * g, w, step)
            sum_of_rates = len(batches) * lr
            new_control = oracle.combine(
                lambda a, b, t, w, s=sum_of_rates: a - b + (t - w) / s, controls[i], c, theta, w
            )
            changes.append(oracle.combine(lambda new_control, old: new_control - old, new_control, controls[i]))
            controls[i] = new_control
            sent.append(w)
        target, share = average(sent, cohort_weights), sum(cohort_weights) / sum(weights)
        c = oracle.combine(lambda c, d, s=share: c + s * d, c, average(changes, cohort_weights))
        theta = oracle.combine(lambda t, goal: t + 0.7 * (goal - t), theta, target)
    algorithm = scaffold(model, WORK, weighting=weighting, combine=combine)
    hyper = scaffold.Hyper(lr=LR, lr_decay=0.8, step=0.7)
    deployed, state = run(algorithm, hyper, federation, key)
    assert_models(deployed, [theta] * 8)
    assert_models(state.clients, controls)
    chex.assert_trees_all_close(state.server.control, c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", ["half way", *slow("mean", "median")])
def test_feddyn_in_numpy(key, model, federation, reference, rule):  # noqa: F811
    """However far the server goes to the mean itself, h follows the mean."""
    combine, average = RULES.get(rule, (HALF_WAY, oracle.average))
    zero, alpha = oracle.combine(np.zeros_like, reference.start), 0.3
    theta, h, g = reference.start, zero, [zero] * 8
    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            w = theta
            for x, y in reference.batches(i, k):
                step = oracle.combine(
                    lambda d, g, w, t: d - g + alpha * (w - t), oracle.gradient(w, x, y), g[i], w, theta
                )
                w = oracle.combine(lambda w, d: w - LR * d, w, step)
            g[i] = oracle.combine(lambda g, w, t: g - alpha * (w - t), g[i], w, theta)
            sent.append(w)
        target, share = average(sent, [1.0] * len(sent)), len(sent) / 8
        h = oracle.combine(lambda h, goal, t, s=share: h - alpha * s * (goal - t), h, target, theta)
        step = 0.5 if rule == "half way" else 1.0
        theta = oracle.combine(lambda t, goal, h, s=step: t + s * (goal - t) - h / alpha, theta, target, h)
    deployed, state = run(feddyn(model, WORK, combine=combine), feddyn.Hyper(lr=LR, alpha=alpha), federation, key)
    assert_models(deployed, [theta] * 8)
    assert_models(state.clients, g)


@pytest.mark.parametrize(("start", "weighting"), [("own", "size"), *slow_rows(("global", "uniform"))])
@pytest.mark.parametrize("eta", [0.6, *slow(None)])
def test_fedadmm_in_numpy(key, model, federation, reference, start, weighting, eta):  # noqa: F811
    """Unequal steps and half of the clients a round; absent clients keep their models and dual variables."""
    rho, zero = 0.3, oracle.combine(np.zeros_like, reference.start)
    theta, w, y = reference.start, [reference.start] * 8, [zero] * 8
    augmented = lambda i: oracle.combine(lambda w, y: w + y / rho, w[i], y[i])  # noqa: E731
    for cohort in reference.rounds():
        changes = []
        for i, k, _ in cohort:
            before, new = augmented(i), w[i] if start == "own" else theta
            for x, labels in reference.batches(i, k):
                slope = oracle.combine(
                    lambda g, y, w, t: g + y + rho * (w - t), oracle.gradient(new, x, labels), y[i], new, theta
                )
                new = oracle.combine(lambda w, g: w - LR * g, new, slope)
            w[i], y[i] = new, oracle.combine(lambda y, w, t: y + rho * (w - t), y[i], new, theta)
            changes.append(oracle.combine(np.subtract, augmented(i), before))
        weights = [n if weighting == "size" else 1.0 for *_, n in cohort]
        total = reference.size.sum() if weighting == "size" else 8
        step = eta or sum(weights) / total
        theta = oracle.combine(lambda t, change, step=step: t + step * change, theta, oracle.average(changes, weights))
    hyper = fedadmm.Hyper(lr=LR, rho=rho, step=eta)
    deployed, state = run(fedadmm(model, WORK, start=start, weighting=weighting), hyper, federation, key)
    chex.assert_trees_all_close(tree.take(deployed, 0), theta, rtol=1e-5, atol=1e-5)
    assert_models(state.clients["w"], w)
    assert_models(state.clients["y"], y)


@pytest.mark.slow
def test_fedadmm_of_everyone_is_feddyn(key, model, federation):
    """In full rounds the server's model is the mean of all w_i + y_i / rho, which is FedDyn's mean minus h / alpha."""
    (admm, _), (dyn, _) = (
        simulate(algorithm, hyper, federation, key, 3)
        for algorithm, hyper in (
            (fedadmm(model, WORK, start="global"), fedadmm.Hyper(lr=LR, rho=0.3)),
            (feddyn(model, WORK), feddyn.Hyper(lr=LR, alpha=0.3)),
        )
    )
    chex.assert_trees_all_close(admm.server, dyn.server.shared, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(admm.clients["y"], jax.tree.map(np.negative, dyn.clients), rtol=1e-5, atol=1e-6)


def test_fedadmm_leaves_clients_that_fail_or_have_no_examples_as_they_were(key, quadratics):
    """With half of the clients a round, theta is still the mean of all clients' w_i + y_i / rho."""
    data, rho = quadratics.federation.train, 0.5
    data = data._replace(size=data.size.at[1].set(0), pool=data.pool._replace(x=data.pool.x.at[12].set(jnp.nan)))
    assert 12 in rows_of(data, 2)
    federation, hyper = quadratics.federation._replace(train=data), fedadmm.Hyper(lr=0.1, rho=rho)
    state, _ = simulate(fedadmm(quadratic(), FULL_BATCHES), hyper, federation, key, 6, participation=0.5)
    w, y = (np.asarray(state.clients[name]["fc"]["w"]) for name in ("w", "y"))
    assert (w[[0, 3]] != 0).all()
    np.testing.assert_array_equal([w[1:3], y[1:3]], np.zeros((2, 2, DIMENSION)))
    np.testing.assert_allclose(state.server["fc"]["w"], (w + y / rho).mean(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.5, *slow(None)])
def test_fednova_in_numpy(key, model, federation, reference, momentum):  # noqa: F811
    """The weights that gradients have in the last model are found by adding them up."""
    theta, rho = reference.start, momentum or 0.0
    for cohort in reference.rounds():
        total, tau, direction = sum(size for *_, size in cohort), 0.0, oracle.combine(np.zeros_like, theta)
        for i, k, size in cohort:
            batches = reference.batches(i, k)
            mass = sum(sum(rho**age for age in range(len(batches) - step)) for step in range(len(batches)))
            w = oracle.local_sgd(theta, batches, LR, rho)
            tau += size / total * mass
            direction = oracle.combine(lambda d, t, w, p=size / total / mass: d + p * (t - w), direction, theta, w)
        theta = oracle.combine(lambda t, d, tau=tau: t - tau * d, theta, direction)
    hyper = fednova.Hyper(lr=LR, momentum=momentum)
    assert_models(run(fednova(model, WORK), hyper, federation, key)[0], [theta] * 8)


@pytest.mark.slow
def test_fednova_of_equal_steps_is_fedavg(key, model, work):
    federation = linear_groups(4, 2, examples=24)
    states = [
        simulate(make(model, work), make.Hyper(lr=0.1, momentum=0.5), federation, key, 2)[0].server
        for make in (fednova, fljax.fedavg)
    ]
    chex.assert_trees_all_close(*states, rtol=1e-5, atol=1e-6)
    assert float(step_mass(jnp.asarray([5]), fednova.Hyper())[0]) == 5


@pytest.mark.slow
def test_scaffolds_gradients_are_those_at_the_servers_model(key, model, work, federation):
    algorithm, hyper = scaffold(model, work, control="gradient"), as_traced(scaffold.Hyper(lr=0.1, momentum=0.5))
    state = algorithm.init(key, hyper, federation.train)
    cohort = sample_cohort(key, jnp.int32(0), federation, 8, None)
    next_state, _ = algorithm.round(key, hyper, state, cohort)
    theta = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state.server.shared)
    rows = np.asarray(federation.train.index[2, : int(federation.train.size[2])])
    x, y = np.asarray(federation.train.pool.x, np.float64)[rows], np.asarray(federation.train.pool.y)[rows]
    control = tree.take(next_state.clients, 2)
    chex.assert_trees_all_close(control, oracle.gradient(theta, x, y), rtol=1e-4, atol=1e-5)


def test_steps_that_a_displacement_cannot_tell_are_refused(key, model, federation):
    adam = Work(1, 8, optimizer="adam")
    with pytest.raises(ValueError, match="optimizer='adam'"):
        fednova(model, adam)
    cohort = drawn_cohort(federation, key, 0, 1.0, None)
    for work, hyper in ((adam, scaffold.Hyper()), (Work(1, 8), scaffold.Hyper(momentum=0.9))):
        algorithm = scaffold(model, work)
        state = jax.eval_shape(algorithm.init, key, as_traced(hyper), federation.train)
        with pytest.raises(ValueError, match="needs plain SGD steps"):
            jax.eval_shape(algorithm.round, key, as_traced(hyper), state, cohort)


def test_fedlc_in_numpy(key, model, federation):
    """A gradient of calibrated logits is that at biases shifted by the margins, also of a class that clients lack."""
    federation = without_a_class(federation)
    reference = Reference(key, model, federation)  # noqa: F811
    theta, data = reference.start, federation.train
    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            client_labels = np.asarray(data.pool.y)[rows_of(data, i)]
            margin, w = 0.8 * np.maximum(np.bincount(client_labels, minlength=4), 1.0) ** -0.25, theta
            for x, y in reference.batches(i, k):
                calibrated = w | {"fc2": w["fc2"] | {"bias": w["fc2"]["bias"] - margin}}
                w = oracle.combine(lambda w, g: w - LR * g, w, oracle.gradient(calibrated, x, y))
            sent.append(w)
        theta = oracle.average(sent, [size for *_, size in cohort])
    deployed = run(fljax.fedlc(model, WORK), fljax.fedlc.Hyper(lr=LR, tau=0.8), federation, key)[0]
    assert_models(deployed, [theta] * 8)


def test_fedrs_in_numpy(key, model, federation):
    """The gradient at scaled logits is that at a last layer scaled alike, scaled once more for the layer itself."""
    federation, alpha = without_a_class(federation), 0.3
    reference = Reference(key, model, federation)  # noqa: F811
    theta, data = reference.start, federation.train
    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            client_labels = np.asarray(data.pool.y)[rows_of(data, i)]
            factor, w = np.where(np.isin(np.arange(4), client_labels), 1.0, alpha), theta
            for x, y in reference.batches(i, k):
                scaled = w | {"fc2": {name: leaf * factor for name, leaf in w["fc2"].items()}}
                gradient = oracle.gradient(scaled, x, y)
                gradient["fc2"] = {name: leaf * factor for name, leaf in gradient["fc2"].items()}
                w = oracle.combine(lambda w, g: w - LR * g, w, gradient)
            sent.append(w)
        theta = oracle.average(sent, [size for *_, size in cohort])
    deployed = run(fljax.fedrs(model, WORK), fljax.fedrs.Hyper(lr=LR, alpha=alpha), federation, key)[0]
    assert_models(deployed, [theta] * 8)


@pytest.mark.parametrize("q", [0.0, 2.0])
def test_qffl_in_numpy(key, model, federation, reference, q):  # noqa: F811
    theta, data, decay = reference.start, federation.train, 0.8
    for r, cohort in enumerate(reference.rounds()):
        total, h, lr = oracle.combine(np.zeros_like, theta), 0.0, LR * decay**r
        for i, k, _ in cohort:
            rows = rows_of(data, i)
            loss = oracle.training_loss(theta, reference.x[rows], reference.y[rows])
            w = oracle.local_sgd(theta, reference.batches(i, k), lr)
            gradient = oracle.combine(lambda t, w, lr=lr: (t - w) / lr, theta, w)
            norm = sum(np.square(leaf).sum() for leaf in jax.tree.leaves(gradient))
            total = oracle.combine(lambda t, g, f=loss**q: t + f * g, total, gradient)
            h += q * loss ** (q - 1) * norm + loss**q / lr
        theta = oracle.combine(lambda t, d, h=h: t - d / h, theta, total)
    deployed = run(fljax.qffl(model, WORK), fljax.qffl.Hyper(lr=LR, lr_decay=decay, q=q), federation, key)[0]
    assert_models(deployed, [theta] * 8)


def test_qffls_large_powers_follow_the_worst_client(key, model, federation, reference):  # noqa: F811
    theta, cohort = reference.start, next(iter(reference.rounds()))
    rows = {i: reference.index[i, : reference.size[i]] for i, *_ in cohort}
    losses = {i: oracle.training_loss(theta, reference.x[rows[i]], reference.y[rows[i]]) for i in rows}
    worst, key_of_worst = next((i, k) for i, k, _ in cohort if losses[i] == max(losses.values()))
    w = oracle.local_sgd(theta, reference.batches(worst, key_of_worst), LR)
    hyper = fljax.qffl.Hyper(lr=LR, lr_decay=1.0, q=2000.0)  # the worst loss to this power leaves float32
    options = {"participation": PLACES / 8, "dropout": DROPOUT}
    theta_after = simulate(fljax.qffl(model, WORK), hyper, federation, key, 1, **options)[0].server
    update, update_of_worst = (
        np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(oracle.combine(np.subtract, other_theta, theta))])
        for other_theta in (jax.tree.map(np.float64, theta_after), w)
    )
    assert update @ update_of_worst > 0.999 * np.linalg.norm(update) * np.linalg.norm(update_of_worst) > 0


def test_sam_and_exp_in_numpy(key, model, federation, reference):  # noqa: F811
    """Gradients a little uphill; a server that goes beyond the mean where updates point apart."""
    theta, rho, epsilon = reference.start, 0.3, 1e-3
    for cohort in reference.rounds():
        sent, weights = [], np.array([size for *_, size in cohort])
        for i, k, _ in cohort:
            w = theta
            for x, y in reference.batches(i, k):
                g = oracle.gradient(w, x, y)
                norm = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(g)))
                uphill_w = oracle.combine(lambda w, g, s=rho / norm: w + s * g, w, g)
                w = oracle.combine(lambda w, g: w - LR * g, w, oracle.gradient(uphill_w, x, y))
            sent.append(w)
        step = oracle.combine(lambda a, t: a - t, oracle.average(sent, list(weights)), theta)
        squared_norms = [sum(np.square(leaf).sum() for leaf in jax.tree.leaves(tree.subtract(w, theta))) for w in sent]
        squared_norm_of_step = sum(np.square(leaf).sum() for leaf in jax.tree.leaves(step))
        eta = max(1.0, np.average(squared_norms, weights=weights) / (2 * (squared_norm_of_step + epsilon)))
        theta = oracle.combine(lambda t, d, eta=eta: t + eta * d, theta, step)
    method = fljax.compose("fedavg+sam+exp")
    deployed = run(method(model, WORK), method.Hyper(lr=LR, rho=rho, epsilon=epsilon), federation, key)[0]
    assert_models(deployed, [theta] * 8)
