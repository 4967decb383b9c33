"""Share of the server's work, clustering included, in a round of each of the five systems at its paper's size.

    python benchmarks/server_share.py [--check] [--only fedtsdp layercfl dcpfl fedcps fesem] [--repeats 3] [--file CSV]

The server's work is the method's own round with the clients' part (training, losses, gradient spreads) left out: the
models that clients would have uploaded are handed in. Where clustering is not in every round, the round is one that
has it: FedTSDP fires, DC-PFL's is the last of its warm-up (discrepancies and dendrogram). The clients' part is local
training alone, of two clients and a tenth or less of their steps, times what is left out: a CPU trains one client
after another. Both are timed in turn in one process; the bar is a tenth of the round.

results/server_share.csv: DC-PFL 0.4 %, FedTSDP 0.8 %, FeSEM 1.0 %, LayerCFL 1.2 %, FedCPS 1.3 %.
"""

import contextlib
import csv
import datetime
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import alternate, machine, parser

from fljax import tree
from fljax.algorithms import ALGORITHMS
from fljax.client import train_clients, training_loss
from fljax.client.batch_gradients import gradient_variance
from fljax.client.measure import client_loss
from fljax.client.steps import n_steps
from fljax.devices.mesh import use_all_cores
from fljax.models import cnn, fedcr_cnn, femnist_cnn, lenet, vgg16
from fljax.types import ClientData, Cohort, Examples, Model, State, Trained, Work

BAR = 0.1
N_TRAINED = 2


class System(NamedTuple):
    """One method at its paper's size."""

    model: Model
    shape: tuple[int, int, int]
    n_clients: int
    cohort: int
    examples: int  # of a client
    work: Work
    round: int = 0  # which round is measured
    steps_timed: int = 4  # of a client's steps
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    hyper: dict[str, float] = {}  # noqa: RUF012


def systems() -> dict[str, Callable[[], System]]:
    """CIFAR-10 and VGG16, Fashion-MNIST, FEMNIST, as the papers have them; made only when measured."""
    colour, grey = (32, 32, 3), (28, 28, 1)
    return {
        "fedtsdp": lambda: System(cnn(colour, 10), colour, 20, 20, 2000, Work(2, 50), hyper={"threshold": 0.0}),
        "layercfl": lambda: System(vgg16(colour), colour, 20, 20, 1000, Work(1, 50), 30, 1, {"layers": "feature"}),
        "dcpfl": lambda: System(lenet(grey), grey, 50, 50, 1200, Work(5, 32), 4),
        "fedcps": lambda: System(fedcr_cnn(grey), grey, 100, 10, 420, Work(10, 48)),
        "fesem": lambda: System(femnist_cnn(hidden=248), grey, 100, 100, 200, Work(5, 10), options={"n_clusters": 4}),
    }


def made_data(system: System, n_clients: int, examples: int) -> ClientData:
    """Clients of random images; all own the same rows, for only their number matters here."""
    x = np.random.default_rng(0).integers(0, 256, (examples, *system.shape), np.uint8)
    pool = Examples(jnp.asarray(x), jnp.arange(examples, dtype=jnp.int32) % 10)
    index = jnp.broadcast_to(jnp.arange(examples, dtype=jnp.int32), (n_clients, examples))
    return ClientData(pool, index, jnp.full(n_clients, examples, jnp.int32))


def uploads(system: System, n: int) -> Any:
    """``n`` models around one, each with noise of its own."""
    center = system.model.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), n)
    noisy = jax.jit(lambda k: jax.tree.map(lambda p: p + 0.01 * jax.random.normal(k, p.shape), center))
    return jax.lax.map(noisy, keys)


def server_side(name: str, system: System) -> Callable[[], Any]:
    """The method's round on uploads that are handed in."""
    method = ALGORITHMS[name]
    algorithm = method.factory(system.model, system.work, **system.options)
    hyper = jax.tree.map(jnp.float32, method.Hyper(**system.hyper))
    data, sent = made_data(system, system.n_clients, system.examples), uploads(system, system.cohort)
    with left_out(sent):
        state = jax.jit(algorithm.init)(jax.random.key(0), hyper, data)
    ids = jnp.arange(system.cohort, dtype=jnp.int32)
    cohort_data = ClientData(data.pool, data.index[: system.cohort], data.size[: system.cohort])
    active, keys = jnp.ones(system.cohort, bool), jax.random.split(jax.random.key(2), system.cohort)
    public = Examples(data.pool.x, jnp.full_like(data.pool.y, -1))
    cohort = Cohort(jnp.int32(system.round), ids, cohort_data, active, public, keys)

    @jax.jit
    def round(state: State, sent: Any, cohort: Cohort) -> Any:
        with left_out(sent):
            rows = State(state.server, tree.take(state.clients, cohort.ids))
            return algorithm.round(jax.random.key(3), hyper, rows, cohort)

    return lambda: round(state, sent, cohort)


@contextlib.contextmanager
def left_out(sent: Any) -> Iterator[None]:
    """A context in which what is traced has clients that do nothing: they send what is given.

    Raises:
        RuntimeError: clients did some of their work after all; it would count as the server's.
    """

    def trained(key: Any, *_: Any, effort: None = None) -> Trained:
        n, n_sent = key.shape[0], tree.n_rows(sent)
        params = sent if n == n_sent else jax.tree.map(lambda leaf: leaf[jnp.arange(n) % n_sent], sent)
        return Trained(params, jnp.zeros(n), jnp.ones(n, bool))

    stand_ins = {
        train_clients: trained,
        client_loss: lambda model, models, data: jnp.zeros(data.n_clients),
        gradient_variance: lambda key, *_: jnp.ones(key.shape[0]),
    }
    originals = {inspect.unwrap(do).__code__: do.__name__ for do in stand_ins}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in originals:
            raise RuntimeError(f"{originals[frame.f_code]} was called where the clients' work is left out")

    with contextlib.ExitStack() as stack:
        # A module that imports one by name has it as its own.
        for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "fljax"]:
            replacements = {do.__name__: stand_ins[do] for do in stand_ins if vars(module).get(do.__name__) is do}
            if replacements:
                stack.enter_context(mock.patch.multiple(module, **replacements))  # pyrefly: ignore[no-matching-overload]
        # One that has it by another name, or in a partial, is not found by that.
        stack.callback(sys.setprofile, sys.getprofile())
        sys.setprofile(watch)
        yield


def client_side(system: System) -> tuple[Callable[[], Any], float]:
    """Local training of a few clients for a few steps, and how many times that a round has."""
    data = made_data(system, N_TRAINED, system.steps_timed * system.work.batch_size)
    stacked = jax.tree.map(lambda p: p[None], system.model.init(jax.random.key(0)))
    keys, loss = jax.random.split(jax.random.key(4), N_TRAINED), training_loss(system.model)
    start = jax.tree.map(lambda p: jnp.repeat(p, N_TRAINED, axis=0), stacked)

    @jax.jit
    def train(start: Any, data: ClientData) -> Trained:
        return train_clients(keys, start, data, loss, optax.sgd(0.01), system.work._replace(epochs=1))

    steps = n_steps(np.asarray([system.examples]), system.work)[0]
    return lambda: train(start, data), system.cohort * steps / (N_TRAINED * system.steps_timed)


def measure(name: str, system: System, repeats: int) -> dict[str, Any]:
    """Seconds of both parts and the server's share of their sum."""
    train, times = client_side(system)
    sides = {"server": server_side(name, system), "clients": train}
    for run in sides.values():
        jax.block_until_ready(run())
    seconds = alternate(sides, repeats)
    shares = [s / (s + times * c) for s, c in zip(seconds["server"], seconds["clients"], strict=True)]
    n_parameters = tree.size(jax.eval_shape(system.model.init, jax.random.key(0)))
    return {
        "system": name,
        "clients": system.cohort,
        "parameters": n_parameters,
        "server_s": round(median(seconds["server"]), 4),
        "clients_s": round(times * median(seconds["clients"]), 2),
        "share_percent": round(100 * median(shares), 3),
        "bar_percent": 100 * BAR,
    }


def earlier_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of earlier runs; those of systems that are measured again are replaced."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> int:
    """Measures, prints and stores; 1 where ``--check`` finds a share above the bar."""
    all_systems = systems()
    arguments = parser(__doc__, all_systems, repeats=3)
    arguments.add_argument("--file", type=Path, default=Path(__file__).parent / "results" / "server_share.csv")
    options = arguments.parse_args()
    use_all_cores()
    rows = {row["system"]: row for row in earlier_rows(options.file)}
    for name in options.only:
        row = measure(name, all_systems[name](), options.repeats)
        rows[name] = row | {"date": datetime.date.today().isoformat(), "machine": machine()}
        print(row, flush=True)
        options.file.parent.mkdir(exist_ok=True)
        with options.file.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[name], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())
    return 1 if options.check and any(rows[n]["share_percent"] > rows[n]["bar_percent"] for n in options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
