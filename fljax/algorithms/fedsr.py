"""FedSR: FedAvg of a probabilistic network with a regularised, simple representation.

Nguyen, Torr, Lim: FedSR: A Simple and Effective Domain Generalization Method for Federated Learning, NeurIPS 2022,
https://proceedings.neurips.cc/paper_files/paper/2022/hash/fd946a6c99541fddc3d64a3ea39a1bc2-Abstract-Conference.html.
Official code: https://github.com/atuannguyen/FedSR.
Clients classify a draw z of the Gaussian N(mu(x), sigma(x)^2), with penalties on the length of z and on the divergence
of the Gaussian from a reference of its class; all parameters, including the references, are averaged.

Differences from the paper: clients are tested with the logits of the mean, which is the limit of mean logits over many
draws, since the head is linear; the official code averages the probabilities of its draws. The references' scale ``c``
enters sigma by its absolute value. The official code averages networks with equal weights (``weighting="uniform"``),
but not references, which each client keeps; only common references align the clients' Gaussians. FedCR's port loses the
references from its optimiser on a GPU, divides the Frobenius norm of a batch's z by its size, and never loads the
server's network into its clients, so that they train alone.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.gaussian import Gaussian, divergence, draws, halves_of
from fljax.client.objectives import Loss, batch_mean, checked_losses
from fljax.models.calling import check_free
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, mean, method, train
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Trained, Work

REFERENCES = "references"
"""The subtree of the trained parameters that is not part of the network: a Gaussian for each class, and a scale."""


@hyper
class FedSRHyper(LocalHyper):
    l2r: Scalar = number(0.01, "weight of the mean length of z; 0.01 in the official code", least=0)
    cmi: Scalar = number(5e-4, "weight of the divergence from the class reference; 5e-4 in the official code", least=0)


LINK = "https://proceedings.neurips.cc/paper_files/paper/2022/hash/fd946a6c99541fddc3d64a3ea39a1bc2-Abstract-Conference.html"


@method(FedSRHyper, "Nguyen et al., NeurIPS 2022", LINK)
def fedsr(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedSR: ``F_i = E[CE(head(z), y)] + l2r E|z| + cmi E KL(N(c mu, (c sigma)^2) | N(r_y, s_y^2))``; then as FedAvg.

    Args:
        model: a probabilistic network, such as `fljax.models.variational_cnn`.
        combine: how the server combines the clients' networks and references.
    """
    check_network(model, "fedsr")

    def with_references(key: Key) -> Params:
        return model.init(key) | {REFERENCES: first_references(model)}

    def local(hyper: FedSRHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        return train(hyper, theta, cohort, simple(model, hyper), work)

    return averaging(
        model,
        local,
        combine=combine,
        weighting=weighting,
        begin=with_references,
        deployed=lambda params: tree.select(params, model.layers),
    )


def check_network(model: Model, method: str) -> None:
    """Raises ValueError if the ``method`` cannot train the model: it is not probabilistic, or has a layer
    `REFERENCES`."""
    check_free(model, method, REFERENCES)
    halves_of(model, method)


def first_references(model: Model) -> Params:
    """The references before training: mean 0, sigma = softplus(1) for each class; scale 1."""
    head = jax.eval_shape(model.init, jax.random.key(0))[model.layers[-1]]
    shape = (head["bias"].shape[0], halves_of(model, "fedsr").latent)
    return {"mu": jnp.zeros(shape, jnp.float32), "rho": jnp.ones(shape, jnp.float32), "scale": jnp.float32(1)}


def simple(model: Model, hyper: FedSRHyper) -> Loss:
    """The cross-entropy of one draw z, plus the weighted length of z and divergence from the class reference."""
    halves = halves_of(model, "fedsr")

    def loss(params: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        network, references = tree.select(params, model.layers), params[REFERENCES]
        mu, sigma = halves.encode(network, batch.x)
        z = draws(key, Gaussian(mu, sigma), 1)[0]
        cross_entropy = checked_losses(model.loss(halves.classify(network, z), batch.y), batch.weight)
        length = jnp.sqrt(jnp.square(z).sum(axis=-1) + 1e-12)  # differentiable at 0
        scaled = Gaussian(references["scale"] * mu, jnp.abs(references["scale"]) * sigma)
        reference = Gaussian(references["mu"][batch.y], jax.nn.softplus(references["rho"])[batch.y])
        per_example = cross_entropy + hyper.l2r * length + hyper.cmi * divergence(scaled, reference)
        return batch_mean(per_example, batch.weight), params

    return loss
