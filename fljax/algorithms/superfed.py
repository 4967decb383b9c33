"""SuPerFed: each client trains all mixtures of a local model and its copy of the global one.

Hahn, Jeong, Lee: Connecting Low-Loss Subspace for Personalized Federated Learning, KDD 2022,
https://arxiv.org/abs/2109.07628. Official code: https://github.com/vaseline555/SuPerFed.
After some rounds of FedProx, each batch is for a random mixture of a client's copy w_i of the global model and its
local model v_i, so that all mixtures between the two come to have low losses. A term makes the two orthogonal, and v_i
begins with random weights of its own.

Differences from the code: the proximal term is half the squared distance; in the code, the sum of the distances of all
arrays, and the cosine's inner product has 1e-6 added to each of its terms. Clients are tested with one mixture; the
code tests eleven and reports the best on the test examples. A client that has not yet trained its local model is tested
with the global model alone. A new client's local model begins as the global one, and trains in mixtures from its first
round on.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.objectives import Loss, training_loss
from fljax.client.parts import train_parts
from fljax.keys import descend
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Sharing, Weighting, averaging, mean, method
from fljax.rounds.averaging import join_from_shared, shared_part
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
    Trained,
    Work,
)

SHARE = 0x5A5E
"""Folded into a step's key for the mixture; the network draws as in any method."""


@hyper
class SuPerFedHyper(LocalHyper):
    warmup: Scalar = number(
        10.0,
        "rounds of FedProx before local models are trained; the code has a fifth of all; inf is FedProx",
        least=0,
        infinite=True,
    )
    mu: Scalar = number(0.01, "proximal weight, of the copies of the global model", least=0)
    nu: Scalar = number(2.0, "weight of the squared cosine of both models", least=0)
    lam: Scalar = number(0.5, "lambda: share of a client's local model in the tested mixture", least=0, most=1)


COPY_AND_LOCAL = Sharing(
    split=lambda held: (held["w"], {name: held[name] for name in ("own", "is_trained")}),
    join=lambda w, own: {"w": w} | own,
)
"""A client holds its copy w_i of the server's model, which is exchanged, its local v_i, and 1 if that is trained."""


@method(SuPerFedHyper, "Hahn et al., KDD 2022", "https://arxiv.org/abs/2109.07628", kind="personalised", trains=False)
def superfed(
    model: Model,
    work: Work,
    *,
    mixing: Literal["model", "layers"] = "model",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """SuPerFed: ``(w_i, v_i) = argmin E_l F_i((1 - l) w + l v) + mu/2 |w - theta|^2 + nu cos^2(w, v)``, l uniform.

    ``theta <- mean(w_i)``. The reported loss is that of the mixtures, with all terms.

    Args:
        mixing: one l for the whole "model", or one for each of its "layers".
        combine: how the server combines the w_i.
    """
    loss = training_loss(model)

    def local(hyper: SuPerFedHyper, start: ModelTable, cohort: Cohort) -> Trained:
        mixes = cohort.round.astype(jnp.float32) >= hyper.warmup
        parts = start._replace(params={name: start.params[name] for name in ("w", "own")})
        objective = of_mixtures(loss, hyper, mixes, mixing == "layers")
        trained = train_parts(hyper, parts, cohort, objective, work, "w", start.part("w"))
        own = tree.where(mixes, trained.params["own"], start.params["own"])  # else weight decay would change it
        is_trained = jnp.maximum(start.params["is_trained"], (mixes & trained.ok).astype(jnp.float32))
        return trained._replace(params={"w": trained.params["w"], "own": own, "is_trained": is_trained})

    def begin(key: Key) -> dict[str, Any]:
        w = model.init(key)
        return {"w": w, "own": w, "is_trained": jnp.float32(0)}

    rounds = averaging(model, local, sharing=COPY_AND_LOCAL, combine=combine, weighting=weighting, begin=begin)

    def init(key: Key, hyper: SuPerFedHyper, data: ClientData) -> State:
        server, own = rounds.init(key, hyper, data)
        return State(server, own | {"own": jax.vmap(model.init)(descend(key, jnp.arange(data.n_clients)))})

    def deploy(key: Key, hyper: SuPerFedHyper, state: State, data: ClientData) -> ModelTable:
        w = tree.broadcast(shared_part(state.server), 1)
        return tree.own(tree.mixture(hyper.lam * state.clients["is_trained"], state.clients["own"], w))

    def round_of_mixtures(key: Key, hyper: SuPerFedHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        return rounds.round(key, hyper.replace(warmup=jnp.float32(0)), state, cohort)

    def keeps(hyper: SuPerFedHyper, w: Params) -> dict[str, Any]:
        return {"own": w, "is_trained": jnp.float32(0)}

    join = join_from_shared(rounds._replace(round=round_of_mixtures, deploy=deploy), keeps)
    return rounds._replace(init=init, deploy=deploy, join=join)


def of_mixtures(loss: Loss, hyper: SuPerFedHyper, mixes: Array, by_layer: bool) -> Loss:
    """The loss of a random mixture, plus both terms; before the mixing, that of w plus the proximal term.

    Args:
        loss: of the network.
        hyper: mu and nu.
        mixes: () bool, whether this round trains mixtures.
        by_layer: each layer has its own share.
    """

    def objective(parts: Params, statistics: Params, batch: Batch, key: Key, theta: Params) -> tuple[Array, Params]:
        w, v = parts["w"], parts["own"]
        shares = jnp.where(mixes, jax.random.uniform(jax.random.fold_in(key, SHARE), (len(w),), jnp.float32), 0.0)
        share = {name: shares[i if by_layer else 0] for i, name in enumerate(sorted(w))}
        mixed = tree.map_layers(lambda name, v, w: tree.mixture(share[name], v, w), v, w)
        value, updated = loss(tree.join_statistics(mixed, statistics), batch, key)
        proximity = hyper.mu / 2 * tree.squared_norm(tree.subtract(w, tree.trainable(theta)))
        return value + proximity + jnp.where(mixes, hyper.nu * squared_cosine(w, v), 0.0), updated

    return objective


def squared_cosine(a: Params, b: Params) -> Array:
    """() the square of the cosine of the angle between two models."""
    return jnp.square(tree.dot(a, b)) / jnp.maximum(tree.squared_norm(a) * tree.squared_norm(b), 1e-20)
