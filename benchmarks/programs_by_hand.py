"""Programs to compile, traced and lowered before: the main job's rounds, and FedAvg as one would write it by hand."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fljax.catalogue.job import RUN
from fljax.devices.mesh import over_devices, use_all_cores
from fljax.devices.programs import compiler_for, options_of
from fljax.jobs.assemble import devices_of, make_algorithm
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_model, make_parts
from fljax.run.chunk import MOST_ROUNDS, on_devices, round_cost, run_chunk
from fljax.run.one_round import split_key

ROUNDS, CLIENTS, EXAMPLES, BATCH, EPOCHS = 80, 12, 108, 32, 5


def of_the_main_job(methods: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """Method -> compiles its round of the main job, at the level and for the devices that `fljax run` takes."""
    use_all_cores()
    job = read_job(["--algorithm", *methods], RUN)
    federation, _ = make_parts(job)
    model, n_clients = make_model(job, federation), len(federation.train.size)
    compilers = {}
    for name in job.methods:
        algorithm, hyper, sampling = make_algorithm(name, job, model, n_clients)
        with over_devices(devices_of(job, model, federation)) as mesh:
            numbers = on_devices(mesh, hyper, federation, jax.random.key(0), None, 1, ROUNDS)
            hyper, federation, key = numbers[:3]
            state = jax.eval_shape(algorithm.init, split_key(key).init, hyper, federation.train)
            place = federation.train.size.sharding
            state = jax.tree.map(lambda x, target=place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=target), state)
            count = jnp.int32(0), jnp.int32(0)
            traced = run_chunk.trace(algorithm, sampling.of(n_clients), MOST_ROUNDS, *numbers, state, *count)
            cost = round_cost(traced.jaxpr, algorithm, federation.train.size)
            options = options_of(compiler_for("auto", ROUNDS, lambda cost=cost: cost, None).level)
            compilers[name] = partial(traced.lower().compile, compiler_options=options)
    return compilers


def handwritten() -> Callable[[], Any]:
    """Compiles FedAvg with `vmap` over clients and scans over rounds, epochs and steps, and a test each round."""

    def logits(params: Any, x: Any) -> Any:
        return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]

    def loss(params: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()

    def train(params: Any, key: Any, x: Any, y: Any) -> Any:
        def epoch(params: Any, key: Any) -> tuple[Any, None]:
            order = jax.random.permutation(key, EXAMPLES)[: EXAMPLES // BATCH * BATCH].reshape(-1, BATCH)

            def step(params: Any, rows: Any) -> tuple[Any, None]:
                gradient = jax.grad(loss)(params, x[rows], y[rows])
                return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient), None

            return jax.lax.scan(step, params, order)[0], None

        return jax.lax.scan(epoch, params, jax.random.split(key, EPOCHS))[0]

    def run(key: Any, x: Any, y: Any, test_x: Any, test_y: Any) -> Any:
        def one_round(params: Any, key: Any) -> tuple[Any, Any]:
            trained = jax.vmap(train, (None, 0, 0, 0))(params, jax.random.split(key, CLIENTS), x, y)
            params = jax.tree.map(lambda leaf: leaf.mean(axis=0), trained)
            hits = jax.vmap(lambda x, y: (logits(params, x).argmax(axis=-1) == y).mean())(test_x, test_y)
            return params, hits

        sizes = {"w1": (64, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}
        keys = dict(zip(sizes, jax.random.split(key, 4), strict=True))
        params = {name: 0.1 * jax.random.normal(keys[name], shape) for name, shape in sizes.items()}
        return jax.lax.scan(one_round, params, jax.random.split(key, ROUNDS))

    x, y = jnp.ones((CLIENTS, EXAMPLES, 64)), jnp.ones((CLIENTS, EXAMPLES), jnp.int32)
    return jax.jit(run).lower(jax.random.key(0), x, y, x[:, :20], y[:, :20]).compile
