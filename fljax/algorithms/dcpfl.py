"""DC-PFL: groups that split along a fixed hierarchy when the loss stops falling fast, and layers averaged when due.

Liu et al.: Dynamic Clustering for Personalised Federated Learning with layer-wise aggregation.
Clients start as one group. A dendrogram of model discrepancies over the first rounds fixes how groups may split; each
time the rapid-decrease period of the mean loss ends, the next split is tried for a round beside the present groups and
adopted if it has the lower loss. Layers that differ little within a group are averaged every ``alpha`` rounds only.

Differences from the paper: the threshold is lowered (the text says that lambda is added); thresholds that would not
change the groups are passed over without a trial. A trial compares losses on the clients' validation split, where
there is one: the training loss of the paper ("train") favours small groups on any data. The rapid-decrease period ends
at an interior minimum of the radius of curvature; the printed formula ("formula") fires at once. The round in which it
ends also uploads the layers that are not due, since a trial starts from whole models. A group of one sends and
receives nothing but losses. Under partial participation the structure is that of the participants' tables: a pair that
never met has the mean discrepancy, and a returning client first takes over the layers averaged in its absence. A client
that never took part joins the group whose model has the least training loss.
"""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.accounting import client_weight
from fljax.algorithms.layer_schedule import (
    LayerTable,
    average_due,
    exchanged,
    refreshed,
    reschedule,
    rounds_between,
    stale,
)
from fljax.algorithms.layerwise import n_floats
from fljax.algorithms.splitting import (
    Structure,
    Watch,
    call_trial,
    decide,
    ends_warmup,
    is_warmup,
    level,
    measure,
    one_group,
    watch,
)
from fljax.client import client_loss, local_optimizer, predictor, train_clients, training_loss
from fljax.rounds.joining import join_cluster
from fljax.server.aggregate import cluster_mean
from fljax.server.curvature import PeriodEnd, new_curve
from fljax.server.hierarchy import cut_at
from fljax.server.inherit import inherit
from fljax.server.layers import due_layers
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Stacked, State, Trained, Work

CHOICES = {
    "trial_loss": ("val", "train"),
    "period_end": ("minimum", "formula"),
    "deployed": ("own", "group"),
}


class DCPFLHyper(NamedTuple):
    """Numbers of DC-PFL.

    lr: clients' learning rate, > 0. Not in the paper; 0.01 with momentum 0.9 is that of the network it cites.
    step: lambda, by how much a split lowers the normalised threshold, in [0, 1]; the paper has 0.2. 0: no split.
    alpha: rounds between two averages of a layer of low discrepancy, >= 1; the paper has 3.
    low: a layer is low below this share of its group's mean discrepancy; the paper has 0.1.
    warmup: T_start, rounds over which discrepancies are averaged, >= 1; the paper has 5.
    pause: t_sp, rounds without a trial after a rejected one; the paper has 6.
    fixed: the normalised threshold of ``dynamic=False``; the paper has 0.8.
    lr_decay: factor on the learning rate per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.01
    step: Array | float = 0.2
    alpha: Array | float = 3.0
    low: Array | float = 0.1
    warmup: Array | float = 5.0
    pause: Array | float = 6.0
    fixed: Array | float = 0.8
    lr_decay: Array | float | None = None
    momentum: Array | float | None = 0.9


class DCPFLServer(NamedTuple):
    """What the server keeps."""

    table: LayerTable
    groups: Structure
    watch: Watch


class DCPFLClient(NamedTuple):
    """What each client keeps."""

    model: Stacked  # (clients, ...) as last trained
    seen: Array  # (clients,) int32 rounds done when it last took part


class Local(NamedTuple):
    """The clients' side of a round."""

    trained: Trained
    before: Array  # (clients,) training loss before training; of a trial not known
    trial_loss: Array  # (2,) mean loss in the present groups and in those on trial; 0 in other rounds
    adopted: Array  # () bool: `trained` grew in the groups on trial


@cache
def dcpfl(
    model: Model,
    work: Work,
    *,
    trial_loss: str = "val",
    period_end: PeriodEnd = "minimum",
    dynamic: bool = True,
    layerwise: bool = True,
    deployed: str = "own",
    window: int = 5,
    n_after: int = 3,
) -> Algorithm:
    """DC-PFL; tau is ``work.epochs`` (the paper has 5).

    Args:
        model: the network.
        work: local effort.
        trial_loss: a trial compares losses on "val", the validation split where the federation has one, or "train".
        period_end: "minimum" or "formula", see `fljax.server.curvature.period_ended`.
        dynamic: False: the groups of a fixed threshold from the end of the warm-up on (NoDC).
        layerwise: False: every layer is averaged in every round (NoLA).
        deployed: clients are tested with their "own" models, in which layers that are not due are their own, or with
            their "group"'s mean of them.
        window: s, rounds over which the loss is smoothed.
        n_after: t_obv, rounds for which the radius of curvature must have grown.

    Raises:
        ValueError: an unknown option, or a number below 1.
    """
    _check(trial_loss=trial_loss, period_end=period_end, deployed=deployed)
    first_watch = Watch(new_curve(window, n_after), jnp.int32(0))
    layers = model.layers

    def init(key: Key, hyper: DCPFLHyper, data: ClientData) -> State:
        n_clients = data.size.shape[0]
        models, never = tree.broadcast(model.init(key), n_clients), jnp.zeros((n_clients, len(layers)), jnp.int32)
        server = DCPFLServer(LayerTable(models, never, never + 1), one_group(n_clients), first_watch)
        return State(server, DCPFLClient(models, jnp.zeros(n_clients, jnp.int32)))

    def round(key: Key, hyper: DCPFLHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        server, clients = state
        was_trial = server.groups.on_trial
        # 1.-3. Download, loss, tau local epochs; in a trial round in both structures.
        local = lax.cond(was_trial, in_both_structures, in_present_groups, hyper, server, clients, cohort)
        sent, weight = local.trained.params, client_weight("uniform", cohort, local.trained.ok)
        groups = measure(hyper, decide(server.groups, local.adopted), sent, weight, cohort)
        seen = server.watch
        if dynamic:
            # 7. Where the rapid-decrease period of the loss has ended, the next round is a trial.
            seen = watch(hyper, seen, _mean(local.before, weight), was_trial, local.adopted)
            groups = call_trial(hyper, groups, seen.curve, period_end, cohort.round)
        else:
            fixed = cut_at(groups.dendrogram, hyper.fixed)
            groups = groups._replace(label=jnp.where(ends_warmup(hyper, cohort.round), fixed, groups.label))
        # 4.-5. Upload and average the layers that are due; all of them when a trial needs or ends with whole models.
        full = is_warmup(hyper, cohort.round) | due_layers(cohort.round, rounds_between(hyper.alpha))
        full = full | was_trial | groups.on_trial
        table, label = inherit(server.table, server.groups.label, groups.label), groups.label[cohort.ids]
        due = full | due_layers(cohort.round, table.interval) if layerwise else jnp.ones_like(table.interval, bool)
        table = average_due(table, layers, due, sent, weight, label, cohort.round)
        if layerwise:
            measured = partial(reschedule, layers=layers, sent=sent, weight=weight, label=label)
            table = lax.cond(full, lambda t: measured(t, low=hyper.low, alpha=hyper.alpha), lambda t: t, table)
        new = DCPFLServer(table, groups, seen)
        metrics = {"loss": local.trained.loss, "ok": local.trained.ok} | _metrics(hyper, new, local, was_trial, cohort)
        sizes = jnp.asarray([n_floats(tree.take(sent, jnp.int32(0)), (name,)) for name in layers], jnp.float32)
        fetched = stale(server.table, server.groups.label[cohort.ids], clients.seen)
        metrics |= exchanged(sizes, due[label], fetched, server.groups, cohort.ids)
        took_part = jnp.where(local.trained.ok, cohort.round + 1, clients.seen)
        return State(new, DCPFLClient(sent, took_part)), metrics

    def in_present_groups(hyper: DCPFLHyper, server: DCPFLServer, clients: DCPFLClient, cohort: Cohort) -> Local:
        start = downloaded(server, clients, cohort.ids)
        before = client_loss(model, start, cohort.data)  # l_i(t), before local training
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        return Local(trained, before, jnp.zeros(2), jnp.bool_(False))

    def in_both_structures(hyper: DCPFLHyper, server: DCPFLServer, clients: DCPFLClient, cohort: Cohort) -> Local:
        groups, optimizer = server.groups, local_optimizer(hyper, work, cohort.round)
        # a. M0 and M1 from the same uploaded models, those of the last round.
        uploaded, labels = clients.seen == cohort.round, jnp.stack([groups.label, groups.next_label])
        held = cohort.val if trial_loss == "val" and cohort.val is not None else cohort.data

        def in_structure(label: Array) -> tuple[Trained, Array]:
            present = inherit(server.table.theta, groups.label, label)
            models = cluster_mean(clients.model, uploaded, label[cohort.ids], empty=present)
            # b. Both train on the same batches, or noise would decide.
            start = ModelTable(models, label[cohort.ids])
            trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
            return trained, client_loss(model, trained.params, held)

        both, loss = lax.map(in_structure, labels)
        # c. Adopt the split if the mean loss is strictly lower.
        mean = jax.vmap(_mean, in_axes=(0, None))(loss, client_weight("uniform", cohort, both.ok.all(axis=0)))
        adopted = mean[1] < mean[0]
        trained = jax.tree.map(lambda leaf: jnp.where(adopted, leaf[1], leaf[0]), both)
        return Local(trained, jnp.zeros(cohort.ids.shape), mean, adopted)

    def downloaded(server: DCPFLServer, clients: DCPFLClient, ids: Array) -> Stacked:
        label = server.groups.label[ids]
        return refreshed(server.table, layers, stale(server.table, label, clients.seen), label, clients.model)

    def deploy(key: Key, hyper: DCPFLHyper, state: State, data: ClientData) -> ModelTable:
        server, clients = state
        mixed = downloaded(server, clients, jnp.arange(data.size.shape[0]))
        if deployed == "own":
            return tree.own(mixed)
        label = server.groups.label
        return ModelTable(cluster_mean(mixed, jnp.ones(label.shape[0]), label, empty=server.table.theta), label)

    def groups_deployed(key: Key, hyper: DCPFLHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(state.server.table.theta, state.server.groups.label)

    return Algorithm(init, round, deploy, predictor(model), join_cluster(model, groups_deployed))


def _mean(value: Array, weight: Array) -> Array:
    """Mean over the clients that count; NaN where none does."""
    return jnp.where(weight > 0, value, 0.0).sum() / (weight > 0).sum().astype(jnp.float32)


def _metrics(hyper: DCPFLHyper, server: DCPFLServer, local: Local, was_trial: Array, cohort: Cohort) -> Metrics:
    label = server.groups.label
    return {
        "label": label[cohort.ids],
        "n_clusters": label.max() + 1,
        "threshold": level(hyper, server.groups),
        "trial": was_trial,
        "adopted": local.adopted,
        "trial_loss_present": local.trial_loss[0],
        "trial_loss_split": local.trial_loss[1],
        "radius": server.watch.curve.radii[-1],
    }


def _check(**names: Any) -> None:
    for name, given in names.items():
        if given not in CHOICES[name]:
            raise ValueError(f"{name}={given!r} is unknown; choose one of {', '.join(map(repr, CHOICES[name]))}")
