"""pFedHN: a hypernetwork of the server generates each client's model from an embedding of the client.

Shamsian, Navon, Fetaya, Chechik: Personalized Federated Learning using Hypernetworks, ICML 2021,
https://arxiv.org/abs/2103.04628. Official code: https://github.com/AvivSham/pFedHN.

::

    theta_i <- h(v_i; phi)                           the server generates the model of client i
    w_i     <- local steps from theta_i              client i trains it and sends it back
    Delta_i <- theta_i - w_i
    phi     <- phi - step along (d theta_i / d phi)^T Delta_i, the mean over participants
    v_i     <- v_i - step along (d theta_i / d v_i)^T Delta_i

h is a chain of dense layers, with one more dense layer for each array of the model; a client never sees it, so it costs
no traffic however large it is. Most of its parameters are there: ``hidden_width`` times those of the model.

Differences from the paper: a round may have several participants; with one, it is the paper's. Their mean makes one
step of phi, where the official code makes one after each of them: with m participants, about m times the learning rate
goes as far. Momentum and weight decay of an embedding apply only in rounds in which its client takes part; in the
official code, always. The official code sets the width of embeddings by the number of clients, 1 + n / 4. Running
statistics of a network are not generated: each client keeps its own, as it keeps personal layers, which start equal for
all clients. A new client learns its embedding, with the hypernetwork fixed.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Natural, Positive
from fljax.client.features import dense, linear
from fljax.client.objectives import predictor, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Weighting, all_but_paths, client_weight, last_layers, method, reported, train
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
    Exchange,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Upload,
    Work,
)


@hyper
class PFedHNHyper(LocalHyper):
    server_lr: Scalar = number(
        0.01, "learning rate of the hypernetwork and the embeddings; 0.01 is for one participant per round", above=0
    )
    server_momentum: Scalar = number(0.9, "momentum of the server's steps", least=0, below=1)
    server_weight_decay: Scalar = number(1e-3, "weight decay of the hypernetwork and of the embeddings", least=0)
    server_max_norm: Scalar = number(50.0, "norm to which the server's gradient is clipped", above=0)


class Moving(NamedTuple):
    """Parameters that the server trains by SGD with momentum."""

    value: Params
    velocity: Params  # of the same shapes


class PFedHNClient(NamedTuple):
    """What belongs to one client: at the server, its embedding; at the client, what is not generated."""

    embedding: Moving  # (embedding_width,)
    own: Params  # personal layers and running statistics


@method(PFedHNHyper, "Shamsian et al., ICML 2021", "https://arxiv.org/abs/2103.04628", kind="personalised", sends=True)
def pfedhn(
    model: Model,
    work: Work,
    *,
    embedding_width: Positive = 13,
    hidden_width: Positive = 100,
    n_hidden: Positive = 3,
    n_personal: Natural = 0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """pFedHN: ``theta_i = h(v_i; phi)``; phi and v_i follow ``sum_i omega_i |theta_i - w_i|^2 / 2``, with w_i fixed.

    Args:
        embedding_width: length of v_i.
        hidden_width: width of the hypernetwork's layers.
        n_hidden: layers of that width after the first one.
        n_personal: last layers that are not generated, and stay with the client (pFedHN-PC: 1).
        weighting: of participants in the step of phi.

    Raises:
        ValueError: all layers are personal.
    """
    personal = last_layers(model, n_personal, "n_personal")
    if len(personal) == len(model.layers):
        raise ValueError(
            f"n_personal={n_personal}: the hypernetwork generates no layer of {model.layers}; choose "
            f"{' to '.join(map(str, sorted({0, len(model.layers) - 1})))}"
        )
    sharing = all_but_paths(lambda path: path[0] in (tree.STATISTICS, *personal))
    shapes, _ = sharing.split(jax.eval_shape(model.init, jax.random.key(0)))
    widths = (embedding_width, *[hidden_width] * (1 + n_hidden))

    def init(key: Key, hyper: PFedHNHyper, data: ClientData) -> State:
        key_network, key_clients, key_model = jax.random.split(key, 3)
        keys = jax.vmap(partial(jax.random.fold_in, key_clients))(jnp.arange(data.n_clients))
        embedding = jax.vmap(lambda key: jax.random.normal(key, (embedding_width,), jnp.float32))(keys)
        _, own = sharing.split(model.init(key_model))
        clients = PFedHNClient(at_rest(embedding), tree.broadcast(own, data.n_clients))
        return State(at_rest(hypernetwork(key_network, widths, shapes)), clients)

    def send(key: Key, hyper: PFedHNHyper, state: State, cohort: Cohort) -> Upload:
        theta = generated(state.server.value, state.clients.embedding.value, shapes)
        start = tree.own(sharing.join(theta, state.clients.own))
        trained = train(hyper, start, cohort, training_loss(model), work)
        sent, own = sharing.split(trained.params)
        weight = client_weight(weighting, cohort, trained.ok)
        return Upload(tree.own(theta), sent, weight, trained._replace(params=own))

    def receive(key: Key, hyper: PFedHNHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        phi, v, trained, takes_part = state.server, state.clients.embedding, upload.rest, upload.weight > 0
        share = upload.weight / jnp.maximum(upload.weight.sum(), 1e-12)
        start = upload.start.params
        delta = tree.subtract(start, tree.where(takes_part, upload.params, start))
        _, pull_back = jax.vjp(lambda phi, v: generated(phi, v, shapes), phi.value, v.value)
        g_phi, _ = pull_back(jax.tree.map(lambda d: (tree.along(share, d) * d).astype(d.dtype), delta))
        _, g_v = pull_back(delta)
        norm = tree.root(tree.squared_norm(g_phi) + jnp.vdot(share, tree.squared_norms(g_v)))
        clip = jnp.minimum(1.0, hyper.server_max_norm / jnp.maximum(norm, 1e-6))
        new_phi = tree.where(takes_part.any(), moved(hyper, phi, g_phi, clip), phi)
        new_v = tree.where(takes_part, moved(hyper, v, g_v, clip), v)
        own = tree.where(takes_part, trained.params, state.clients.own)
        return State(new_phi, PFedHNClient(new_v, own)), reported(trained, tree.size(shapes))

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        theta = generated(state.server.value, state.clients.embedding.value, shapes)
        return tree.own(sharing.join(theta, state.clients.own))

    def one_model(server: Moving) -> Params:
        return tree.first(generated(server.value, jnp.zeros((1, embedding_width), jnp.float32), shapes))

    exchange = Exchange(send, receive, one_model)
    return Algorithm(init, exchange.round, deploy, predictor(model), loss=model.loss, exchange=exchange)


def hypernetwork(key: Key, widths: tuple[int, ...], shapes: Params) -> dict[str, Any]:
    """The initial phi: hidden layers of these widths, and a layer for each array of a model of these shapes."""
    key_hidden, key_heads = jax.random.split(key)
    keys = jax.random.split(key_hidden, len(widths) - 1)
    hidden = {f"hidden{i}": dense(keys[i], *widths[i : i + 2]) for i in range(len(keys))}
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(key_heads, len(leaves))
    heads = [dense(key, widths[-1], leaf.size) for key, leaf in zip(keys, leaves, strict=True)]
    return hidden | {"heads": jax.tree.unflatten(structure, heads)}


def generated(phi: dict[str, Any], v: Array, shapes: Params) -> Stacked:
    """The models h(v_i; phi) of the embeddings v (clients, width)."""
    value = linear(phi["hidden0"], v)
    for i in range(1, len(phi) - 1):
        value = linear(phi[f"hidden{i}"], jax.nn.relu(value))
    return jax.tree.map(
        lambda leaf, head: linear(head, value).reshape(-1, *leaf.shape).astype(leaf.dtype), shapes, phi["heads"]
    )


def at_rest(value: Params) -> Moving:
    """Parameters that have not moved."""
    return Moving(value, jax.tree.map(jnp.zeros_like, value))


def moved(hyper: PFedHNHyper, old: Moving, gradient: Params, clip: Array) -> Moving:
    """After a step of SGD with momentum and weight decay along the clipped gradient, as in PyTorch."""
    velocity = jax.tree.map(
        lambda m, g, w: hyper.server_momentum * m + clip * g + hyper.server_weight_decay * w,
        old.velocity,
        gradient,
        old.value,
    )
    return Moving(jax.tree.map(lambda w, m: w - hyper.server_lr * m, old.value, velocity), velocity)
