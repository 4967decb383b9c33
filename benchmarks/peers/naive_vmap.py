"""What a JAX user writes first: a compiled round, `vmap` over clients padded to the longest, a scan over steps."""

import jax
import jax.numpy as jnp
import numpy as np
from peers.jax_models import accuracy_of, losses
from peers.work import Workload, data, finish, first_models, job, turns


def padded(clients: list) -> tuple:
    """Images, labels and sizes with a leading axis over clients."""
    sizes = np.array([len(y) for _, y in clients])
    x = np.zeros((len(clients), sizes.max(), *clients[0][0].shape[1:]), np.float32)
    y = np.zeros((len(clients), sizes.max()), np.int32)
    for i, (own_x, own_y) in enumerate(clients):
        x[i, : len(own_y)], y[i, : len(own_y)] = own_x, own_y
    return jax.device_put((x, y, sizes))


def make_round(workload: Workload, capacity: int):
    """``(params, key, x, y, sizes) -> params``."""
    n_steps = -(-capacity // workload.batch)

    def loss(params, x, y, real):
        return (losses(params, x, y) * real).sum() / jnp.maximum(real.sum(), 1)

    def train(params, key, x, y, size):
        place = jnp.arange(capacity)
        order = jnp.argsort(jnp.where(place < size, jax.random.uniform(key, (capacity,)), jnp.inf))
        order = jnp.pad(order, (0, n_steps * workload.batch - capacity)).reshape(n_steps, -1)

        def step(params, i):
            rows = order[i]
            real = (i * workload.batch + jnp.arange(workload.batch) < size).astype(jnp.float32)
            gradient = jax.grad(loss)(params, x[rows], y[rows], real)
            return jax.tree.map(lambda p, g: p - workload.lr * g, params, gradient), None

        return jax.lax.scan(step, params, jnp.arange(n_steps))[0]

    @jax.jit
    def one_round(params, key, x, y, sizes):
        key_cohort, key_train = jax.random.split(key)
        ids = jax.random.choice(key_cohort, len(sizes), (workload.cohort,), replace=False)
        keys = jax.random.split(key_train, workload.cohort)
        trained = jax.vmap(train, (None, 0, 0, 0, 0))(params, keys, x[ids], y[ids], sizes[ids])
        weight = sizes[ids] / sizes[ids].sum()
        return jax.tree.map(lambda leaf: jnp.tensordot(weight, leaf, 1), trained)

    return one_round


def main() -> None:
    task = job()
    clients, test = data(task.workload)
    federation = padded(clients)
    params, done = jax.device_put(first_models(task.workload)[0]), 0
    one_round = make_round(task.workload, federation[1].shape[1])
    for n_rounds in turns(task):
        for _ in range(n_rounds):
            params = one_round(params, jax.random.key(done), *federation)
            done += 1
        jax.block_until_ready(params)
    finish(f"jax {jax.__version__}", accuracy_of(params, *test))


if __name__ == "__main__":
    main()
