"""What the experiments share: runs of methods x settings x seeds, and their command line. Tables: tables.py.

An experiment is a file with a function per table or figure of its paper, each ``f(scale: Scale) -> None``, and
``main(__doc__, {name: function})``. Tables are printed and kept as CSV, figures as PNG, under results/<experiment>/.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from counts import count
from jax import Array
from long_runs import resumed
from outcomes import RESULTS
from rich.console import Console

from fljax.cli.run import cache_compilations
from fljax.data.federation import on_host
from fljax.devices.mesh import over_devices, replicated, use_all_cores
from fljax.devices.programs import make_room
from fljax.run.progress import BarProgress
from fljax.run.simulate import simulate
from fljax.types import Algorithm, ClientData, Examples, Federation

CONSOLE = Console(width=150)


class Scale(NamedTuple):
    """How large an experiment is."""

    paper: bool  # the paper's sizes; False: minutes on two cores
    n_seeds: int
    folder: Path  # where its files go
    rounds: int | None = None  # of every run instead of its own number: the beginning of a long one
    only: tuple[str, ...] = ()  # methods and settings to run; none: all
    results: Path = RESULTS  # where the lines of `outcomes.keep` go
    brief: bool = False  # one seed, and less of everything where the experiment can do with less

    @property
    def is_whole(self) -> bool:
        """Whether all methods are run, in all of their rounds."""
        return self.rounds is None and not self.only

    @property
    def seeds_in_words(self) -> str:
        """As a heading says it."""
        return f"{self.n_seeds} seed{'s' * (self.n_seeds > 1)}"

    def chosen(self, choices: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the ``choices`` that were asked for; all of them if none was."""
        return {name: value for name, value in choices.items() if name in self.only} or dict(choices)

    def pick(self, smoke: Any, paper: Any, brief: Any = None) -> Any:
        """One of the values; ``smoke`` of a brief run where it has none of its own."""
        if self.brief and brief is not None:
            return brief
        return paper if self.paper else smoke


class Result(NamedTuple):
    """One finished run."""

    setting: str
    method: str
    seed: int
    metrics: Mapping[str, np.ndarray]  # of all rounds
    seconds: float  # compilation included where it was the first of its kind; of a run in a folder: of all its calls


Methods = Mapping[str, tuple[Algorithm, Any]]
"""Name -> algorithm and its numbers."""


def compare(
    methods: Methods,
    settings: Mapping[str, Sequence[Federation]],
    n_rounds: int,
    *,
    evaluate_every: int | None = None,
    participation: float = 1.0,
    folder: Path | None = None,
    tested_last: int = 1,
) -> list[Result]:
    """Every method on every federation of every setting; seed s is the s-th federation and the run key s.

    Within a setting all methods see the same cohorts, batches and (where they draw one model) initial models. Clients
    are spread over all devices. ``evaluate_every`` None tests after the last round only. With a ``folder`` runs are
    checkpointed there, and the same comparison goes on where it was stopped; then each of the last ``tested_last``
    rounds is followed by a test.
    """
    results, options = [], {"participation": participation, "evaluate_every": evaluate_every or n_rounds}
    for setting, federations in settings.items():
        for name, (algorithm, hyper) in methods.items():
            for seed, federation in enumerate(same_shapes(federations)):
                arguments = (algorithm, hyper, federation, jax.random.key(seed), n_rounds)
                begin = time.perf_counter()
                if folder is None:
                    metrics = at_once(*arguments, **options)
                else:
                    label = f"{setting}, {name}, seed {seed}"
                    run_options = {"tested_last": tested_last, "progress": BarProgress(label, CONSOLE)}
                    run, seconds = resumed(*arguments, **options, folder=folder / folder_name(label), **run_options)
                    metrics, begin = run.metrics, time.perf_counter() - seconds
                results.append(Result(setting, name, seed, metrics, time.perf_counter() - begin))
                make_room()
                CONSOLE.print(f"[dim]{setting}, {name}, seed {seed}: {results[-1].seconds:.1f} s[/]")
    return results


def folder_name(label: str) -> str:
    """``"IID, FedAvg, seed 0"`` as a folder is called: ``"IID-FedAvg-seed_0"``."""
    return label.replace(", ", "-").replace(" ", "_").replace("/", "_")


def at_once(
    algorithm: Algorithm, hyper: Any, federation: Federation, key: Array, n_rounds: int, **options: Any
) -> Mapping[str, np.ndarray]:
    """The metrics of a run as one program, clients spread over all devices."""
    with over_devices() as mesh:
        _, metrics = simulate(algorithm, hyper, replicated(federation, mesh), key, n_rounds, **options)
        return jax.device_get(metrics)


def same_shapes(federations: Sequence[Federation]) -> list[Federation]:
    """The federations with index tables of one width, so that one compiled program serves them all."""

    def widened(data: ClientData, width: int) -> ClientData:
        return data._replace(index=jnp.pad(data.index, ((0, 0), (0, width - data.index.shape[1]))))

    widest = {
        split: max(getattr(federation, split).index.shape[1] for federation in federations)
        for split in ("train", "val", "test")
        if all(getattr(federation, split) is not None for federation in federations)
    }

    def in_one_shape(federation: Federation) -> Federation:
        splits: dict[str, Any] = {split: widened(getattr(federation, split), width) for split, width in widest.items()}
        return federation._replace(**splits)

    return [in_one_shape(federation) for federation in federations]


def random_examples(examples: Any, n: int, seed: int = 0, skip: int = 0) -> Examples:
    """``n`` of the examples at random, or all where there are fewer; none of the first ``skip`` of that seed's."""
    rows = np.random.default_rng(seed).permutation(len(examples.y))[skip : skip + n]
    return on_host(examples.x[rows], examples.y[rows])


def with_public(federation: Federation, examples: Any) -> Federation:
    """The federation whose server has ``examples``, without their labels."""
    return federation._replace(public=Examples(jnp.asarray(examples.x), jnp.full(len(examples.y), -1, jnp.int32)))


@contextlib.contextmanager
def data_here() -> Iterator[None]:
    """Inside it, a data set that is not found, FLJAX_DATA being wrong or not set, ends the script with one line."""
    try:
        yield
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def main(
    doc: str,
    experiments: Mapping[str, Callable[[Scale], None]],
    n_seeds: tuple[int, int] = (3, 3),
    if_named: Sequence[str] = (),
    only: Callable[[Scale], Iterable[str]] = lambda scale: (),
) -> None:
    """The command line of an experiment: which tables and figures, at which scale.

    Args:
        doc: of the script.
        experiments: name -> table or figure.
        n_seeds: by default, at smoke and at the paper's scale.
        if_named: those of ``experiments`` that run only when they are asked for.
        only: all names that `Scale.chosen` may be asked for. Another one is refused before anything runs: where none of
            its names is found, `Scale.chosen` gives all, so that a misspelt one would run for hours.
    """
    by_default = [name for name in experiments if name not in if_named]
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(experiments)}; none: {', '.join(by_default)}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--scale", choices=("smoke", "paper"), default="smoke")
    size.add_argument("--smoke", action="store_true", help="less than the scale of that name: one seed, a few minutes")
    parser.add_argument(
        "--seeds", type=count, help=f"seeds of each cell; by default {n_seeds[0]} or, paper, {n_seeds[1]}"
    )
    parser.add_argument("--rounds", type=count, help="of every run, instead of its own number: a beginning")
    parser.add_argument("--only", nargs="+", default=(), help="methods and settings of the paper's tables; none: all")
    parser.add_argument("--folder", type=Path, default=Path("results"), help="of runs, tables and figures")
    parser.add_argument(
        "--results", type=Path, help="of the lines that reproduction.py reads; with --smoke in the folder"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in experiments]:
        parser.error(f"no experiment {unknown[0]!r}; choose of {', '.join(experiments)}")
    use_all_cores()
    cache_compilations()
    paper, stem = arguments.scale == "paper", Path(parser.prog).stem
    folder = arguments.folder / f"{stem}-{'brief' if arguments.smoke else arguments.scale}"
    scale = Scale(
        paper,
        arguments.seeds or (1 if arguments.smoke else n_seeds[paper]),
        folder,
        arguments.rounds,
        tuple(arguments.only),
        arguments.results or (folder if arguments.smoke else RESULTS),
        arguments.smoke,
    )
    allowed_names = dict.fromkeys(only(scale)) if scale.only else {}
    if unknown := [name for name in scale.only if name not in allowed_names]:
        choice = (
            f"choose of {', '.join(filter(None, allowed_names))}" if allowed_names else "nothing can be chosen here"
        )
        parser.error(f"--only {unknown[0]}: {choice}")
    begin = time.perf_counter()
    for name in arguments.names or by_default:
        with data_here():
            experiments[name](scale)
    CONSOLE.print(f"{time.perf_counter() - begin:.0f} s; tables and figures in {scale.folder}")
