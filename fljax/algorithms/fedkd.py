"""FedKD: a client's own model and a shared one teach each other; of the shared one, low-rank updates are exchanged.

Wu, Wu, Lyu, Huang, Xie: Communication-efficient federated learning via knowledge distillation, Nature Communications
2022, https://arxiv.org/abs/2108.13323. Official code: https://github.com/wuch15/FedKD.
Each client trains a mentor, which it keeps, and its copy of the mentee on its examples, on each other's outputs and on
each other's features; the distillation is the weaker, the larger both losses are. Clients send the updates of the
mentee, and the server returns their mean, each matrix by its largest singular values. The share of the energy (the sum
of the squared singular values) that these keep rises over the rounds.

Differences from the paper: mentor and mentee have the same architecture; in the paper the mentee is smaller. If clients
have different networks (`fljax.models.heterogeneous`), the mentee is the first of them. Features
are the inputs of the last layer; attention maps, which the paper compares too, do not exist here. As in the official
code, both models minimise the sum of both losses, the divergence is divided by the number of classes, and clients send
one update per round. The matrix between the features starts as the identity. A convolution's kernel is one matrix, with
a column for each output. A client that has not participated keeps the initial model as its mentor; a new client starts
with the server's. PFLlib's code sends the mentee itself by its largest singular values instead of its update, and
weights all clients equally (``weighting="uniform"``).
"""

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.features import head_shape, see
from fljax.client.objectives import Loss, batch_mean, predictor
from fljax.client.optimizer import local_optimizer
from fljax.client.parts import train_parts
from fljax.data.labels import check_classes
from fljax.models.own_network import first_network, own_copies
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Weighting, client_weight, method, reported
from fljax.rounds.averaging import join_from_shared
from fljax.rounds.truncation import truncated_updates
from fljax.server.aggregate import weighted_mean
from fljax.types import (
    Algorithm,
    Batch,
    ClientData,
    Cohort,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    State,
    Work,
)


@hyper
class FedKDHyper(LocalHyper):
    mentee_lr: Scalar | None = number(None, "learning rate of the mentee, with lr_decay; None: lr", above=0)
    energy_start: Scalar = number(0.95, "T_start: share of the energy that is kept in the first round", least=0, most=1)
    energy_end: Scalar = number(0.98, "T_end: the share from round `rise` on; 1: updates are exact", least=0, most=1)
    rise: Scalar = number(100.0, "rounds over which the share rises; the code has all of a run", above=0)
    max_norm: Scalar | None = number(
        None,
        "each part's gradient is clipped to this norm (both losses may be nearly 0), 10 in PFLlib; None: not",
        above=0,
    )


@method(
    FedKDHyper,
    "Wu et al., Nature Communications 2022",
    "https://arxiv.org/abs/2108.13323",
    kind="personalised",
    trains=False,
    heterogeneous=True,
)
def fedkd(model: Model, work: Work, *, weighting: Weighting = "size") -> Algorithm:
    """FedKD: both minimise ``l_v + l_w + (KL(w || v) + KL(v || w) + 2 |h_v - W h_w|^2 / d) / (l_v + l_w)``.

    ``l_v`` and ``l_w`` are the losses of the mentor v and of the mentee w on a batch, h of dimension d their features;
    divergences are divided by the number of classes. Then ``w <- w + P(mean_i P(w_i - w))``, where ``P`` keeps of each
    matrix the fewest singular values whose squares exceed a share T of their sum: ``T = T_start + (T_end - T_start)
    min(t / rise, 1)`` in round t, from 0. The server sends its update to all clients. Traffic counts the factors of a
    matrix, or the matrix if that has fewer numbers. Clients are tested with their mentors.

    Args:
        model: the network, whose last layer is dense.
    """

    def keeps(theta: Params) -> dict[str, Params]:
        return {"mentor": theta, "projection": jnp.eye(head_shape(model, theta)[0], dtype=jnp.float32)}

    def init(key: Key, hyper: FedKDHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        theta = model.init(key)
        clients = tree.broadcast(keeps(theta), data.n_clients) | {"mentor": own_copies(model, theta, data.n_clients)}
        return State(first_network(model, theta), clients)

    def round(key: Key, hyper: FedKDHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        received = tree.broadcast(state.server, cohort.n_clients)
        start = tree.own({"mentee": received, **state.clients})
        mentee_optimizer = local_optimizer(hyper.with_lr(hyper.mentee_lr), work, cohort.round)
        trained = train_parts(hyper, start, cohort, mutual(model), work, None, mentee=mentee_optimizer)
        mentee, clients = trained.params["mentee"], {name: trained.params[name] for name in state.clients}
        progress = jnp.minimum(cohort.round.astype(jnp.float32) / hyper.rise, 1.0)
        energy = hyper.energy_start + (hyper.energy_end - hyper.energy_start) * progress
        sent, uplink = truncated_updates(tree.map_trainable(jnp.subtract, mentee, received), energy)
        weight = client_weight(weighting, cohort, trained.ok)
        unchanged = tree.map_trainable(jnp.zeros_like, state.server)
        update = tree.broadcast(weighted_mean(sent, weight, unchanged), 1)
        returned, downlink = truncated_updates(update, energy)
        theta = tree.map_trainable(jnp.add, tree.first(returned), state.server)
        return State(theta, clients), reported(trained, uplink, downlink[0])

    def deploy(key: Key, hyper: FedKDHyper, state: State, data: ClientData) -> ModelTable:
        return tree.own(state.clients["mentor"])

    algorithm = Algorithm(init, round, deploy, predictor(model), loss=model.loss)
    if model.n_networks > 1:
        return algorithm
    return algorithm._replace(join=join_from_shared(algorithm, lambda hyper, theta: keeps(theta)))


def mutual(model: Model) -> Loss:
    """The loss of a client's parts: mentor, mentee, and the matrix between their features."""

    def loss(parts: Params, statistics: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        held = tree.apart(tree.join_statistics(parts, statistics))
        mentor, mentee = (see(model, held[name], batch.x, key) for name in ("mentor", "mentee"))
        of_mentor, of_mentee = (batch_mean(model.loss(seen.logits, batch.y), batch.weight) for seen in (mentor, mentee))
        p, q = (jax.nn.log_softmax(tree.at_least_float32(seen.logits)) for seen in (mentor, mentee))
        # KL(q || p) + KL(p || q), each averaged over the classes.
        divergence = ((jnp.exp(q) - jnp.exp(p)) * (q - p)).mean(1)
        hidden = jnp.square(mentor.features - mentee.features @ held["projection"]).mean(1)
        distillation = batch_mean(divergence + 2 * hidden, batch.weight)
        both = of_mentor + of_mentee
        value = both + distillation / jnp.maximum(both, 1e-12)
        return value, tree.side_by_side(**held | {"mentor": mentor.params, "mentee": mentee.params})

    return loss
