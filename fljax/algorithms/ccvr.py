"""CCVR: FedAvg; before a test, the server trains the head on features drawn from a Gaussian of each class.

Luo, Chen, Hu, Zhang, Liang, Feng: No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID
Data, NeurIPS 2021, https://arxiv.org/abs/2106.05001.
The last layer suffers most from clients of different classes. So all clients send the mean and the covariance of their
features of each class under the trained model; the server combines them, draws as many virtual features of each class,
and trains the last layer on them. Rounds do not change: other methods' rounds are made of bricks, as in "ccvr+prox".

Differences from the paper: the head is calibrated before every test, not once at the end, and no later round starts
from it. New clients, whose moments the server does not know, get the model of the rounds. FL-bench and fluke divide a
client's covariance by its number of examples, and train for one epoch.

Traffic is that of the rounds. A calibration is in none of them: it comes with a test, and asks all clients, not the
participants. For d features and C classes each client sends ``C (1 + d + d (d + 1) / 2)`` floats for it: the number of
its examples of each class, their mean and their covariance.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax import tree
from fljax.choices import Natural, Positive
from fljax.client.each_example import of_each_example
from fljax.client.features import head_shape, linear, see
from fljax.client.local import train_clients
from fljax.client.objectives import batch_mean
from fljax.data.labels import check_classes
from fljax.keys import descend
from fljax.rounds import Combining, TunedHyper, Weighting, averaging, check_not_private, mean, method
from fljax.rounds.averaging import shared_part
from fljax.rounds.tuning import tuning_optimizer
from fljax.rounds.wrapping import with_halves
from fljax.types import Algorithm, Batch, ClientData, Examples, Key, Model, ModelTable, Params, State, Work


@method(TunedHyper, "Luo et al., NeurIPS 2021", "https://arxiv.org/abs/2106.05001")
def ccvr(
    model: Model,
    work: Work,
    *,
    n_virtual: Positive = 100,
    ft_epochs: Natural = 10,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """CCVR: ``theta`` by FedAvg; tests are of ``head' = argmin mean_c E l(head(z), c)`` with ``z ~ N(mu_c, Sigma_c)``.

    ``mu_c`` and ``Sigma_c`` are those of the last layer's inputs over all clients' examples of class c.

    Args:
        model: the network, whose last layer is dense.
        n_virtual: virtual features of each class.
        ft_epochs: epochs on them, with the clients' batch size and optimiser; 0 is FedAvg.
    """
    check_not_private(work, "clients of CCVR send moments of their features, which get no noise")
    head = model.layers[-1]
    # The moments, which are sums over clients, are sent beside the mean of the models.
    rounds = with_halves(averaging(model, work, weighting=weighting, combine=combine), sees="sum")

    def init(key: Key, hyper: TunedHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        state = rounds.init(key, hyper, data)
        head_shape(model, shared_part(state.server))
        return state

    def deploy(key: Key, hyper: TunedHyper, state: State, data: ClientData) -> ModelTable:
        theta, keys = shared_part(state.server), descend(key, np.arange(2))
        features, y = seen_examples(model, theta, data)
        virtual = virtual_features(keys[0], features, y, head_shape(model, theta)[1], n_virtual)
        tuning = work.for_epochs(ft_epochs)._replace(terms=())
        start = jax.tree.map(lambda leaf: tree.at_least_float32(leaf)[None], {head: theta[head]})
        trained = train_clients(keys[1:], start, virtual, on_features, tuning_optimizer(hyper, work), tuning)
        calibrated = tree.as_before(tree.first(trained.params), {head: theta[head]})
        return tree.everyone(theta | calibrated, data.n_clients)

    def on_features(params: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        return batch_mean(model.loss(linear(params[head], batch.x), batch.y), batch.weight), params

    def join(key: Key, hyper: TunedHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        return tree.everyone(shared_part(state.server), data.n_clients)

    return rounds._replace(init=init, deploy=deploy, join=join) if ft_epochs else rounds._replace(init=init, join=join)


def seen_examples(model: Model, theta: Params, data: ClientData) -> tuple[Array, Array]:
    """All clients' features (n, d) and classes (n,); 0 and -1 past a client's size, and if one is not finite."""

    def with_class(features: Array, y: Array, is_there: Array) -> tuple[Array, Array]:
        counts = is_there & jnp.isfinite(features).all()
        return jnp.where(counts[:, None], features, 0.0), jnp.where(counts, y, -1)

    models = tree.everyone(theta, data.n_clients)
    features, y = of_each_example(
        lambda params, batch: see(model, params, batch.x, None).features, models, data, 0.0, then=with_class
    )
    return features.reshape(-1, features.shape[-1]), y.reshape(-1)


def virtual_features(key: Key, features: Array, y: Array, n_classes: int, n_virtual: int) -> ClientData:
    """``n_virtual`` draws from ``N(mu_c, Sigma_c)`` for each class c that has examples, as one client's examples.

    A draw is ``mu_c + sum_j e_j (h_j - mu_c) / sqrt(n_c - 1)`` over the examples j of the class, with standard normal
    e_j: its covariance is ``Sigma_c``, of which no factor is needed. All draws of a class with one example are equal.
    """
    e = jax.random.normal(key, (n_virtual, len(y)), jnp.float32)

    def of_class(c: Array) -> tuple[Array, Array]:
        is_of_class = (y == c).astype(jnp.float32)
        n = is_of_class.sum()
        mu = tree.product(is_of_class, features) / jnp.maximum(n, 1.0)
        deviations = jnp.where(is_of_class[:, None] > 0, features - mu[None], 0.0)
        return mu[None] + tree.product(e, deviations) / jnp.sqrt(jnp.maximum(n - 1, 1.0)), n > 0

    classes = jnp.arange(n_classes, dtype=jnp.int32)
    draws, has_examples = lax.map(of_class, classes)
    label = jnp.repeat(classes, n_virtual)
    present = jnp.argsort(~has_examples[label], stable=True).astype(jnp.int32)  # the classes with examples first
    size = n_virtual * has_examples.sum(dtype=jnp.int32)
    return ClientData(Examples(draws.reshape(len(label), -1), label), present[None], size[None])
