"""DC-PFL: groups that split along a fixed hierarchy when the loss stops falling fast, and layers averaged when due.

Liu et al.: Dynamic Clustering for Personalized Federated Learning on Heterogeneous Edge Devices, 2025,
https://arxiv.org/abs/2508.01580.
Clients start as one group. A dendrogram of model discrepancies over the first rounds fixes how groups may split. Each
time the rapid-decrease period of the mean loss ends, the next split is tried for one round beside the present groups,
and adopted if its loss is lower. Layers that differ little within a group are averaged only every ``alpha`` rounds.

Differences from the paper: the threshold is lowered (the text says that lambda is added), and a threshold that would
not change the groups is skipped without a trial. A trial compares losses on the clients' validation split, if there is
one: the paper's training loss ("train") favours small groups on any data. The rapid-decrease period ends at an interior
minimum of the radius of curvature; the printed formula ("formula") is true at once. The round in which the period ends
also uploads layers that are not due, since a trial starts from whole models. A group of one exchanges only losses. With
partial participation, a pair of clients that never participated together gets the mean discrepancy; a returning client
first takes over the layers that were averaged in its absence; and a trial compares means of all participants of the
round that called it, whoever participates in the trial. A new client joins the group with the least training loss. A
layer is a kernel with its bias; with ``layer_unit="tensor"`` each tensor is one, as in a PyTorch state dict.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.dcpfl.layer_schedule import LayerTable, average_due, layer_traffic, refreshed, stale, synchronise
from fljax.algorithms.dcpfl.splitting import Structure, Watch, call_trial, cut_once, decide, measure, one_group, watch
from fljax.algorithms.dcpfl.trial import ClientSide, TrialLoss, client_side_of, mean_loss
from fljax.algorithms.dcpfl.units import LayerUnit, units_of
from fljax.choices import Positive
from fljax.client.objectives import predictor
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Sent, check_not_private, client_weight, join_cluster, method
from fljax.server.aggregate import cluster_mean
from fljax.server.curvature import PeriodEnd, new_curve
from fljax.server.hierarchy import threshold
from fljax.server.inherit import inherit
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
    Exchange,
    Key,
    Metrics,
    Model,
    ModelTable,
    Stacked,
    State,
    Upload,
    Work,
)


@hyper
class DCPFLHyper(LocalHyper):
    """Hyperparameters of DC-PFL; lr and momentum, not given in the paper, are those of the network that it cites."""

    lr: Scalar = number(0.01, "learning rate of the clients", above=0)
    momentum: Scalar | None = number(0.9, "momentum of the clients' SGD; None: none", least=0, below=1)
    step: Scalar = number(0.2, "lambda: how much a split lowers the normalised threshold; 0: no split", least=0, most=1)
    alpha: Scalar = number(3.0, "rounds between two averages of a layer with low discrepancy", least=1)
    low: Scalar = number(0.1, "a layer's discrepancy is low below this share of its group's mean", least=0)
    warmup: Scalar = number(5.0, "T_start: rounds over which discrepancies are averaged", least=1)
    pause: Scalar = number(6.0, "t_sp: rounds without a trial after a rejected one", least=0)
    fixed: Scalar = number(0.8, "normalised threshold of the groups if they are not dynamic", least=0, most=1)


class DCPFLServer(NamedTuple):
    """What the server keeps."""

    table: LayerTable
    groups: Structure
    watch: Watch
    next_theta: Stacked  # (clients, ...) M1, models of the groups on trial; () if groups are not dynamic


class DCPFLClient(NamedTuple):
    """What each client keeps."""

    model: Stacked  # (clients, ...) as last trained
    seen: Array  # (clients,) int32 rounds done after its last participation


@method(DCPFLHyper, "Liu et al., 2025", "https://arxiv.org/abs/2508.01580", kind="clustered", sends=True)
def dcpfl(
    model: Model,
    work: Work,
    *,
    trial_loss: TrialLoss = "val",
    period_end: PeriodEnd = "minimum",
    dynamic: bool = True,
    layerwise: bool = True,
    layer_unit: LayerUnit = "layer",
    deployed: Literal["own", "group"] = "own",
    window: Positive = 5,
    n_after: Positive = 3,
) -> Algorithm:
    """DC-PFL; tau is ``work.epochs`` (the paper has 5).

    Args:
        trial_loss: a trial compares losses on "val", the validation split if the federation has one, or on "train".
        period_end: "minimum" or "formula", see `fljax.server.curvature.period_ended`.
        dynamic: False: from the end of the warm-up on, the groups of a fixed threshold (NoDC).
        layerwise: False: every layer is averaged in every round (NoLA).
        layer_unit: unit with its own averaging interval: a "layer" of the network or each "tensor".
        deployed: clients are tested with their "own" models, whose layers that are not due are the client's, or with
            the means of their "group".
        window: s, rounds over which the loss is smoothed.
        n_after: t_obv, rounds for which the radius of curvature must have increased.
    """
    if dynamic:
        check_not_private(work, "clients of DC-PFL train twice in a trial round, and epsilon counts one training")
    trained_from, units = client_side_of(model, work, trial_loss), units_of(model, layer_unit)

    def init(key: Key, hyper: DCPFLHyper, data: ClientData) -> State:
        n_clients = data.n_clients
        zeros = jnp.zeros((n_clients, len(units.names)), jnp.int32)
        models = tree.broadcast(model.init(key), n_clients)
        watch = Watch(new_curve(window, n_after), jnp.int32(0))
        table = LayerTable(models, zeros, zeros + 1)
        server = DCPFLServer(table, one_group(n_clients), watch, models if dynamic else ())
        return State(server, DCPFLClient(models, jnp.zeros(n_clients, jnp.int32)))

    def send(key: Key, hyper: DCPFLHyper, state: State, cohort: Cohort) -> Upload:
        server, clients = state
        # 1. Download; in a trial round, the models of both structures; otherwise nobody starts from the second.
        models, on_trial = downloaded(server, clients, cohort.ids), server.groups.on_trial
        of_both, of_present = partial(on_trial_from, server, cohort.ids), lambda: tree.broadcast(models, 2)
        starts = lax.cond(on_trial, of_both, of_present) if dynamic else of_present()
        # 2.-3. Loss, tau local epochs.
        local = trained_from(hyper, starts, on_trial, cohort)
        weight = client_weight("uniform", cohort, local.trained.ok)
        return Upload(tree.own(models), local.trained.params, weight, local)

    def downloaded(server: DCPFLServer, clients: DCPFLClient, ids: Array) -> Stacked:
        label = server.groups.label[ids]
        return refreshed(server.table, units, stale(server.table, label, clients.seen), label, clients.model)

    def on_trial_from(server: DCPFLServer, ids: Array) -> Stacked:
        """M0 and M1 of every participant: (2, cohort, ...)."""
        groups = server.groups
        models = tree.take(server.table.theta, groups.label[ids])
        return tree.stack([models, tree.take(server.next_theta, groups.next_label[ids])])

    def receive(key: Key, hyper: DCPFLHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        # Clients continue from their models as they arrived, because the trial uses these.
        ((table, old_groups, watched, next_theta), clients), local = state, upload.rest
        models, weight, ok = upload.params, upload.weight, local.trained.ok
        # 6.-7. Measure; if the rapid-decrease period of the loss has ended, the next round is a trial, and then all
        # layers are sent in 4.-5.
        groups = measure(hyper, decide(old_groups, local.adopted), models, weight, cohort)
        if dynamic:
            loss = mean_loss(local.before, weight)
            watched = watch(hyper, watched, loss, old_groups.on_trial, local.adopted, cohort.round)
            groups = call_trial(hyper, groups, watched.curve, period_end, cohort.round)
        else:
            groups = cut_once(hyper, groups, cohort.round)
        # 4.-5. Upload and average the layers that are due.
        fetched = stale(table, old_groups.label[cohort.ids], clients.seen)
        sent = Sent(models, weight, groups.label[cohort.ids])
        table, due = averaged(hyper, table, old_groups, groups, sent, cohort.round)
        if dynamic:
            # a. M1 from the same uploaded models as M0, which is the table: all layers are due before a trial.
            of_split = partial(next_models, table, groups, sent, cohort.ids)
            next_theta = lax.cond(groups.on_trial, of_split, lambda: next_theta)
        sizes = jnp.asarray(units.sizes(tree.first(models)), jnp.float32)
        new_server = DCPFLServer(table, groups, watched, next_theta)
        metrics = _metrics(hyper, new_server, local, old_groups.on_trial, cohort)
        metrics["threshold"] = threshold(groups.steps, hyper.step) if dynamic else jnp.float32(hyper.fixed)
        metrics |= layer_traffic(sizes, due[groups.label[cohort.ids]], fetched, old_groups, cohort.ids)
        return State(new_server, DCPFLClient(models, jnp.where(ok, cohort.round + 1, clients.seen))), metrics

    def averaged(
        hyper: DCPFLHyper, table: LayerTable, old_groups: Structure, groups: Structure, sent: Sent, round: Array
    ) -> tuple[LayerTable, Array]:
        if layerwise:
            return synchronise(hyper, table, units, old_groups, groups, sent, round)
        due = jnp.ones(table.interval.shape, bool)
        return average_due(inherit(table, old_groups.label, groups.label), units, due, sent, round), due

    def next_models(table: LayerTable, groups: Structure, sent: Sent, ids: Array) -> Stacked:
        """Mean of the models sent, by group on trial; a group without participants gets its parent's model."""
        parents = inherit(table.theta, groups.label, groups.next_label)
        return cluster_mean(sent.params, sent.weight, groups.next_label[ids], empty=parents)

    def deploy(key: Key, hyper: DCPFLHyper, state: State, data: ClientData) -> ModelTable:
        server, clients = state
        models = downloaded(server, clients, jnp.arange(data.n_clients))
        if deployed == "own":
            return tree.own(models)
        label = server.groups.label
        return ModelTable(
            cluster_mean(models, jnp.ones(label.shape[0], jnp.float32), label, empty=server.table.theta), label
        )

    def groups_deployed(key: Key, hyper: DCPFLHyper, state: State, data: ClientData) -> ModelTable:
        return ModelTable(state.server.table.theta, state.server.groups.label)

    exchange = Exchange(send, receive, lambda server: tree.first(server.table.theta))
    join = join_cluster(model, groups_deployed)
    return Algorithm(init, exchange.round, deploy, predictor(model), join, model.loss, exchange=exchange)


def _metrics(hyper: DCPFLHyper, server: DCPFLServer, local: ClientSide, was_trial: Array, cohort: Cohort) -> Metrics:
    label = server.groups.label
    return {
        "loss": local.trained.loss,
        "ok": local.trained.ok,
        "label": label[cohort.ids],
        "n_clusters": label.max() + 1,
        "trial": was_trial,
        "adopted": local.adopted,
        "trial_loss_present": local.trial_loss[0],
        "trial_loss_split": local.trial_loss[1],
        "radius": server.watch.curve.radii[-1],
    }
