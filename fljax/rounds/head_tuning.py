"""Fine-tuning of the last layer before a test, on features that are computed once instead of in every epoch."""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.interpreters.partial_eval import dce_jaxpr

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import Natural
from fljax.client.each_example import of_each_example
from fljax.client.features import see
from fljax.client.finetune import client_keys
from fljax.client.local import train_clients
from fljax.client.map import AtHome
from fljax.client.objectives import batch_mean, training_loss
from fljax.data.federation import as_inputs
from fljax.rounds.averaging import Deploy
from fljax.rounds.tuning import TunedHyper, tuned, tuning_optimizer
from fljax.types import Batch, ClientData, Examples, Key, Model, ModelTable, Params, State, Work

MOST_FEATURES = 1 << 24
"""Largest number of stored feature values of all clients; beyond it, each step computes the features of its batch."""


@checked_kinds
def head_tuned(deploy: Deploy, model: Model, work: Work, ft_epochs: Natural) -> Deploy:
    """`tuned` for the last layer only: the same steps on the same batches.

    An example's features are the same in every epoch, so they are computed once; not if the body is random (dropout) or
    keeps running statistics, or if the outputs depend on it also past the last layer. It is assumed that an example's
    features do not depend on the other examples of its batch.
    """
    body, loss = model.layers[:-1], training_loss(model)
    step_by_step = tuned(deploy, loss, work, ft_epochs, body)
    if not ft_epochs:
        return step_by_step

    def as_in_training(params: Params, batch: Batch) -> Array:
        return see(model, params, batch.x, _any_key()).features

    def deploy_tuned(key: Key, hyper: TunedHyper, state: State, data: ClientData) -> ModelTable:
        if isinstance(data.pool, AtHome):
            return step_by_step(key, hyper, state, data)
        initial = deploy(key, hyper, state, data)
        params, x = tree.first(initial.params), as_inputs(data.pool.x[:1])
        width = feature_width(model, params, x)
        if width is None or math.prod(data.index.shape) * width > MOST_FEATURES:
            return step_by_step(key, hyper, state, data)
        features = of_each_example(as_in_training, initial, data, 0.0)
        places = jnp.arange(data.index.shape[1], dtype=jnp.int32)
        indexed = data._replace(
            pool=Examples(places, jnp.zeros_like(places)), index=jnp.broadcast_to(places, data.index.shape)
        )

        def on_features(head: Params, batch: Batch, key: Key, features: Array, y: Array) -> tuple[Array, Params]:
            # The body's output for the empty input is not used, and so not computed.
            batch_features = features[batch.x]
            empty_input = jnp.zeros((batch_features.shape[0], *x.shape[1:]), x.dtype)
            logits = see(model, params | head, empty_input, key, lambda h: batch_features.astype(h.dtype)).logits
            return batch_mean(model.loss(logits, y[batch.x]), batch.weight), head

        optimizer = tuning_optimizer(hyper, work)
        ft_work, models = work.for_epochs(ft_epochs)._replace(terms=()), tree.stacked(initial)
        start = tree.own({model.layers[-1]: models[model.layers[-1]]})
        trained = train_clients(
            client_keys(key, data), start, indexed, on_features, optimizer, ft_work, features, data.pool.y[data.index]
        )
        return tree.own(models | trained.params)

    return deploy_tuned


@checked_kinds
def layers_tuned(deploy: Deploy, model: Model, work: Work, ft_epochs: Natural, layers: tuple[str, ...]) -> Deploy:
    """`tuned` on the model's loss for the named layers, by `head_tuned` if this is the last layer only.

    Raises:
        ValueError: ``ft_epochs`` is negative, or the model lacks one of the layers.
    """
    tree.check_layers(layers, model.layers)
    if tuple(layers) == model.layers[-1:]:
        return head_tuned(deploy, model, work, ft_epochs)
    frozen = tuple(name for name in model.layers if name not in layers)
    return tuned(deploy, training_loss(model), work, ft_epochs, frozen)


def feature_width(model: Model, params: Params, x: Array) -> int | None:
    """Number of input features of the last layer.

    None if they are not known, not the same at every call, or if outputs also depend on other parts of the body.
    """
    if tree.STATISTICS in params:
        return None
    try:
        jaxpr = jax.make_jaxpr(lambda key, params, x: see(model, params, x, key).features)(_any_key(), params, x)
    except ValueError:  # not a flax module with a last layer of that name
        return None
    (features,) = jaxpr.out_avals

    def outputs(x: Array, h: Array, params: Params) -> Array:
        return see(model, params, x, _any_key(), lambda _: h).logits

    head_jaxpr = jax.make_jaxpr(outputs)(x, jnp.zeros(features.shape, features.dtype), params)
    is_random, goes_past = (dce_jaxpr(traced.jaxpr, [True])[1][0] for traced in (jaxpr, head_jaxpr))
    return None if is_random or goes_past or len(features.shape) != 2 else features.shape[1]


def _any_key() -> Key:
    """Training mode, for a network without randomness."""
    return jax.random.key(0)
