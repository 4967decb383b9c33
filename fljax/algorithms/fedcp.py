"""FedCP: for each example, a gate splits the features between the client's own head and the global head.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy, KDD 2023, https://arxiv.org/abs/2307.01217. Official code: https://github.com/TsingZ0/FedCP.
A shared conditional policy computes from the features and the client's head how much of each feature is personal; the
personal part goes to the client's head, the rest to a frozen global head.

Differences from the paper: in a test the policy returns its expectation; the code draws Gumbel noise there too. The
client's context is computed from its head at the start of each round, including the first. PFLlib sends the new global
head and policy only to the participants of the round, and the new body to all clients; here a participant starts with
all three. A new client's head starts as the global head.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.discrepancy import discrepancy
from fljax.client.features import dense_and_norm, head_shape, linear, normalised, see
from fljax.client.objectives import Loss, batch_mean
from fljax.models.calling import check_free
from fljax.models.task import task_of
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, all_but, averaging, mean, method, train
from fljax.rounds.averaging import join_from_shared
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Trained, Work

GLOBAL, POLICY = "global_head", "policy"
"""Names beside the layers: the global head, which the client does not train, and the conditional policy."""


@hyper
class FedCPHyper(LocalHyper):
    lam: Scalar = number(5.0, "lambda: weight of the discrepancy to the received body's features", least=0)


@method(FedCPHyper, "Zhang et al., KDD 2023", "https://arxiv.org/abs/2307.01217", kind="personalised")
def fedcp(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedCP: ``F_i = l(own_i(r * h) + head((1 - r) * h), y) + lambda MMD(h, h_received)``, ``r = policy(v_i * h)``.

    ``v_i`` is the sum of the rows of client i's head, of length 1. After training the client sends its body, its policy
    and ``(own_i + head) / 2``; the server averages them.

    Args:
        model: the network, whose last layer is dense.
    """
    check_free(model, "fedcp", GLOBAL, POLICY)
    if task_of(model.loss) == "regression":  # whose outputs are scaled after the last layer
        raise ValueError(
            "fedcp: adds the outputs of two last layers, but a regression scales its outputs; choose another method"
        )
    head = model.layers[-1]

    def begin(key: Key) -> Params:
        key_model, key_policy = jax.random.split(key)
        params = model.init(key_model)
        d, _ = head_shape(model, params)
        return params | {GLOBAL: params[head], POLICY: dense_and_norm(key_policy, d, 2 * d)}

    def local(hyper: FedCPHyper, start: ModelTable, cohort: Cohort) -> Trained:
        context = jax.vmap(context_of)(tree.stacked(start)[head])
        trained = train(hyper, start, cohort, gated(model, hyper), work, start, context, frozen=(GLOBAL,))
        mean_head = jax.tree.map(lambda own, g: (own + g) / 2, trained.params[head], trained.params[GLOBAL])
        return trained._replace(params=trained.params | {GLOBAL: mean_head})

    def predict(params: Params, x: Array) -> Array:
        seen = see(model, params, x, None)
        scores = policy_scores(params[POLICY], seen.features * context_of(params[head])[None])
        return both_heads(params, head, seen.features, jax.nn.softmax(scores, axis=1)[:, 0])

    rounds = averaging(model, local, sharing=all_but((head,)), combine=combine, weighting=weighting, begin=begin)
    join = join_from_shared(rounds, lambda hyper, shared: {head: shared[GLOBAL]})
    return rounds._replace(predict=predict, join=join)


def gated(model: Model, hyper: FedCPHyper) -> Loss:
    """FedCP's loss; the client's own rows are the received model and the context (d,)."""
    head = model.layers[-1]

    def loss(params: Params, batch: Batch, key: Key, received: Params, context: Array) -> tuple[Array, Params]:
        key_net, key_gate = jax.random.split(key)
        seen, h_received = see(model, params, batch.x, key_net), see(model, received, batch.x, None).features
        scores = policy_scores(params[POLICY], seen.features * context[None])
        personal = jax.nn.softmax(scores + jax.random.gumbel(key_gate, scores.shape, jnp.float32), axis=1)[:, 0]
        value = batch_mean(model.loss(both_heads(params, head, seen.features, personal), batch.y), batch.weight)
        mmd = discrepancy(seen.features, h_received, batch.weight, relative=False)
        return value + hyper.lam * mmd, seen.params

    return loss


def context_of(head: Any) -> Array:
    """(d,) the sum of a head's rows, one per class, scaled to length 1."""
    total = head["kernel"].sum(1)
    return total / jnp.maximum(jnp.sqrt(jnp.square(total).sum()), 1e-12)


def policy_scores(policy: Params, h: Array) -> Array:
    """(batch, 2, d) scores of a feature's personal and global part: a dense layer, layer norm and ReLU."""
    return jax.nn.relu(normalised(policy, linear(policy, h), axis=1)).reshape(h.shape[0], 2, -1)


def both_heads(params: Params, head: str, h: Array, personal: Array) -> Array:
    """Logits: the client's head on the personal part of the features (batch, d), the global one on the rest."""
    return linear(params[head], personal * h) + linear(params[GLOBAL], (1 - personal) * h)
