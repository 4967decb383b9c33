"""MOON: a contrastive loss moves features towards the server model's, and away from the client's last model's.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021, https://arxiv.org/abs/2103.16257.
Official code: https://github.com/QinbinLi/MOON.
FedAvg whose local loss compares, example by example, the features with those of the received model and of the model
that the client sent last.

Differences from the paper: features are the inputs of the last layer; the paper puts a projection head before it. In
its first round, a client uses the common initial model as its last model, as in PFLlib; the official code has no such
term in the first round, and a new random network per client in later rounds.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.features import see
from fljax.client.objectives import Loss, batch_mean
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, mean, method, train, two_models
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Trained, Work


@hyper
class MOONHyper(LocalHyper):
    mu: Scalar = number(1.0, "weight of the contrast; 0 is FedAvg; the paper has 0.1 to 10", least=0)
    temperature: Scalar = number(0.5, "tau of the contrast", above=0)


@method(MOONHyper, "Li et al., CVPR 2021", "https://arxiv.org/abs/2103.16257")
def moon(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """MOON: ``w_i = argmin F_i(w) - mu mean_x log(e^(s_theta) / (e^(s_theta) + e^(s_last)))``; average.

    ``s_theta = cos(h_w(x), h_theta(x)) / tau``, and ``s_last`` the same with the client's last model.
    """

    def local(hyper: MOONHyper, start: ModelTable, cohort: Cohort) -> Trained:
        # A client's own model is the last one that it sent; a diverged model is not sent.
        theta = start.part("global")
        trained = train(hyper, theta, cohort, contrasted(model, hyper), work, theta, start.params["own"])
        last = tree.where(trained.ok, trained.params, start.params["own"])
        return trained._replace(params={"global": trained.params, "own": last})

    return two_models(model, local, "global", combine=combine, weighting=weighting)


def contrasted(model: Model, hyper: MOONHyper) -> Loss:
    """The training loss plus the contrast between two models, which are the client's own rows."""

    def loss(params: Params, batch: Batch, key: Key, theta: Params, last: Params, *own: Any) -> tuple[Array, Params]:
        seen = see(model, params, batch.x, key)
        to_global, to_last = (
            cosine(seen.features, see(model, network, batch.x, None).features) for network in (theta, last)
        )
        value = model.loss(seen.logits, batch.y) + hyper.mu * jax.nn.softplus((to_last - to_global) / hyper.temperature)
        return batch_mean(value, batch.weight), seen.params

    return loss


def cosine(a: Array, b: Array) -> Array:
    """(batch,) cosines of the rows of ``a`` and ``b`` (batch, d); 0 where a row is 0."""
    lengths = jnp.square(a).sum(1) * jnp.square(b).sum(1)
    return (a * b).sum(1) * jax.lax.rsqrt(jnp.maximum(lengths, 1e-12))
