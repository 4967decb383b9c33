"""fljax: its own methods and host loop, with the clients spread over all cores."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled, Lowered
from jax.typing import DTypeLike
from noisy_images import Set
from peers.work import Workload, data, finish, first_models, job, turns

import fljax
from fljax import tree
from fljax.client.local import useful_steps
from fljax.data.federation import build, on_host
from fljax.devices.mesh import over_devices, replicated, use_all_cores
from fljax.metrics.evaluate import evaluate
from fljax.models import MODELS, cnn
from fljax.rounds import Clusters
from fljax.run.chunk import MOST_ROUNDS, run_chunk
from fljax.run.one_round import as_traced
from fljax.types import Algorithm, Federation, Model, ModelTable, State, Work


class Rounds:
    """Runs rounds of a workload in compiled chunks, as `fljax.run.train.train` does.

    The benchmarks of limits hand over what is there already, the ``federation``, or another network, ``model``, whose
    first parameters are its own.
    """

    def __init__(self, workload: Workload, federation: Federation | None = None, model: Model | None = None) -> None:
        self.workload, self.done, self.key = workload, 0, jax.random.key(0)
        self.chunks: list[tuple[int, dict[str, jax.Array]]] = []  # (rounds, their participants and losses)
        federation = federation_of(workload) if federation is None else federation
        self.algorithm, hyper, state = method_of(workload, model or model_of(workload), own_start=model is not None)
        with over_devices() as mesh:
            placed = replicated((federation, as_traced(hyper), self.key, state), mesh)
        self.federation, self.hyper, self.key, self.state = placed

    def run(self, n_rounds: int, program: Compiled | None = None) -> None:
        """So many rounds, by the ``program`` of `lowered` if given."""
        while n_rounds:
            count = min(n_rounds, MOST_ROUNDS)
            with over_devices():
                arguments = self._arguments(count)
                chunk = program(*arguments[3:]) if program else run_chunk(*arguments)
            self.state, metrics = jax.block_until_ready(chunk)
            self.chunks.append((count, {name: metrics[name] for name in ("ids", "loss")}))
            self.done, n_rounds = self.done + count, n_rounds - count

    def compile(self) -> None:
        """What the first round would do before it runs."""
        self.lowered().compile()

    def lowered(self) -> Lowered:
        """The program that is compiled for any number of rounds."""
        with over_devices():
            return run_chunk.lower(*self._arguments(1))

    def _arguments(self, count: int) -> tuple:
        never = jnp.int32(2**30)  # tested, that is
        fixed = (self.hyper, self.federation, self.key, None, never, never)
        first = jnp.int32(self.done)
        return self.algorithm, self.workload.cohort, MOST_ROUNDS, *fixed, self.state, first, jnp.int32(count)

    def sizes(self, n_rounds: int) -> np.ndarray:
        """(rounds, cohort) examples of the participants of the last rounds."""
        return np.asarray(self.federation.train.size)[self._of_rounds("ids")[-n_rounds:]]

    def losses(self) -> np.ndarray:
        """(rounds,) mean of the participants' training losses."""
        return self._of_rounds("loss").mean(axis=1)

    def _of_rounds(self, name: str) -> np.ndarray:
        return np.concatenate([np.asarray(metrics[name])[:count] for count, metrics in self.chunks])

    def accuracy(self) -> float:
        """On the test set: of the shared model; mean over the personal ones; mean over IFCA's groups, turned alike."""
        state, federation = jax.device_get((self.state, self.federation._replace(test=None)))
        data = jax.tree.map(jnp.asarray, federation.train)
        models = self.algorithm.deploy(jax.random.key(0), self.hyper, jax.tree.map(jnp.asarray, state), data)
        test = test_of(self.workload)
        models = ModelTable(models.params, models.row[: test.n_clients])
        return float(jax.jit(partial(evaluate, self.algorithm.predict))(models, test)["accuracy_macro"])

    def useful(self) -> float:
        """Local steps that clients need over local steps executed."""
        work = work_of(self.workload)
        with over_devices():
            return float(jax.jit(partial(useful_steps, work=work))(self.federation.train))


def work_of(workload: Workload) -> Work:
    """One epoch."""
    return Work(epochs=1, batch_size=workload.batch)


def model_of(workload: Workload, dtype: DTypeLike = jnp.float32) -> Model:
    """The network; ``dtype`` is that of its computation."""
    make = partial(cnn, hidden=(128,)) if workload.model == "dropout_cnn" else MODELS[workload.model]
    return make(input_shape=workload.shape, n_classes=workload.n_classes, dtype=dtype)


def method_of(workload: Workload, model: Model, own_start: bool = False) -> tuple[Algorithm, tuple, State]:
    """(the algorithm, its numbers, its state before the first round); ``own_start``: parameters of the model's own."""
    work, lr, n_clients = work_of(workload), workload.lr, workload.n_clients
    if own_start:
        centers = [model.init(jax.random.key(i)) for i in range(workload.n_models)]
    else:
        centers = [dict(zip(model.layers, layers, strict=True)) for layers in first_models(workload)]
    theta = jax.tree.map(jnp.asarray, centers[0])
    if workload.method == "ditto":
        return (
            fljax.ditto(model, work),
            fljax.ditto.Hyper(lr=lr, lam=1.0),
            State(theta, tree.broadcast(theta, n_clients)),
        )
    if workload.method == "ifca":
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *centers)
        return (
            fljax.ifca(model, work, len(centers), weighting=workload.weighting),
            fljax.ifca.Hyper(lr=lr),
            State(Clusters(stacked, jnp.zeros(n_clients, jnp.int32)), ()),
        )
    return fljax.fedavg(model, work, weighting=workload.weighting), fljax.fedavg.Hyper(lr=lr), State(theta, {})


def federation_of(workload: Workload, clients: list[Set] | None = None) -> Federation:
    """The clients, whose sets may be there already; their test rows are filled in by `test_of`."""
    clients = data(workload)[0] if clients is None else clients
    ends = np.cumsum([len(y) for _, y in clients])
    owned = np.split(np.arange(ends[-1]), ends[:-1])
    pool = on_host(np.concatenate([x for x, _ in clients]), np.concatenate([y for _, y in clients]))
    return build(pool, owned, (1.0, 0.0, 0.0), test_owned=[rows[:1] for rows in owned])


def test_of(workload: Workload):
    """The test rows of the clients that are tested: the first of each group, or all where models are personal."""
    _, (x, y) = data(workload)
    n_tested = workload.n_clients if workload.method == "ditto" else workload.n_models
    turned_images = [np.rot90(x, i, (1, 2)) for i in range(workload.n_models)]
    rows = np.arange(len(turned_images) * len(y)).reshape(len(turned_images), -1)
    pool = on_host(np.concatenate(turned_images), np.tile(y, len(turned_images)))
    owned = [rows[i % len(turned_images)] for i in range(n_tested)]
    return build(pool, owned, (1.0, 0.0, 0.0), test_owned=[rows_of_client[:1] for rows_of_client in owned]).train


def main() -> None:
    use_all_cores()
    task = job()
    rounds = Rounds(task.workload)
    for n_rounds in turns(task):
        rounds.run(n_rounds)
    finish(f"jax {jax.__version__}", rounds.accuracy())


if __name__ == "__main__":
    main()
