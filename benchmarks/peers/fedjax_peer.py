"""FedJAX: its federated averaging, on its backend that compiles a step (the other one takes a device a client)."""

import fedjax
import jax
from fedjax.algorithms import fed_avg
from fedjax.version import __version__
from peers.jax_models import accuracy_of, losses
from peers.work import data, finish, first_models, job, turns


def main() -> None:
    task = job()
    workload = task.workload
    clients, test = data(workload)
    federation = fedjax.InMemoryFederatedData({b"%05d" % i: {"x": x, "y": y} for i, (x, y) in enumerate(clients)})
    fedjax.set_for_each_client_backend("jit")
    algorithm = fed_avg.federated_averaging(
        jax.grad(lambda params, batch, key: losses(params, batch["x"], batch["y"]).mean()),
        fedjax.optimizers.sgd(workload.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch, num_epochs=1, drop_remainder=False),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(federation, workload.cohort, seed=0)
    state, done = algorithm.init(jax.device_put(first_models(workload)[0])), 0
    for n_rounds in turns(task):
        for _ in range(n_rounds):
            sampler.set_round_num(done)
            state, _ = algorithm.apply(state, sampler.sample())
            done += 1
        jax.block_until_ready(state.params)
    finish(f"fedjax {__version__}, jax {jax.__version__}", accuracy_of(state.params, *test))


if __name__ == "__main__":
    main()
