"""FedGen: the server trains a generator of features with the clients' heads, and clients also train on its features.

Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021,
https://arxiv.org/abs/2105.10056. Official code: https://github.com/zhuangdizhu/FedGen.
In addition to FedAvg, the server trains a generator of features, given a class and noise, so that the mean of the
participants' logits predicts the class. Each client adds to its loss the loss of its head on generated features, whose
classes are drawn by the label counts of all clients.

Differences from the paper: noise is uniform in [0, 1), and clients are weighted by size, as in the authors' code and
PFLlib. The generator always normalises by the batch that it draws. The averaged head's logits stand for the mean of the
logits, to which they are equal where heads are averaged. Label counts are sent once, with the first models. The
authors' code also has the following, which are neither in the paper's algorithm nor here: a term for diverse features,
a second term in the clients' loss, weights that fall over the rounds, the mean of the heads' losses weighted by the
clients' shares of the class, classes drawn uniformly, and clients without the generator in the first round.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.features import dense, head_shape, linear, normalised
from fljax.client.local import sgd_step
from fljax.client.objectives import Loss, training_loss
from fljax.data.federation import class_histogram
from fljax.data.labels import check_classes
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, in_first_round, mean, method, not_independent, traffic, train
from fljax.rounds.averaging import ReceivedModels, shared_part
from fljax.rounds.uplink.private import check_not_private
from fljax.rounds.wrapping import halves_of, inside, within_server
from fljax.server.optimizer import EPS_ROOT
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
    Upload,
    Work,
)

FEWEST = 8
"""Number of generated features instead of a batch of one."""


@hyper
class FedGenHyper(LocalHyper):
    alpha: Scalar = number(1.0, "weight of the loss on generated features; 0 is FedAvg", least=0)
    generator_lr: Scalar = number(0.005, "learning rate of the generator's Adam; 0 keeps the generator", least=0)


class FedGenServer(NamedTuple):
    """The server's state."""

    own: Any  # FedAvg's
    generator: Params
    moments: Any  # state of the generator's optimiser
    prior: Array  # (classes,) number of training examples of each class, over all clients


@method(FedGenHyper, "Zhu et al., ICML 2021", "https://arxiv.org/abs/2105.10056", kind="one model")
def fedgen(
    model: Model,
    work: Work,
    *,
    noise_width: Positive = 32,
    generator_width: Positive = 256,
    server_steps: Positive = 50,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedGen: ``F_i = mean_x l(w(x), y) + alpha mean_y' l(head(G(y', eps)), y')``; ``w <- mean of w_i``; then G's steps
    along ``mean_y' l(head(G(y', eps)), y')`` with the new head.

    y' are drawn by the class frequencies over all clients, as many as a batch has examples.

    Args:
        model: the network, whose last layer is dense.
        noise_width: length of eps.
        generator_width: width of the generator's hidden layer.
        server_steps: steps of the generator per round, each on ``work.batch_size`` features.
    """
    n_features = work.batch_size
    if n_features is None:
        raise ValueError(
            "fedgen: batch_size=None does not set the number of generated features per step; give a batch size"
        )
    check_not_private(work, "clients of FedGen send their label counts, which get no noise")
    head = model.layers[-1]

    def local(hyper_and_server: tuple[FedGenHyper, FedGenServer], start: ModelTable, cohort: Cohort) -> Trained:
        # The skeleton passes its hyperparameters on; here they come with the server's state, for its generator.
        hyper, server = hyper_and_server
        return train(hyper, start, cohort, with_generated_loss(model, hyper, server), work)

    fedavg = averaging(model, local, combine=combine, weighting=weighting)
    halves = halves_of(fedavg)

    def init(key: Key, hyper: FedGenHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        fedavg_state = fedavg.init(key, hyper, data).server
        d, n_classes = head_shape(model, shared_part(fedavg_state))
        generator = generator_of(jax.random.fold_in(key, 1), noise_width, generator_width, d, n_classes)
        prior = class_histogram(data, n_classes).sum(0).astype(jnp.float32)
        return State(FedGenServer(fedavg_state, generator, optax.adam(0.0).init(generator), prior), ())

    def send(key: Key, hyper: FedGenHyper, state: State, cohort: Cohort) -> Upload:
        server = state.server.server if isinstance(state.server, ReceivedModels) else state.server
        return halves.send(key, (hyper, server), within_server(state), cohort)

    def receive(key: Key, hyper: FedGenHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        new_state, metrics = halves.receive(key, hyper, within_server(state), cohort, upload)
        server = state.server._replace(own=new_state.server)
        n_parameters = tree.size(shared_part(new_state.server))
        # Label counts: up, the client's own; down, the sums over all clients.
        counts = in_first_round(cohort, server.prior.shape[0])
        metrics |= traffic(n_parameters + counts, n_parameters + tree.size(server.generator) + counts)
        return State(with_trained_generator(jax.random.fold_in(key, 1), hyper, server), ()), metrics

    def with_trained_generator(key: Key, hyper: FedGenHyper, server: FedGenServer) -> FedGenServer:
        """The server's state after the generator's steps of the round."""
        adam, head_params = optax.adam(hyper.generator_lr, eps_root=EPS_ROOT), shared_part(server.own)[head]

        def loss(generator: Params, _: None, key: Key) -> tuple[Array, Params]:
            return on_generated(generator, key, model, head_params, server.prior, n_features), generator

        def step(carry: tuple[Params, Any], key: Key) -> tuple[tuple[Params, Any], None]:
            return sgd_step(loss, adam, *carry, None, key)[1:], None

        carry = server.generator, server.moments
        (generator, moments), _ = lax.scan(step, carry, jax.random.split(key, server_steps))
        return server._replace(generator=generator, moments=moments)

    # Class frequencies are those of all clients, so no update depends on a single client's data only.
    return not_independent(inside(fedavg, init, within_server, send=send, receive=receive))


def with_generated_loss(model: Model, hyper: FedGenHyper, server: FedGenServer) -> Loss:
    """A client's loss: the training loss plus alpha times the head's loss on generated features."""

    def loss(params: Params, batch: Batch, key: Key, *own: Any) -> tuple[Array, Params]:
        key_net, key_drawn = jax.random.split(key)
        value, updated = training_loss(model)(params, batch, key_net)
        n, head = batch.weight.shape[0], params[model.layers[-1]]
        return value + hyper.alpha * on_generated(server.generator, key_drawn, model, head, server.prior, n), updated

    return loss


def on_generated(generator: Params, key: Key, model: Model, head: Params, prior: Array, n: int) -> Array:
    """Mean loss of a head on ``n`` generated features (`FEWEST` if n is 1), with classes drawn by ``prior`` counts."""
    key_class, key_noise = jax.random.split(key)
    n = n if n > 1 else FEWEST  # normalised over one, every feature would be the same
    y = jax.random.categorical(key_class, jnp.log(prior), shape=(n,)).astype(jnp.int32)
    head = jax.tree.map(tree.at_least_float32, head)
    features = generated(generator, key_noise, jax.nn.one_hot(y, prior.shape[0], dtype=jnp.float32))
    return model.loss(linear(head, features.astype(head["kernel"].dtype)), y).mean()


def generated(generator: Params, key: Key, y: Array) -> Array:
    """(batch, d) features of the classes y (batch, classes), one-hot: dense, normalised over the batch, ReLU, dense."""
    noise_width = generator["first"].shape[0] - y.shape[1]
    eps = jax.random.uniform(key, (y.shape[0], noise_width), jnp.float32)
    hidden = jnp.concatenate([eps, y], axis=1) @ generator["first"]
    return linear(generator["last"], jax.nn.relu(normalised(generator, hidden, axis=0)))


def generator_of(key: Key, noise_width: int, width: int, d: int, n_classes: int) -> dict[str, Any]:
    """The initial parameters of the generator, see `generated`."""
    key_first, key_last = jax.random.split(key)
    ones = jnp.ones(width, jnp.float32)
    first = dense(key_first, noise_width + n_classes, width)["kernel"]  # no bias: the normalisation would remove it
    return {"first": first, "scale": ones, "shift": jnp.zeros_like(ones), "last": dense(key_last, width, d)}
