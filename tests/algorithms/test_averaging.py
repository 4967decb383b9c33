"""Methods of one averaged model: what their servers and clients add to FedAvg, and what they are in the limit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax
from fljax import tree
from fljax.algorithms import ALGORITHMS
from fljax.algorithms.ditto import ditto
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedavg_ft import fedavg_ft
from fljax.algorithms.feddane import feddane
from fljax.algorithms.feddist import feddist
from fljax.algorithms.feddws import feddws
from fljax.algorithms.fedopt import fedopt
from fljax.algorithms.fedprox import fedprox
from fljax.algorithms.perfedavg import after_step, perfedavg
from fljax.client import proximal, training_loss
from fljax.client.finetune import adapt
from fljax.client.gradient import client_gradients
from fljax.client.minibatches import shuffled
from fljax.client.objectives import shifted
from fljax.data.federation import minibatch
from fljax.data.synthetic import linear_groups
from fljax.models import cnn
from fljax.numbers import numbers_of
from fljax.rounds.averaging import shared_part
from fljax.run.one_round import split_key
from fljax.types import Batch, State, Work
from tests import oracle
from tests.algorithms.round_by_round import jitted, simulate, written_out
from tests.algorithms.table import CASES
from tests.algorithms.test_oracles import LR, WORK, assert_models, epoch_orders, reference, run  # noqa: F401
from tests.oracle import as_float64, examples_of
from tests.slow import slow

ROUNDS = 3


def server_of(algorithm, hyper, federation, key, n_rounds=ROUNDS, participation=0.5):
    return simulate(algorithm, hyper, federation, key, n_rounds, participation=participation)[0].server


def test_feddist_all_the_way_is_fedavg_of_equal_weights(key, model, work, federation):
    actual = server_of(feddist(model, work), fljax.feddist.Hyper(lr=0.1, step=1.0), federation, key)
    expected = server_of(fedavg(model, work, weighting="uniform"), fljax.fedavg.Hyper(lr=0.1), federation, key)
    chex.assert_trees_all_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_feddws_all_the_way_is_fedavg(key, model, work, federation):
    actual = server_of(feddws(model, work), fljax.feddws.Hyper(lr=0.1, step=1.0), federation, key)
    expected = server_of(fedavg(model, work), fljax.fedavg.Hyper(lr=0.1), federation, key)
    chex.assert_trees_all_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_feddws_of_equal_sizes_is_feddist(key, model, work, federation):
    size = federation.train.size
    federation = federation._replace(train=federation.train._replace(size=jnp.full_like(size, size.min())))
    actual = server_of(feddws(model, work), fljax.feddws.Hyper(lr=0.1), federation, key)
    chex.assert_trees_all_close(
        actual, server_of(feddist(model, work), fljax.feddist.Hyper(lr=0.1), federation, key), rtol=1e-6, atol=1e-6
    )


def test_literal_feddws_steps_by_one_over_the_participants(key, model, work, federation):
    literal = server_of(feddws(model, work, literal=True), fljax.feddws.Hyper(lr=0.1, step=1.0), federation, key)
    with_a_quarter = server_of(
        feddws(model, work), fljax.feddws.Hyper(lr=0.1, step=0.25), federation, key
    )  # 4 of 8 take part
    chex.assert_trees_all_close(literal, with_a_quarter, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_feddane_of_identical_clients_is_fedprox(key, model):
    federation = linear_groups(4, 1, examples=24)
    identical_clients = federation._replace(
        train=federation.train._replace(index=jnp.tile(federation.train.index[:1], (4, 1)))
    )
    work = Work(2, 8)
    actual = server_of(feddane(model, work), fljax.feddane.Hyper(lr=0.1, mu=0.4), identical_clients, key)
    expected = server_of(fedprox(model, work), fljax.fedprox.Hyper(lr=0.1, mu=0.4), identical_clients, key)
    # gbar - g_i is rounding error here, added over 3 rounds.
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_feddane_equals_numpy(key, model, federation):
    work, theta = Work(3, 64), as_float64(model.init(split_key(key).init))
    data, sizes = [examples_of(federation.train, i) for i in range(8)], np.asarray(federation.train.size, float)
    for _ in range(ROUNDS):
        gradients = [oracle.gradient(theta, *d) for d in data]
        mean, sent = oracle.average(gradients, sizes), []
        for (x, y), own_gradient in zip(data, gradients, strict=True):
            w = theta
            for _ in range(work.epochs):
                g = oracle.combine(
                    lambda g, gbar, own_gradient, w, t: g + gbar - own_gradient + 0.3 * (w - t),
                    *(oracle.gradient(w, x, y), mean, own_gradient, w, theta),
                )
                w = oracle.combine(lambda w, g: w - 0.2 * g, w, g)
            sent.append(w)
        theta = oracle.average(sent, sizes)
    actual = server_of(feddane(model, work), fljax.feddane.Hyper(lr=0.2, mu=0.3), federation, key, participation=1.0)
    chex.assert_trees_all_close(actual, theta, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_client_of_feddane_stays_where_everyones_gradient_is_zero(key, model, federation):
    theta = model.init(key)
    x, y = examples_of(federation.train, 0, np.float32)
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(y)))
    models = tree.everyone(theta, 8)
    gradients = client_gradients(jax.random.split(key, 8), models, federation.train, training_loss(model), 8).params
    shift = jax.tree.map(lambda g: -g[0], gradients)  # gbar = 0
    loss = proximal(shifted(training_loss(model)), 0.7)
    gradient = jax.jit(jax.grad(lambda w: loss(w, batch, key, theta, shift)[0]))(theta)
    chex.assert_trees_all_close(gradient, jax.tree.map(jnp.zeros_like, theta), atol=1e-6)


def meta_gradient(w, a, parts):
    """(I - a H_3(w)) g_2(w - a g_1(w)) on the parts of a batch, the Hessian by a difference, and without one of two."""
    adapted_w = oracle.combine(lambda w, g: w - a * g, w, oracle.gradient(w, *parts[0]))
    gradient = oracle.gradient(adapted_w, *(parts[1] if len(parts[1][1]) else parts[0]))
    if len(parts) == 3:
        gradient_up, gradient_down = (
            oracle.gradient(oracle.combine(lambda w, v, s=s: w + s * v, w, gradient), *parts[2]) for s in (1e-6, -1e-6)
        )
        gradient = oracle.combine(lambda g, u, d: g - a * (u - d) / 2e-6, gradient, gradient_up, gradient_down)
    return gradient, adapted_w


@pytest.mark.parametrize("variant", ["first_order", *slow("hessian_free")])
def test_perfedavg_in_numpy(key, model, federation, reference, variant):  # noqa: F811
    """Meta batches of as many batches as there are parts; tested after three steps of adaptation."""
    theta, a, n_parts = reference.start, 0.1, 2 if variant == "first_order" else 3
    batch, data = WORK.batch_size, zip(reference.index, reference.size, strict=True)
    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            w, size = theta, int(reference.size[i])
            for order in np.asarray(epoch_orders(k, reference.index[i], size, WORK.epochs))[:, :size]:
                for first_row in range(0, size, n_parts * batch):
                    rows = order[first_row : first_row + n_parts * batch]
                    parts = [(reference.x[rows[j::n_parts]], reference.y[rows[j::n_parts]]) for j in range(n_parts)]
                    w = oracle.combine(lambda w, g: w - LR * g, w, meta_gradient(w, a, parts)[0])
            sent.append(w)
        theta = oracle.average(sent, [size for *_, size in cohort])
    expected = []
    for i, (index, size) in enumerate(data):
        client_key, batches = jax.random.fold_in(reference.keys.deploy, i), []
        while len(batches) < 3:
            order = np.asarray(
                shuffled(jax.random.fold_in(client_key, len(batches) // -(-size // batch)), index, size)
            )[:size]
            batches += [(reference.x[rows], reference.y[rows]) for rows in np.split(order, range(batch, size, batch))]
        expected.append(oracle.local_sgd(theta, batches[:3], a))
    algorithm = perfedavg(model, WORK, variant=variant, adapt_steps=3)
    assert_models(run(algorithm, fljax.perfedavg.Hyper(lr=LR, inner_lr=a), federation, key)[0], expected)


@pytest.mark.parametrize("variant", ["first_order", "hessian_free"])
def test_perfedavg_on_one_example_adapts_and_steps_on_it(key, model, federation, variant):
    theta, rows = as_float64(model.init(key)), np.array([3])
    example = (np.asarray(federation.train.pool.x, np.float64)[rows], np.asarray(federation.train.pool.y)[rows])
    batch = minibatch(federation.train.pool, jnp.array([3, 0, 0, 0, 0, 0]), jnp.array([1.0, 0, 0, 0, 0, 0]))
    loss = after_step(training_loss(model), 0.1, 2 if variant == "first_order" else 3)
    gradient = jax.jit(jax.grad(lambda w: loss(w, batch, key)[0]))(jax.tree.map(jnp.float32, theta))
    adapted_theta = oracle.local_sgd(theta, [example], 0.1)
    expected = jax.tree.map(
        lambda w, next_w: w - next_w, adapted_theta, oracle.local_sgd(adapted_theta, [example], 1.0)
    )
    chex.assert_trees_all_close(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n_parts", [2, 3])
def test_the_meta_gradient_equals_numpy(key, model, federation, n_parts):
    params, a = as_float64(model.init(key)), 0.3
    x, y = examples_of(federation.train, 1)
    x, y = x[:15], y[:15]
    parts = [(x[k::n_parts], y[k::n_parts]) for k in range(n_parts)]
    expected, adapted_w = meta_gradient(params, a, parts)
    batch = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.ones(15))
    loss = after_step(training_loss(model), a, n_parts)
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    value, gradient = jax.jit(jax.value_and_grad(lambda w: loss(w, batch, key)[0]))(start)
    chex.assert_trees_all_close(gradient, expected, rtol=1e-4, atol=1e-5)  # float32 through two gradients
    np.testing.assert_allclose(value, oracle.training_loss(adapted_w, *parts[1]), rtol=1e-5)


@pytest.mark.slow
def test_the_hessian_goes_through_convolutions(key):
    model = cnn((6, 6, 1), 3, (2, 3), 3, "SAME", "each", (5,), (0.0, 0.0))
    batch = Batch(jax.random.normal(key, (9, 6, 6, 1)), jnp.arange(9) % 3, jnp.ones(9))
    params = model.init(key)

    @jax.jit
    def gradient(w, some_batch):
        return jax.grad(lambda w: training_loss(model)(w, some_batch, key)[0])(w)

    batch_1, batch_2, batch_3 = (jax.tree.map(lambda leaf, k=k: leaf[k::3], batch) for k in range(3))
    g = gradient(jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient(params, batch_1)), batch_2)
    gradient_up, gradient_down = (
        gradient(jax.tree.map(lambda w, v, s=s: w + s * v, params, g), batch_3) for s in (1e-3, -1e-3)
    )
    expected = jax.tree.map(
        lambda g, gradient_up, gradient_down: g - 0.1 * (gradient_up - gradient_down) / 2e-3,
        g,
        gradient_up,
        gradient_down,
    )
    loss = after_step(training_loss(model), 0.1, 3)
    actual = jax.jit(jax.grad(lambda w: loss(w, batch, key)[0]))(params)
    # A difference of float32 gradients over 2e-3 is good to about 1e-4.
    chex.assert_trees_all_close(actual, expected, rtol=1e-3, atol=1e-4)
    assert float(jnp.abs(tree.flatten(tree.broadcast(tree.subtract(actual, g), 1))).max()) > 1e-2  # the Hessian matters


def test_adapting_takes_exactly_so_many_steps(key, model, federation):
    theta = model.init(key)
    models = adapt(
        key, tree.everyone(theta, 8), federation.train, training_loss(model), optax.sgd(0.2), 4, batch_size=64
    ).params
    for i in range(8):  # full batches: four steps of gradient descent
        expected = oracle.local_sgd(as_float64(theta), [examples_of(federation.train, i)] * 4, 0.2)
        chex.assert_trees_all_close(jax.tree.map(lambda leaf, i=i: leaf[i], models), expected, rtol=1e-5, atol=1e-5)


def test_fine_tuning_for_no_epoch_is_fedavg(key, model, work, federation):
    fine_tuned, plain_fedavg = fedavg_ft(model, work, ft_epochs=0), fedavg(model, work, weighting="size")
    assert fine_tuned._replace(about=plain_fedavg.about) == plain_fedavg


@pytest.mark.parametrize(("ft_layers", "moves"), [("head", {"fc2"}), ("all", {"fc1", "fc2"})])
def test_fine_tuning_moves_the_layers_it_is_told_to(key, model, work, federation, ft_layers, moves):
    algorithm, plain_fedavg = fedavg_ft(model, work, ft_epochs=2, ft_layers=ft_layers), fedavg(model, work)
    assert (algorithm.init, algorithm.round) == (plain_fedavg.init, plain_fedavg.round)
    hyper = fljax.fedavg_ft.Hyper(lr=0.1, ft_lr=0.3)
    state = jitted(algorithm.init)(key, hyper, federation.train)
    deployed = jitted(algorithm.deploy)(key, hyper, state, federation.train).params
    received = tree.broadcast(state.server, 8)
    changed_layers = {n for n in deployed if not np.array_equal(deployed[n]["kernel"], received[n]["kernel"])}
    assert changed_layers == moves


@pytest.mark.slow
def test_fine_tuning_helps_where_clients_disagree(key, model):
    federation = linear_groups(8, 2, examples=60)
    fine_tuned_metrics = simulate(
        fedavg_ft(model, Work(2, 8), ft_epochs=5), fljax.fedavg_ft.Hyper(lr=0.2), federation, key, 5
    )[1]
    fedavg_metrics = simulate(fedavg(model, Work(2, 8)), fljax.fedavg.Hyper(lr=0.2), federation, key, 5)[1]
    assert fine_tuned_metrics["accuracy_macro"][-1] > fedavg_metrics["accuracy_macro"][-1] + 0.2


@pytest.mark.slow
def test_a_full_step_of_the_server_is_fedavg(key, model, work, federation):
    actual = server_of(
        fedopt(model, work, server_optimizer="sgd"), fljax.fedopt.Hyper(lr=0.1, server_lr=1.0), federation, key
    )
    expected = server_of(fedavg(model, work), fljax.fedavg.Hyper(lr=0.1), federation, key)
    chex.assert_trees_all_close(shared_part(actual), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["momentum", "adagrad", "adam", "yogi"])
def test_server_optimizers_equal_numpy(key, model, federation, name):
    # One full-batch local step of length 1: the pseudo-gradient is the weighted mean gradient.
    lr, beta1, beta2, tau = 0.3, 0.8, 0.95, 1e-2
    data, sizes = [examples_of(federation.train, i) for i in range(8)], np.asarray(federation.train.size, float)
    theta = as_float64(model.init(split_key(key).init))
    m = oracle.combine(lambda w: np.zeros_like(w) + (1e-6 if name == "yogi" else 0), theta)
    v = oracle.combine(lambda w: np.zeros_like(w) + (1e-6 if name == "yogi" else 0), theta)
    for t in range(1, ROUNDS + 1):
        g = oracle.average([oracle.gradient(theta, *d) for d in data], sizes)
        if name == "momentum":
            m = oracle.combine(lambda m, g: beta1 * m + g, m, g)
            theta = oracle.combine(lambda w, m: w - lr * m, theta, m)
            continue
        if name == "adagrad":
            v = oracle.combine(lambda v, g: v + g**2, v, g)
            theta = oracle.combine(lambda w, g, v: w - lr * g / np.sqrt(tau**2 + v), theta, g, v)
            continue
        m = oracle.combine(lambda m, g: beta1 * m + (1 - beta1) * g, m, g)
        if name == "adam":
            v = oracle.combine(lambda v, g: beta2 * v + (1 - beta2) * g**2, v, g)
        else:
            v = oracle.combine(lambda v, g: v - (1 - beta2) * np.sign(v - g**2) * g**2, v, g)
        theta = oracle.combine(
            lambda w, m, v, t=t: w - lr * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + tau), theta, m, v
        )
    hyper = fljax.fedopt.Hyper(lr=1.0, server_lr=lr, beta1=beta1, beta2=beta2, tau=tau)
    algorithm = fedopt(model, Work(1, 64), server_optimizer=name)
    actual = server_of(algorithm, hyper, federation, key, participation=1.0).shared
    # Adam divides by roots of tiny numbers, which magnifies rounding.
    chex.assert_trees_all_close(actual, theta, rtol=1e-4, atol=1e-4)


def test_fedopt_is_fedavg_with_a_server_optimizer_brick(model, work, federation):
    method, hyper = fljax.compose("fedavg+adam"), fedopt.Hyper(lr=0.1)
    with_adam, with_yogi = fedopt(model, work), fedopt(model, work, server_optimizer="yogi")
    composed = written_out(method(model, work), method.Hyper(lr=0.1), federation)
    assert written_out(with_adam, hyper, federation) == composed != written_out(with_yogi, hyper, federation)


def test_a_server_optimizer_leaves_alone_what_is_not_averaged(key, model, work, federation):
    method = fljax.compose("fedbabu+adam")
    theta = server_of(method(model, work), method.Hyper(lr=0.1, server_lr=0.1), federation, key).shared
    start = model.init(split_key(key).init)
    chex.assert_trees_all_close(theta["fc2"], start["fc2"], rtol=1e-6)
    assert not np.allclose(theta["fc1"]["kernel"], start["fc1"]["kernel"], atol=1e-3)


STEPPING = [name for name in CASES if name in ALGORITHMS and "server" in ALGORITHMS[name].slots]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name for name in STEPPING if not numbers_of(fljax.compose(name).Hyper).keys() & {"server_lr", "beta1"}],
)
def test_a_server_that_steps_all_the_way_is_the_method_itself(key, name, model, work, federation):
    """Momentum without memory and lr 1: a law for every method that says it takes a server optimiser."""
    case = CASES[name]
    method_case, server_case = case, case._replace(name=f"{name}+momentum", numbers=case.numbers | {"beta1": 0.0})
    expected, actual = (
        simulate(variant.make(model, work), variant.hyper, federation, key, ROUNDS, participation=0.5)[1]["client_loss"]
        for variant in (method_case, server_case)
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_clients_join_a_method_with_a_server_optimizer_as_they_join_the_method(key, model, work, federation):
    method = fljax.compose("ditto+momentum")
    method_alone, composed_method, hyper = ditto(model, work), method(model, work), method.Hyper(lr=0.1)
    state = jitted(composed_method.init)(key, hyper, federation.train)
    state_alone = State(state.server.shared, state.clients)
    joined = composed_method.join(key, hyper, state, federation.train, jnp.int32(2))
    chex.assert_trees_all_equal(joined, method_alone.join(key, hyper, state_alone, federation.train, jnp.int32(2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, w: fedopt(m, w, server_optimizer="rmsprop"), "server_optimizer='rmsprop'"),
        (lambda m, w: perfedavg(m, w, variant="second"), "variant='second'"),
        (lambda m, w: perfedavg(m, w, adapt_steps=-1), "adapt_steps=-1"),
        (lambda m, w: fedavg_ft(m, w, ft_layers="tail"), "ft_layers='tail'"),
        (lambda m, w: fedavg_ft(m, w, ft_epochs=-2), "ft_epochs=-2"),
        (lambda m, w: feddane(m, w, weighting="n"), "weighting='n'"),
    ],
)
def test_what_cannot_be_is_refused(model, work, make, message):
    with pytest.raises(ValueError, match=message):
        make(model, work)
