"""APFL: each client mixes its own model with the global model, by a weight that it learns.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020, https://arxiv.org/abs/2003.13461.
Official code: https://github.com/MLOPTPSU/FedTorch.
In addition to FedAvg, each client trains its own model v_i to minimise the loss of ``alpha_i v_i + (1 - alpha_i) w``,
and updates alpha_i with the gradient of the same loss.

Differences from the paper: clients are weighted by size; equally in the paper and the official code
(``weighting="uniform"``). In training, the mixture uses the client's copy w_i of the global model; in a test, the
server's model. alpha_i is updated once per batch, as in PFLlib; in the paper and the official code, once per round. The
official code mixes outputs, not weights, and adds 0.02 alpha_i to the gradient of alpha_i; so does PFLlib, which also
steps v_i along the gradient at v_i itself and keeps the mixture as v_i. None of these is done here. A new client's v_i
starts as the server's model.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.client.given_gradients import without_gradient
from fljax.client.objectives import Loss, training_loss
from fljax.client.parts import train_parts
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Sharing, Weighting, averaging, mean, method
from fljax.rounds.averaging import join_from_shared
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Model, ModelTable, Params, State, Trained, Work


@hyper
class APFLHyper(LocalHyper):
    alpha: Scalar = number(
        0.5, "initial weight of a client's own model in its mixture; 0 with alpha_lr=0 is FedAvg", least=0, most=1
    )
    alpha_lr: Scalar | None = number(None, "learning rate of alpha, not decayed; 0 keeps alpha, None: lr", least=0)


COPY_AND_MIXTURE = Sharing(
    split=lambda held: (held["w"], {name: held[name] for name in ("own", "alpha")}), join=lambda w, own: {"w": w} | own
)
"""A client holds its copy w_i of the server's model, which is exchanged, its own v_i, and their weight alpha_i."""


@method(APFLHyper, "Deng et al., 2020", "https://arxiv.org/abs/2003.13461", kind="personalised", trains=False)
def apfl(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """APFL: ``w`` by FedAvg; with ``m_i = alpha_i v_i + (1 - alpha_i) w_i``: ``v_i <- v_i - eta alpha_i g_i(m_i)``.

    ``alpha_i <- alpha_i - eta <v_i - w_i, g_i(m_i)>``, kept in [0, 1]. The reported loss is that of the mixtures.
    """

    def local(hyper: APFLHyper, start: ModelTable, cohort: Cohort) -> Trained:
        lr = hyper.lr_of(cohort.round) if hyper.alpha_lr is None else hyper.alpha_lr
        optimizer = optax.chain(optax.sgd(lr), optax.stateless(_within_unit))
        loss = mixed(training_loss(model))
        return train_parts(hyper, start, cohort, loss, work, "w", alpha=optimizer)

    def begin(key: Key) -> dict[str, Any]:
        w = model.init(key)
        return {"w": w, "own": w, "alpha": jnp.float32(0)}

    rounds = averaging(
        model,
        local,
        sharing=COPY_AND_MIXTURE,
        combine=combine,
        weighting=weighting,
        begin=begin,
        deployed=lambda held: tree.mixture(held["alpha"], held["own"], held["w"]),
    )

    def init(key: Key, hyper: APFLHyper, data: ClientData) -> State:
        server, own = rounds.init(key, hyper, data)
        return State(server, own | {"alpha": jnp.full(data.size.shape, hyper.alpha, jnp.float32)})

    def keeps(hyper: APFLHyper, w: Params) -> dict[str, Any]:
        return {"own": w, "alpha": jnp.asarray(hyper.alpha, jnp.float32)}

    return rounds._replace(init=init, join=join_from_shared(rounds, keeps))


def mixed(loss: Loss) -> Loss:
    """``loss(w) + loss(mixture)``: the first term has a gradient for w only, the second for v and alpha only.

    The value is the loss of the mixture.
    """

    def both(held: Params, statistics: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        fixed_w = without_gradient(held["w"])
        mixed_params = tree.mixture(held["alpha"], held["own"], fixed_w)
        value, updated = loss(tree.join_statistics(mixed_params, statistics), batch, key)
        copy_loss, _ = loss(tree.join_statistics(held["w"], statistics), batch, key)
        return value + copy_loss - without_gradient(copy_loss), updated

    return both


def _within_unit(updates: Any, params: Any = None) -> Any:
    """Shortens steps that would leave [0, 1]."""
    return jax.tree.map(lambda u, p: jnp.clip(p + u, 0, 1) - p, updates, params)
