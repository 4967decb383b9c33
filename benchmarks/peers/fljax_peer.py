"""fljax: its own methods and host loop, with the clients spread over all cores."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from peers.work import Workload, data, finish, first_models, job, turns

from fljax import tree
from fljax.algorithms import ditto, fedavg, ifca
from fljax.algorithms.ditto import DittoHyper
from fljax.algorithms.fedavg import FedAvgHyper
from fljax.algorithms.ifca import IFCAHyper
from fljax.client.local import useful_steps
from fljax.data.federation import build
from fljax.models import MODELS, cnn
from fljax.run.evaluate import evaluate
from fljax.run.mesh import over_devices, replicated, use_all_cores
from fljax.run.simulate import as_traced
from fljax.run.train import MOST_ROUNDS, run_chunk
from fljax.types import Algorithm, Assigned, Examples, Federation, Model, State, Work


class Rounds:
    """Runs rounds of a workload in compiled chunks, as `fljax.run.train.train` does."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.done, self.key = workload, 0, jax.random.key(0)
        model = model_of(workload)
        self.algorithm, hyper, state = method_of(workload, model)
        with over_devices() as mesh:
            placed = replicated((federation_of(workload), as_traced(hyper), self.key, state), mesh)
        self.federation, self.hyper, self.key, self.state = placed

    def run(self, n_rounds: int) -> None:
        """So many rounds."""
        never = jnp.int32(2**30)  # tested, that is
        while n_rounds:
            first, count = jnp.int32(self.done), min(n_rounds, MOST_ROUNDS)
            fixed = (self.hyper, self.federation, self.key, None, never, never)
            with over_devices():
                chunk = run_chunk(
                    self.algorithm, self.workload.cohort, MOST_ROUNDS, *fixed, self.state, first, jnp.int32(count)
                )
            self.state = jax.block_until_ready(chunk)[0]
            self.done, n_rounds = self.done + count, n_rounds - count

    def accuracy(self) -> float:
        """On the test set: of the shared model; mean over the personal ones; mean over IFCA's groups, turned alike."""
        state, federation = jax.device_get((self.state, self.federation._replace(test=None)))
        data = jax.tree.map(jnp.asarray, federation.train)
        models = self.algorithm.deploy(jax.random.key(0), self.hyper, jax.tree.map(jnp.asarray, state), data)
        test = test_of(self.workload)
        models = Assigned(models.params, models.label[: test.size.shape[0]])
        return float(jax.jit(partial(evaluate, self.algorithm.predict))(models, test)["accuracy_macro"])

    def useful(self) -> float:
        """Local steps that clients need over local steps executed."""
        work = work_of(self.workload)
        with over_devices():
            return float(jax.jit(partial(useful_steps, work=work))(self.federation.train))


def work_of(workload: Workload) -> Work:
    """One epoch."""
    return Work(epochs=1, batch_size=workload.batch)


def model_of(workload: Workload) -> Model:
    """The network."""
    make = partial(cnn, hidden=(128,)) if workload.model == "dropout_cnn" else MODELS[workload.model]
    return make(input_shape=workload.shape, n_classes=workload.n_classes)


def method_of(workload: Workload, model: Model) -> tuple[Algorithm, tuple, State]:
    """(the algorithm, its numbers, its state before the first round)."""
    work, lr, n_clients = work_of(workload), workload.lr, workload.n_clients
    centers = [dict(zip(model.layers, layers, strict=True)) for layers in first_models(workload)]
    theta = jax.tree.map(jnp.asarray, centers[0])
    if workload.method == "ditto":
        return ditto(model, work), DittoHyper(lr=lr, lam=1.0), State(theta, tree.broadcast(theta, n_clients))
    if workload.method == "ifca":
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *centers)
        return ifca(model, work, len(centers), weighting=workload.weighting), IFCAHyper(lr=lr), State(stacked, ())
    return fedavg(model, work, weighting=workload.weighting), FedAvgHyper(lr=lr), State(theta, ())


def federation_of(workload: Workload) -> Federation:
    """The clients; their test rows are filled in by `test_of`."""
    clients, _ = data(workload)
    ends = np.cumsum([len(y) for _, y in clients])
    owned = np.split(np.arange(ends[-1]), ends[:-1])
    pool = Examples(np.concatenate([x for x, _ in clients]), np.concatenate([y for _, y in clients]))
    return build(pool, owned, (1.0, 0.0, 0.0), test_owned=[rows[:1] for rows in owned])


def test_of(workload: Workload):
    """The test rows of the clients that are tested: the first of each group, or all where models are personal."""
    _, (x, y) = data(workload)
    n_tested = workload.n_clients if workload.method == "ditto" else workload.n_models
    turned = [np.rot90(x, i, (1, 2)) for i in range(workload.n_models)]
    rows = np.arange(len(turned) * len(y)).reshape(len(turned), -1)
    pool = Examples(np.concatenate(turned), np.tile(y, len(turned)))
    owned = [rows[i % len(turned)] for i in range(n_tested)]
    return build(pool, owned, (1.0, 0.0, 0.0), test_owned=[own[:1] for own in owned]).train


def main() -> None:
    use_all_cores()
    asked = job()
    rounds = Rounds(asked.workload)
    for n_rounds in turns(asked):
        rounds.run(n_rounds)
    finish(f"jax {jax.__version__}", rounds.accuracy())


if __name__ == "__main__":
    main()
