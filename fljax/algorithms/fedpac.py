"""FedPAC: clients align the features of each class, and the server mixes all heads into one head per client.

Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR 2023,
https://arxiv.org/abs/2306.11867. Official code: https://github.com/JianXu95/FedPAC.
A client fits the head, then trains the body with a penalty that holds features near their class prototypes. The server
averages bodies and prototypes, and sends each client the convex combination of heads with the least expected loss on
the client's data, estimated from the distances between the clients' class features and their variances.

Differences from the paper: none known. The official code fits the head with its own learning rate, 0.1, drops weights
below 0.001 from a combination, cuts small eigenvalues of its quadratic form, and holds the features of a class that no
client has sent near the client's own mean. PFLlib's code applies a client's weight to the head of another client,
weights all clients' prototypes equally, and forgets the prototype of a class that no client sends in a round; here it
stays. Clients are tested with the model from which they would start the next round.
"""

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Natural
from fljax.client.class_means import class_sums, feature_sums, prototype_loss
from fljax.client.features import head_shape, see
from fljax.client.objectives import predictor, training_loss
from fljax.client.steps import whole_epochs
from fljax.data.labels import check_classes
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Weighting, check_not_private, client_weight, method, reported
from fljax.rounds.joining import train_new_clients
from fljax.rounds.phases import HEAD_PHASE, Phase, train_in_phases
from fljax.rounds.prototypes import average_prototypes, no_prototypes
from fljax.rounds.sharing import body_of
from fljax.server.aggregate import mix, weighted_mean
from fljax.server.simplex import simplex_weights
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Trained,
    Work,
)


@hyper
class FedPACHyper(LocalHyper):
    lam: Scalar = number(1.0, "lambda: weight of the mean square between features and prototypes", least=0)


@method(FedPACHyper, "Xu et al., ICLR 2023", "https://arxiv.org/abs/2306.11867", kind="personalised")
def fedpac(model: Model, work: Work, *, head_epochs: Natural = 1, weighting: Weighting = "size") -> Algorithm:
    """FedPAC: ``body_i = argmin F_i + lambda mean_x |h(x) - C_{y(x)}|^2 / d``; ``head_i <- sum_j alpha_ij head_j``.

    ``alpha_i = argmin_a |H_i - sum_j a_j H_j|^2 + sum_j a_j^2 V_j`` over the simplex; ``H_i = (p_ic mu_ic)_c``, by the
    shares and mean features of client i's classes under the received body; ``V_i = (mean_x |h(x)|^2 - |H_i|^2) / n_i``.

    Args:
        model: the network, whose last layer is dense.
        work: local work; ``epochs`` are those on the body.
        head_epochs: epochs on the head, before the body.
        weighting: of the clients' bodies, and of their prototypes of a class: "size" or "uniform".

    Raises:
        ValueError: the network is a head without a body.
    """
    check_not_private(work, "clients of FedPAC send means of their features, which get no noise")
    body, head, loss = model.layers[:-1], model.layers[-1:], training_loss(model)
    sharing, epochs = body_of(model, "FedPAC"), whole_epochs(work, "FedPAC")

    def init(key: Key, hyper: FedPACHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        params = model.init(key)
        d, n_classes = head_shape(model, params)
        shared, own = sharing.split(params)
        return State({"body": shared, "prototypes": no_prototypes(n_classes, d)}, tree.broadcast(own, data.n_clients))

    def round(key: Key, hyper: FedPACHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta, prototypes = state.server["body"], state.server["prototypes"]
        n_classes, d = prototypes["mean"].shape
        initial = sharing.held(theta, state.clients, cohort.n_clients)
        class_means, variance = estimates(model, initial, cohort.data, n_classes)
        trained = local(hyper, initial, prototypes, cohort)
        sums = feature_sums(model, trained.params, cohort.data, n_classes)

        bodies, heads = sharing.split(trained.params)
        server = {
            "body": weighted_mean(bodies, client_weight(weighting, cohort, trained.ok), theta),
            "prototypes": average_prototypes(prototypes, sums, weighting, cohort, trained.ok),
        }
        counts = cohort.active & trained.ok
        alpha = simplex_weights(class_means, variance, counts)
        new_heads = tree.where(counts, mix(alpha, heads), state.clients)

        # In addition to its model, a client sends H_i, V_i, its classes' prototypes and their counts.
        n = tree.size(theta) + tree.row_size(heads)
        n_shown = (sums.count > 0).sum(1).astype(jnp.float32)
        up, down = n + n_shown * (2 * d + 1.0) + 1, n + server["prototypes"]["known"].sum() * d
        return State(server, new_heads), reported(trained, up, down)

    def local(hyper: FedPACHyper, initial: ModelTable, prototypes: Params, cohort: Cohort) -> Trained:
        head_phase = Phase(body, head_epochs, loss, drawn_from=HEAD_PHASE)
        prototype_rows = tree.everyone(prototypes, cohort.n_clients)
        body_phase = Phase(head, epochs, prototype_loss(model, hyper.lam), (prototype_rows,))
        return train_in_phases(hyper, initial, cohort, work, (head_phase, body_phase))

    def deploy(key: Key, hyper: FedPACHyper, state: State, data: ClientData) -> ModelTable:
        return sharing.held(state.server["body"], state.clients, data.n_clients)

    def join(key: Key, hyper: FedPACHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        """Each new client fits the mean of all heads to its own data; heads are not mixed."""
        n_clients, theta = data.n_clients, state.server["body"]

        def train(heads: Stacked, cohort: Cohort) -> Trained:
            trained = local(hyper, sharing.held(theta, heads, n_clients), state.server["prototypes"], cohort)
            return trained._replace(params=sharing.split(trained.params)[1])

        mean_head = weighted_mean(state.clients, jnp.ones(tree.n_rows(state.clients), jnp.float32))
        heads = train_new_clients(key, tree.broadcast(mean_head, n_clients), data, n_rounds, train)
        return sharing.held(theta, heads, n_clients)

    return Algorithm(init, round, deploy, predictor(model), join, model.loss)


def estimates(model: Model, models: ModelTable, data: ClientData, n_classes: int) -> tuple[Array, Array]:
    """H_i (clients, classes * d), the features' means by class, and V_i (clients,), the variance of that estimate."""

    def with_square(params: Params, x: Array) -> Array:
        h = see(model, params, x, None).features
        return jnp.concatenate([h, jnp.square(h).sum(1, keepdims=True)], axis=1)

    sums = class_sums(with_square, models, data, n_classes)
    n = jnp.maximum(data.size, 1).astype(jnp.float32)
    class_means = (sums.total[..., :-1] / n[:, None, None]).reshape(data.n_clients, -1)  # p_c mu_c = sum_{x of c} h / n
    return class_means, jnp.maximum(sums.total[..., -1].sum(1) / n - jnp.square(class_means).sum(1), 0.0) / n
