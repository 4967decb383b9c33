"""APFL: each client mixes a model of its own with the global one, by a weight that it learns.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020, https://arxiv.org/abs/2003.13461.
Official code: https://github.com/MLOPTPSU/FedTorch.
Beside FedAvg each client trains a model v_i of its own so that ``alpha_i v_i + (1 - alpha_i) w`` is good, and moves
alpha_i along the gradient of the same loss.

Differences from the paper: clients count by their sizes; all alike in the paper and in the official code
(``weighting="uniform"``). The mixture is with the client's copy w_i of the global model while it trains, and with the
server's model when it is tested. alpha_i moves once a batch, as in PFLlib; in the paper and the official code once a
round. That code mixes outputs, not weights, and adds 0.02 alpha_i to the gradient of alpha_i, as PFLlib does, which
steps v_i along the gradient at v_i itself and keeps the mixture for v_i; none of these is done here.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.client.objectives import Loss, training_loss
from fljax.client.parts import train_parts
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Sharing, Weighting, averaging, mean, method
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Model, ModelTable, Params, State, Trained, Work


@hyper
class APFLHyper(LocalHyper):
    alpha: Scalar = number(
        0.5, "weight of a client's own model in its mixture, at first; 0 is FedAvg where it stays so", least=0, most=1
    )
    alpha_lr: Scalar | None = number(None, "learning rate of that weight, not decayed; 0 keeps it, None: lr", least=0)


COPY_AND_MIXTURE = Sharing(
    split=lambda held: (held["w"], {name: held[name] for name in ("own", "alpha")}), join=lambda w, own: {"w": w} | own
)
"""A client holds its copy w_i of the server's model, which travels, its own v_i, and their weight alpha_i."""


@method(APFLHyper, "Deng et al., 2020", "https://arxiv.org/abs/2003.13461", kind="personalised", trains=False)
def apfl(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """APFL: ``w`` by FedAvg; with ``m_i = alpha_i v_i + (1 - alpha_i) w_i``: ``v_i <- v_i - eta alpha_i g_i(m_i)``.

    ``alpha_i <- alpha_i - eta <v_i - w_i, g_i(m_i)>``, kept in [0, 1]. The reported loss is that of the mixtures.
    """

    def local(hyper: APFLHyper, start: ModelTable, cohort: Cohort) -> Trained:
        lr = hyper.lr_of(cohort.round) if hyper.alpha_lr is None else hyper.alpha_lr
        stepped = optax.chain(optax.sgd(lr), optax.stateless(_within_unit))
        loss = mixed(training_loss(model))
        return train_parts(hyper, start, cohort, loss, work, "w", alpha=stepped)

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
        deployed=lambda held: mixture(held["alpha"], held["own"], held["w"]),
    )

    def init(key: Key, hyper: APFLHyper, data: ClientData) -> State:
        server, own = rounds.init(key, hyper, data)
        return State(server, own | {"alpha": jnp.full(data.size.shape, hyper.alpha, jnp.float32)})

    return rounds._replace(init=init)


def mixture(alpha: Array, own: Params, w: Params) -> Params:
    """``alpha v + (1 - alpha) w`` of one client, or of a row each; running statistics too."""
    return tree.as_before(jax.tree.map(lambda v, w: w + tree.along(alpha, v) * (v - w), own, w), w)


def mixed(loss: Loss) -> Loss:
    """``loss(w) + loss(mixture)``, the first with a gradient for w alone, the second for v and alpha alone.

    The value is that of the mixture.
    """

    def both(held: Params, statistics: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        still = jax.lax.stop_gradient(held["w"])
        here = mixture(held["alpha"], held["own"], still)
        value, updated = loss(tree.join_statistics(here, statistics), batch, key)
        shared, _ = loss(tree.join_statistics(held["w"], statistics), batch, key)
        return value + shared - jax.lax.stop_gradient(shared), updated

    return both


def _within_unit(updates: Any, params: Any = None) -> Any:
    """Cuts steps short where they would leave [0, 1]."""
    return jax.tree.map(lambda u, p: jnp.clip(p + u, 0, 1) - p, updates, params)
