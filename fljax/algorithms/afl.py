"""AFL: one model for the worst mixture of the clients' distributions (agnostic federated learning).

Mohri, Sivek, Suresh: Agnostic Federated Learning, ICML 2019, https://arxiv.org/abs/1902.00146. With local steps: Ro,
Chen, Mathews, Mohri, Suresh: Communication-Efficient Agnostic Federated Averaging, Interspeech 2021,
https://arxiv.org/abs/2104.02748 (AgnosticFedAvg). A domain is a client, or a group of clients. The server minimises the
losses of the domains, weighted by lambda, and lambda rises where losses are large.

::

    w_i       <- LocalTrain(theta)                           every participant i
    L_d       <- sum_{i in d} n_i F_i(theta) / N_d           F_i: mean loss; N_d = sum_{i in d} n_i, of participants
    theta     <- sum_d lambda_d sum_{i in d} n_i w_i / N_d,  divided by the sum of these weights
    lambda    <- project(lambda + gamma L)                   or lambda_d exp(gamma L_d) / sum_k lambda_k exp(gamma L_k)

With one step on all examples, everyone in every round and the projection, this is Stochastic-AFL with exact gradients.
If gamma is large, lambda jumps between domains and does not settle; more domains, whose lambda is smaller, need less.

Differences from the papers: all examples of a client are in one domain. Lambda may be anywhere on the simplex. An
absent domain counts as one of loss 0, as in FedJAX's code: if all participate equally often, lambda moves on average
along its gradient, by the participating share of gamma. Clients are tested with the last model; with the mean over
rounds of Mohri et al., they are in ``afl+ema`` with ``ema_decay=1``.
Differences from FedJAX's code: its domains are those of examples, and its N_d a mean over past rounds. Its local steps
are shorter, since it divides the sum of a batch's losses by the client's number of examples.
Differences from https://github.com/litian96/fair_flearn, q-FFL's comparison: it makes one step a round and measures
losses on its batch; with ``sampling=2``, as in its instructions, its mean of the gradients does not depend on lambda.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.choices import short_repr
from fljax.client.measure import client_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, check_not_private, mean, method, not_independent
from fljax.rounds.averaging import ReceivedModels
from fljax.rounds.wrapping import halves_of, inside, within_server
from fljax.server.simplex import onto_simplex
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, State, Upload, Work

Ascent = Literal["projected", "exponentiated"]


@hyper
class AFLHyper(LocalHyper):
    lambda_lr: Scalar = number(
        0.01, "gamma: learning rate of lambda, not decayed; 0 keeps lambda; q-FFL's code has 0.01 and 0.1", least=0
    )


class Agnostic(NamedTuple):
    """What the server keeps."""

    own: Any  # theta, and the state of `combine`
    lam: Array  # (domains,) lambda, on the simplex
    label: Array  # (clients,) int32 domain of each client


@method(AFLHyper, "Mohri et al., ICML 2019", "https://arxiv.org/abs/1902.00146")
def afl(
    model: Model,
    work: Work,
    *,
    ascent: Ascent = "projected",
    domain: tuple[int, ...] | None = None,
    weighting: Weighting = "uniform",
    combine: Combining = mean,
) -> Algorithm:
    """AFL: ``theta <- sum_d lambda_d mean_{i in d} w_i``, ``lambda <- project(lambda + gamma L)``, L at the old theta.

    The metric ``lam`` (cohort,) is the lambda of each participant's domain after the round.

    Args:
        ascent: how lambda rises. "projected": along the losses, to the nearest point of the simplex (Mohri et al.);
            "exponentiated": ``lambda_d exp(gamma L_d)``, normalised (Ro et al.).
        domain: (clients,) the domain of each client, 0 to the number of domains - 1; None: each client is its own.
        weighting: lambda before the first round. "uniform": equal for all domains; "size": by their examples.

    Raises:
        ValueError: ``domain`` is no tuple of such numbers. A round raises it if it does not have one entry per client.
    """
    check_not_private(work, "clients of AFL send their losses, which get no noise")
    if domain is not None and not (np.iterable(domain) and set(domain) == set(range(len(set(domain))))):
        raise ValueError(
            f"domain={short_repr(domain)} is not a tuple of numbers from 0, none left out; give the domain of each "
            "client, such as (0, 0, 1)"
        )
    fedavg = averaging(model, work, combine=combine)  # its weights are n_i
    halves = halves_of(fedavg)

    def init(key: Key, hyper: AFLHyper, data: ClientData) -> State:
        numbers = domain or range(data.n_clients)
        n_domains = len(set(numbers))
        label = jnp.asarray(np.resize(numbers, data.n_clients), jnp.int32)  # new clients, too, begin with a state
        n_examples = jax.ops.segment_sum(data.size.astype(jnp.float32), label, n_domains)
        share = n_examples if weighting == "size" else jnp.ones(n_domains, jnp.float32)
        return State(Agnostic(fedavg.init(key, hyper, data).server, share / share.sum(), label), ())

    def send(key: Key, hyper: AFLHyper, state: State, cohort: Cohort) -> Upload:
        _, lam, label = state.server.server if isinstance(state.server, ReceivedModels) else state.server
        if domain is not None and len(domain) != label.shape[0]:
            raise ValueError(
                f"domain has {len(domain)} entries, but the data has {label.shape[0]} clients; give one per client"
            )
        upload = halves.send(key, hyper, within_server(state), cohort)
        n, loss = upload.weight, client_loss(model, upload.start, cohort.data)
        weight, losses = by_domain(lam, label[cohort.ids], n, jnp.where(n > 0, loss, 0.0))
        return upload._replace(weight=weight, rest=(upload.rest, losses))

    def receive(key: Key, hyper: AFLHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        trained, losses = upload.rest
        new_state, metrics = halves.receive(key, hyper, within_server(state), cohort, upload._replace(rest=trained))
        lam = risen(ascent, state.server.lam, hyper.lambda_lr * losses)
        metrics |= {"uplink": metrics["uplink"] + 1, "lam": lam[state.server.label[cohort.ids]]}
        return State(state.server._replace(own=new_state.server, lam=lam), ()), metrics

    def join(key: Key, hyper: AFLHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        return fedavg.deploy(key, hyper, state, data)  # new clients are in no domain

    # A client's weight depends on the losses of all.
    return not_independent(inside(fedavg._replace(join=join), init, within_server, send=send, receive=receive))


def by_domain(lam: Array, domain: Array, n: Array, loss: Array) -> tuple[Array, Array]:
    """(cohort,) weights of the participants' models, the largest 1, and (domains,) mean losses, 0 for absent domains.

    Args:
        lam: (domains,) lambda.
        domain: (cohort,) the participants' domains.
        n: (cohort,) their numbers of examples; 0 does not count.
        loss: (cohort,) their mean losses.
    """
    total = jnp.maximum(jax.ops.segment_sum(n, domain, lam.shape[0]), 1.0)
    weight, losses = lam[domain] * n / total[domain], jax.ops.segment_sum(n * loss, domain, lam.shape[0]) / total
    # Only ratios matter. If lambda is small for all participants, sums of weights could not be told from 0.
    return weight / jnp.where(weight.max() > 0, weight.max(), 1.0), losses


def risen(ascent: Ascent, lam: Array, rise: Array) -> Array:
    """(domains,) lambda after a step; ``rise`` (domains,) is gamma L."""
    # Neither result depends on a constant in all entries, and lambda would be lost in the rounding of large ones.
    rise = jnp.nan_to_num(rise, nan=0.0)
    rise = rise - rise.max()
    if ascent == "exponentiated":
        return jax.nn.softmax(jnp.log(lam) + rise)
    return onto_simplex(lam + jnp.maximum(rise, -2.0))  # what rises by 2 less than another becomes 0 in any case
