"""Share of the machine's own matrix rate and copy rate that each workload reaches, and the largest remaining cost.

    python benchmarks/limits.py [--check] [--only mlp flute-femnist] [--repeats 5] [--output results/limits.csv]

Rows are the rounds of every workload of `peers.work` at its own shapes, and local training alone of 20 clients of 256
examples with the 159k-parameter MLP, where the share of the matrix rate has a bar: 40 % in batches of 20, 60 % in
batches of 128. ``--only logreg`` takes all whose names begin so. Everything is measured in the same run, in turn.

- matrix: needed FLOPs (see `needs`) a second over the rate of a float32 product of two 2048 x 2048 matrices on all
  cores: NumPy's, XLA's, or XLA's on each device, the fastest in the turn.
- copy: the time in which needed bytes (see `needs`) could be read or written over the time taken. Examples move at the
  rate of copying an array that no cache holds, "memory"; parameters at that of an array of the model's size on each
  core, at least 256 KB, for those a cache may hold.
- of limit: the larger of the two, the share of the time that the nearer limit explains.

The other columns are parts of a round run alone, over the same clients and steps, as shares of it. "layers": every
layer with its pool and dropout, and its gradients, on a batch that is there; "update": ``p - lr * g`` of all
parameters, with Ditto's pull; "batches": the same rounds of a model of one pixel (cohort, shuffling, gathering, the
overhead of a step); "models": the same rounds of clients without examples (handing out, checking and averaging models);
"losses": IFCA's; "rest": what no part explains, nothing where parts overlap. The largest remaining cost is the part
that takes most time beyond its FLOPs at the matrix rate. Under logistic regression a line more: a client's time on a
core, and that of a bare loop of gather, products and update. Shares are medians of the turns'. All of it takes under 8
minutes on two cores.
"""

import datetime
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from needs import n_steps, n_trainings, needs
from parts import Alone, bare_loop, cached_copies, copies, parts_of, products
from peers.fljax_peer import Rounds, model_of, work_of
from peers.table import processor
from peers.work import WORKLOADS, Workload
from timing import Run, alternate, machine, parser, rounds_in, seconds_of

from fljax import tree
from fljax.client import train_clients, training_loss
from fljax.devices.mesh import over_devices, replicated, use_all_cores
from fljax.models import mlp
from fljax.report.summary import save_table
from fljax.types import ClientData, Federation, Model

TURN = 0.4  # seconds that rounds are repeated for


class Row(NamedTuple):
    """A workload, whether it is local training alone, and the least share of the matrix rate in percent."""

    workload: Workload
    alone: bool = False
    bar: float | None = None


_TRAINING = WORKLOADS["mlp-10"]._replace(cohort=20, n_clients=20, samples=256, rounds=100)
ROWS = {name: Row(workload) for name, workload in WORKLOADS.items()} | {
    "mlp-training-20": Row(_TRAINING, True, 40.0),
    "mlp-training-128": Row(_TRAINING._replace(batch=128), True, 60.0),
}


class Subject(NamedTuple):
    """What is measured, ready to run."""

    run: Callable[[int], Any]  # so many rounds
    bare: Callable[[int], Any]  # the same of a model of one pixel
    still: Callable[[int], Any]  # the same without examples
    sizes: Callable[[int], np.ndarray]  # (rounds, cohort) examples of the participants of the last rounds
    federation: Federation


def in_rounds(workload: Workload) -> Subject:
    """Whole rounds."""
    rounds = Rounds(workload)
    bare = Rounds(workload, rounds.federation, _first_pixel(workload))
    nothing = rounds.federation._replace(train=_without_examples(rounds.federation.train))
    return Subject(rounds.run, bare.run, Rounds(workload, nothing).run, rounds.sizes, rounds.federation)


def in_training(workload: Workload) -> Subject:
    """One epoch of every client, without a server."""
    federation, n = Rounds(workload).federation, workload.cohort
    size = np.asarray(federation.train.size)

    def training(model: Model) -> Callable[[ClientData, int], Any]:
        @jax.jit
        def train(keys: Array, start: Any, data: ClientData) -> Any:
            loss, optimizer = training_loss(model), optax.sgd(workload.lr)
            return train_clients(keys, tree.everyone(start, n), data, loss, optimizer, work_of(workload))

        with over_devices() as mesh:
            placed = replicated((jax.random.split(jax.random.key(0), n), model.init(jax.random.key(1))), mesh)

        def run(data: ClientData, n_rounds: int) -> list[Any]:
            with over_devices():
                return [jax.block_until_ready(train(*placed, data)) for _ in range(n_rounds)]

        return run

    train, bare = training(model_of(workload)), training(_first_pixel(workload))
    return Subject(
        partial(train, federation.train),
        partial(bare, federation.train),
        partial(train, _without_examples(federation.train)),
        lambda n_rounds: np.tile(size, (n_rounds, 1)),
        federation,
    )


def _without_examples(data: ClientData) -> ClientData:
    return data._replace(size=jnp.zeros_like(data.size))


def _first_pixel(workload: Workload) -> Model:
    """The smallest model that reads whole images."""
    tiny = mlp((1, 1, 1), (), workload.n_classes)
    return tiny._replace(apply=lambda params, x, key: tiny.apply(params, x[:, :1, :1, :1], key))


class Turns(NamedTuple):
    """What was timed; arrays are (turns,)."""

    workload: Workload
    n_rounds: int  # in a turn
    first: float  # seconds of the first round, compilation included
    sizes: np.ndarray  # (turns, rounds * cohort) examples of the participants
    alone: dict[str, dict[str, Alone]]  # what is run alone, by kind and name
    seconds: dict[str, np.ndarray]  # of "run", "batches", "models", perhaps "bare loop" and all that is run alone

    def rate(self, kind: str) -> np.ndarray:
        """FLOPs or bytes a second of the fastest of a kind."""
        sides = self.alone[kind]
        return np.max([side.times * side.work / self.seconds[name] for name, side in sides.items()], axis=0)

    def percent(self, seconds: np.ndarray) -> float:
        """As a share of the rounds."""
        return round(100 * float(np.median(seconds / self.seconds["run"])), 1)

    def parts(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """(seconds of every part of the rounds, the seconds of them that its FLOPs need at the matrix rate)."""
        steps = n_trainings(self.workload) * np.array([n_steps(self.workload, sizes) for sizes in self.sizes])
        seconds_by_part = {name: (self.seconds[name], np.zeros(len(steps))) for name in ("batches", "models")}
        for name, part in self.alone["parts"].items():
            n_times = self.n_rounds if name == "losses" else steps
            seconds_by_part[name] = (
                n_times * self.seconds[name] / part.times,
                n_times * part.work / self.rate("products"),
            )
        return seconds_by_part


def timed(row: Row, repeats: int) -> Turns:
    """Everything in turn."""
    workload = row.workload
    subject = in_training(workload) if row.alone else in_rounds(workload)
    first = seconds_of(lambda: subject.run(1))[0]
    subject.bare(1)
    subject.still(1)
    n_rounds = rounds_in(TURN, subject.run, workload.rounds)
    subject.bare(1)  # as many as the other has done, so that both go on with the same cohorts
    alone = {"products": products(), "copies": copies(), "cached": cached_copies(workload)}
    alone["parts"] = parts_of(workload, subject.federation)
    sides: dict[str, Run] = {"run": lambda: subject.run(n_rounds), "batches": lambda: subject.bare(n_rounds)}
    sides["models"] = lambda: subject.still(n_rounds)
    sides |= {name: side.run for kind in alone.values() for name, side in kind.items()}
    if workload.model == "logistic_regression" and not workload.ragged:
        sides["bare loop"] = bare_loop(workload, subject.federation, n_rounds)
    alternate(sides, 1)
    seconds = {name: np.array(values) for name, values in alternate(sides, repeats).items()}
    sizes = subject.sizes(repeats * n_rounds).reshape(repeats, -1)
    return Turns(workload, n_rounds, first, sizes, alone, seconds)


def limits_of(turns: Turns, bar: float | None) -> dict[str, Any]:
    """How near the rounds come to what the machine can do."""
    flops, parameter_bytes, example_bytes = np.array([needs(turns.workload, sizes) for sizes in turns.sizes]).T
    matrix, memory, run = turns.rate("products"), turns.rate("copies"), turns.seconds["run"]
    matrix_percent = turns.percent(flops / matrix)
    copy_percent = turns.percent(parameter_bytes / turns.rate("cached") + example_bytes / memory)
    return {
        "ms_a_round": _rounded(1e3 * run / turns.n_rounds),
        **{"gflops": _rounded(flops / run / 1e9), "matrix_gflops": _rounded(matrix / 1e9)},
        **{"matrix_percent": matrix_percent, "bar_percent": bar},
        **{"gbytes": _rounded((parameter_bytes + example_bytes) / run / 1e9), "memory_gbytes": _rounded(memory / 1e9)},
        **{"copy_percent": copy_percent, "limit_percent": max(matrix_percent, copy_percent)},
    }


def parts_row(turns: Turns) -> dict[str, Any]:
    """Where the rest of the time goes."""
    parts = turns.parts()
    share = {name: turns.percent(seconds) for name, (seconds, _) in parts.items()}
    beyond = {name: turns.percent(seconds - needed) for name, (seconds, needed) in parts.items()}
    beyond["rest"] = max(turns.percent(turns.seconds["run"] - sum(seconds for seconds, _ in parts.values())), 0.0)
    largest = max(beyond, key=lambda name: beyond[name])
    row = {"layers_percent": round(sum(value for name, value in share.items() if name.startswith("layer")), 1)}
    row |= {f"{name}_percent": share.get(name) for name in ("update", "batches", "models", "losses")}
    row |= {"rest_percent": beyond["rest"], "largest": largest, "largest_percent": beyond[largest]}
    # A client's time on a core.
    us_per_second = 1e6 * jax.device_count() / (turns.n_rounds * turns.workload.cohort)
    row["client_us"] = _rounded(us_per_second * turns.seconds["run"])
    row["bare_loop_us"] = _rounded(us_per_second * turns.seconds["bare loop"]) if "bare loop" in turns.seconds else None
    return row


def _rounded(values: np.ndarray) -> float:
    return float(f"{np.median(values):.4g}")


COLUMNS = {
    **{"ms_a_round": "ms", "gflops": "GFLOP/s", "matrix_gflops": "limit", "matrix_percent": "matrix %"},
    **{"bar_percent": "bar", "gbytes": "GB/s", "memory_gbytes": "memory", "copy_percent": "copy %"},
    **{"limit_percent": "of limit", "layers_percent": "layers", "update_percent": "update"},
    **{"batches_percent": "batches", "models_percent": "models", "losses_percent": "losses"},
    **{"rest_percent": "rest", "first_s": "first s"},
}


def show(row: dict[str, Any]) -> None:
    """Prints one line; two with a bare loop."""
    cells = "".join(f"{'-' if row[name] is None else format(row[name], '.4g'):>9}" for name in COLUMNS)
    print(f"{row['workload']:<17}{cells}  {row['largest']} {row['largest_percent']:.0f} %", flush=True)
    if row["bare_loop_us"]:
        print(f"{'':<17}  a client and core {row['client_us']} us, a bare loop {row['bare_loop_us']} us", flush=True)


def main() -> int:
    """Prints, and stores where asked to; 1 if ``--check`` and a share is below its bar."""
    groups = {name.split("-")[0] for name in ROWS}
    arguments = parser(__doc__, [*ROWS, *sorted(groups - ROWS.keys())])
    arguments.set_defaults(only=list(ROWS))
    arguments.add_argument("--output", type=Path, help="CSV, written row by row")
    options = arguments.parse_args()
    use_all_cores()
    origin, today, rows = f"{processor()}, {machine()}", datetime.date.today().isoformat(), []
    print(origin)
    print(f"{'':<17}" + "".join(f"{title:>9}" for title in COLUMNS.values()) + "  largest remaining cost")
    for name in [name for name in ROWS if {name, name.split("-")[0]} & set(options.only)]:
        turns = timed(ROWS[name], options.repeats)
        row = {"workload": name, **limits_of(turns, ROWS[name].bar), **parts_row(turns)}
        rows.append(row | {"first_s": round(turns.first, 1), "machine": origin, "date": today})
        show(rows[-1])
        if options.output:
            save_table(options.output, rows)
    missed = [row["workload"] for row in rows if row["bar_percent"] and row["matrix_percent"] < row["bar_percent"]]
    if missed:
        print("below the bar:", ", ".join(missed))
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
