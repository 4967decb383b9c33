"""FedCR: a shared body whose Gaussian representations agree across clients class by class, and personal heads.

Zhang, Li, Dai, Zou, Xiong: FedCR: Personalized Federated Learning Based on Across-Client Common Representation with
Conditional Mutual Information Regularization, ICML 2023, https://openreview.net/forum?id=YDC5jTS3LR.
Official code: https://github.com/haozzh/FedCR.
Clients train body and head with a penalty: the divergence from the global Gaussian of each example's class. The server
averages the bodies and multiplies the clients' class Gaussians.

Differences from the paper: a client's class Gaussians are those of its trained body; the code collects them batch by
batch during the last epoch. Clients are tested with the logits of the mean, which is the limit of mean logits over many
draws, since the head is linear. As in the code, heads are fitted once more before a test (``ft_epochs``), here with one
draw per step, in the code with as many as in the rounds.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Natural, Positive
from fljax.client.gaussian import Evidence, Gaussian, class_evidence, divergence, draws, halves_of
from fljax.client.objectives import Loss, batch_mean, predictor, training_loss
from fljax.numbers import Scalar, hyper, number
from fljax.rounds import Combining, TunedHyper, Weighting, all_but, client_weight, mean, method, reported, train, tuned
from fljax.rounds.combine import as_combine
from fljax.rounds.uplink.private import check_not_private
from fljax.types import (
    Algorithm,
    Batch,
    ClientData,
    Cohort,
    Exchange,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    State,
    Upload,
    Work,
)


@hyper
class FedCRHyper(TunedHyper):
    """Hyperparameters of FedCR; the official code has lr 0.05, and beta 1e-4 and 1e-3."""

    beta: Scalar = number(1e-3, "weight of the divergence from the global class Gaussian", least=0)
    blend: Scalar = number(1.0, "share of the new class Gaussians in the server's; 1 replaces them", above=0, most=1)
    max_norm: Scalar | None = number(10.0, "gradients are clipped to this norm; None: not clipped", above=0)


class FedCRServer(NamedTuple):
    """What the server keeps."""

    base: Params  # the network without its head
    common: Gaussian  # (classes, latent) G, the global Gaussian of each class
    memory: Any  # the state of `combine`


@method(FedCRHyper, "Zhang et al., ICML 2023", "https://openreview.net/forum?id=YDC5jTS3LR", kind="personalised")
def fedcr(
    model: Model,
    work: Work,
    *,
    n_draws: Positive = 18,
    ft_epochs: Natural = 10,
    weighting: Weighting = "uniform",
    combine: Combining = mean,
) -> Algorithm:
    """FedCR: ``F_i = mean over draws of CE(head_i(z), y) + beta KL(G_y | N(mu(x), sigma(x)^2))``; ``base <- mean``.

    Args:
        model: a probabilistic network, such as `fljax.models.variational_cnn`.
        n_draws: draws z of each example's representation per step.
        ft_epochs: epochs on the head only, before a client is tested; 0: none.

    Raises:
        ValueError: the model is not probabilistic.
    """
    check_not_private(work, "clients of FedCR send Gaussians of their classes, which get no noise")
    latent, body, head = halves_of(model, "fedcr").latent, model.layers[:-1], model.layers[-1:]
    n_classes = jax.eval_shape(model.init, jax.random.key(0))[model.layers[-1]]["bias"].shape[0]
    sharing, combining = all_but(head), as_combine(combine)

    def init(key: Key, hyper: FedCRHyper, data: ClientData) -> State:
        base, own = sharing.split(model.init(key))
        unit = Gaussian(jnp.zeros((n_classes, latent), jnp.float32), jnp.ones((n_classes, latent), jnp.float32))
        return State(FedCRServer(base, unit, combining.init(hyper, base)), tree.broadcast(own, data.n_clients))

    def send(key: Key, hyper: FedCRHyper, state: State, cohort: Cohort) -> Upload:
        (base, common, _), n = state.server, cohort.n_clients
        start, loss = sharing.held(base, state.clients, n), aligned(model, hyper.beta, n_draws)
        trained = train(hyper, start, cohort, loss, work, tree.everyone(common, n))
        bases, heads = sharing.split(trained.params)
        weight = client_weight(weighting, cohort, trained.ok)
        evidence = class_evidence(model, trained.params, cohort.data, n_classes)
        return Upload(tree.everyone(base, n), bases, weight, (trained._replace(params=heads), evidence))

    def receive(key: Key, hyper: FedCRHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        (base, common, memory), (trained, evidence) = state.server, upload.rest
        base, memory = combining.apply(hyper, memory, base, upload.params, upload.weight)
        common = product_of_experts(evidence, upload.weight > 0, common, hyper.blend)
        # The base and Gaussians are exchanged: up, those of the client's classes; down, those of all classes.
        n, n_known = tree.size(base), (evidence.precision > 0).any(axis=-1).sum(axis=-1).astype(jnp.float32)
        metrics = reported(trained, n + 2.0 * latent * n_known, n + 2 * latent * n_classes)
        return State(FedCRServer(base, common, memory), trained.params), metrics

    def deploy_own_heads(key: Key, hyper: FedCRHyper, state: State, data: ClientData) -> ModelTable:
        return sharing.held(state.server.base, state.clients, data.n_clients)

    deploy = tuned(deploy_own_heads, training_loss(model), work, ft_epochs, body)
    exchange = Exchange(send, receive, lambda server: server.base)
    return Algorithm(init, exchange.round, deploy, predictor(model), loss=model.loss, exchange=exchange)


def aligned(model: Model, beta: Scalar, n_draws: int) -> Loss:
    """The model's loss over draws, and the divergence of the class Gaussian from the representation.

    The class Gaussians are the first of the client's own rows.
    """
    halves = halves_of(model, "fedcr")

    def loss(params: Params, batch: Batch, key: Key, common: Gaussian, *own: Any) -> tuple[Array, Params]:
        z = Gaussian(*halves.encode(params, batch.x))
        logits = halves.classify(params, draws(key, z, n_draws))
        cross_entropy = jax.vmap(lambda of_draw: model.loss(of_draw, batch.y))(logits).mean(axis=0)
        penalty = divergence(Gaussian(common.mu[batch.y], common.sigma[batch.y]), z)
        return batch_mean(cross_entropy + beta * penalty, batch.weight), params

    return loss


def product_of_experts(evidence: Evidence, counts: Array, common: Gaussian, blend: Scalar) -> Gaussian:
    """The unit Gaussian times the clients' experts, class by class; a class that no client has keeps its Gaussian.

    ``prec = 1 + sum_i s_ic^-2``, ``mean = sum_i m_ic s_ic^-2 / prec``, ``sigma = prec^-1/2``, blended with the old.

    Args:
        evidence: (clients, classes, latent) of each client.
        counts: (clients,) bool: clients that count.
        common: (classes, latent) before the round.
        blend: share of the new Gaussian, in (0, 1].
    """
    precision, weighted = (
        jnp.where(counts[:, None, None], of_clients, 0.0).sum(axis=0)
        for of_clients in (evidence.precision, evidence.weighted)
    )
    new = Gaussian(weighted / (1 + precision), 1 / jnp.sqrt(1 + precision))
    blended = jax.tree.map(lambda old, new: (1 - blend) * old + blend * new, common, new)
    return tree.where(precision > 0, blended, common)
