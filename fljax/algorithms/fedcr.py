"""FedCR: a shared body whose Gaussian representations agree across clients class by class, and personal heads.

Zhang, Li, Dai, Zou, Xiong: FedCR: Personalized Federated Learning Based on Across-Client Common Representation with
Conditional Mutual Information Regularization, ICML 2023, https://openreview.net/forum?id=YDC5jTS3LR.
Official code: https://github.com/haozzh/FedCR.
Clients train body and head under a divergence from the global Gaussian of each example's class; the server averages the
bodies and multiplies the clients' class Gaussians.

Differences from the paper: a client's class Gaussians are those of its trained body, the code gathers them batch by
batch during the last epoch. Clients are tested with the logits of the mean, which is the limit of mean logits over many
draws, since the head is linear. As in the code, heads are fitted once more before a test (``ft_epochs``).
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.partial import compose_rows, deploy_composed, last_layers, part_mean, split
from fljax.algorithms.tuned import tuned
from fljax.client import predictor, train_clients, training_loss
from fljax.client.freeze import frozen
from fljax.client.gaussian import Evidence, Gaussian, class_evidence, divergence, draws, halves_of
from fljax.client.objectives import Loss, batch_mean
from fljax.client.optimizer import clipped_optimizer
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, State, Work


class FedCRHyper(NamedTuple):
    """Numbers of FedCR.

    lr: clients' learning rate, > 0. The official code has 0.05.
    beta: weight of the divergence from the global class Gaussian, >= 0. The official code has 1e-4 and 1e-3.
    blend: share of the new class Gaussians in the server's, in (0, 1]; 1 replaces them.
    max_norm: gradients are clipped to this norm, > 0; None: not clipped.
    ft_lr: clients' learning rate when they fit their heads before a test, > 0; None: `lr`, not decayed.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    beta: Array | float = 1e-3
    blend: Array | float = 1.0
    max_norm: Array | float | None = 10.0
    ft_lr: Array | float | None = None
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


class FedCRServer(NamedTuple):
    """What the server keeps."""

    base: Params  # the network without its head
    common: Gaussian  # (classes, latent) G, the global Gaussian of each class


@cache
def fedcr(model: Model, work: Work, *, n_draws: int = 18, ft_epochs: int = 10, weighting: str = "uniform") -> Algorithm:
    """FedCR: ``F_i = mean over draws of CE(head_i(z), y) + beta KL(G_y | N(mu(x), sigma(x)^2))``; ``base <- mean``.

    Args:
        model: a probabilistic network, such as `fljax.models.variational_cnn`.
        work: local effort.
        n_draws: draws z of each example's representation in a step.
        ft_epochs: epochs on the head alone before a client is tested; 0: none.
        weighting: "uniform" averages the bases equally, "size" by the clients' examples.
    """
    check_weighting(weighting)
    if n_draws < 1:
        raise ValueError(f"n_draws={n_draws} is not positive; choose n_draws >= 1")
    latent, head_layers = halves_of(model, "fedcr").latent, last_layers(model, 1, "n_personal")
    n_classes = jax.eval_shape(model.init, jax.random.key(0))[model.layers[-1]]["bias"].shape[0]

    def init(key: Key, hyper: FedCRHyper, data: ClientData) -> State:
        base, head = split(model.init(key), head_layers)
        unit = Gaussian(jnp.zeros((n_classes, latent)), jnp.ones((n_classes, latent)))
        return State(FedCRServer(base, unit), tree.broadcast(head, data.size.shape[0]))

    def round(key: Key, hyper: FedCRHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        base, common = state.server
        n_clients = cohort.ids.shape[0]
        start, optimizer = compose_rows(base, state.clients, n_clients), clipped_optimizer(hyper, work, cohort.round)
        loss, everyones = aligned(model, hyper.beta, n_draws), tree.everyone(common, n_clients)
        trained = train_clients(cohort.key, start, cohort.data, loss, optimizer, work, everyones)
        bases, heads = split(trained.params, head_layers)
        weight = client_weight(weighting, cohort, trained.ok)
        base = part_mean(bases, weight, empty=base)
        evidence = class_evidence(model, trained.params, cohort.data, n_classes)
        common = product_of_experts(evidence, weight > 0, common, hyper.blend)
        n_shared, n_held = tree.size(base), (evidence.precision > 0).any(axis=-1).sum(axis=-1)  # P_B, C_i
        sent = traffic(n_shared + 2.0 * latent * n_held.astype(jnp.float32), n_shared + 2 * latent * n_classes)
        return State(FedCRServer(base, common), heads), {"loss": trained.loss, "ok": trained.ok, **sent}

    def deploy_own_heads(key: Key, hyper: FedCRHyper, state: State, data: ClientData) -> ModelTable:
        return deploy_composed(key, hyper, State(state.server.base, state.clients), data)

    body_layers = tuple(name for name in model.layers if name not in head_layers)
    deploy = tuned(deploy_own_heads, frozen(training_loss(model), body_layers), work, ft_epochs)
    return Algorithm(init, round, deploy, predictor(model))


def aligned(model: Model, beta: Array | float, n_draws: int) -> Loss:
    """Cross-entropy over draws, and the divergence of the class Gaussian from the representation.

    The class Gaussians are the first of the client's own rows.
    """
    halves = halves_of(model, "fedcr")

    def loss(params: Params, batch: Batch, key: Key, common: Gaussian) -> tuple[Array, Params]:
        z = Gaussian(*halves.encode(params, batch.x))
        logits = halves.classify(params, draws(key, z, n_draws))
        labels = jnp.broadcast_to(batch.y, logits.shape[:-1])
        cross = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(axis=0)
        away = divergence(Gaussian(common.mu[batch.y], common.sigma[batch.y]), z)
        return batch_mean(cross + beta * away, batch.weight), params

    return loss


def product_of_experts(evidence: Evidence, counts: Array, common: Gaussian, blend: Array | float) -> Gaussian:
    """The unit Gaussian times the clients' experts, class by class; a class that nobody has keeps its Gaussian.

    ``prec = 1 + sum_i s_ic^-2``, ``mean = sum_i m_ic s_ic^-2 / prec``, ``sigma = prec^-1/2``, blended with the old.

    Args:
        evidence: (clients, classes, latent) of each client.
        counts: (clients,) bool; the others never matter.
        common: (classes, latent) before the round.
        blend: share of the new, in (0, 1].
    """
    precision, weighted = (
        jnp.where(counts[:, None, None], of_clients, 0.0).sum(axis=0)
        for of_clients in (evidence.precision, evidence.weighted)
    )
    new = Gaussian(weighted / (1 + precision), 1 / jnp.sqrt(1 + precision))
    mixed = jax.tree.map(lambda old, new: (1 - blend) * old + blend * new, common, new)
    return jax.tree.map(lambda old, new: jnp.where(precision > 0, new, old), common, mixed)
