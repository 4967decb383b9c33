"""How much clustered methods depend on the number they are told: how many clusters, or a threshold.

    python experiments/sensitivity.py --smoke                      # IFCA and FL+HC on 8 clients, 4 rounds
    python experiments/sensitivity.py                              # all, on rotated images
    python experiments/sensitivity.py --setting 'permuted labels'

On the federations of leaderboard.py, whose four groups nobody knows: those methods that are told a number of clusters
with each of 2 to 8, and those with a threshold from a quarter to four times the middle of its candidates, where their
ranges allow it. Test accuracy and ARI of each are lines in results/leaderboard/sensitivity-MNIST.csv; the two figures
are drawn from all lines of the setting.
"""

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from counts import count
from kept_figures import keep_figure
from leaderboard import ENTRIES, LR, Entry, Scale, federations, measured, method_and_hyper, run_folder_name
from leaderboard import SETTINGS as GROUPS
from long_runs import resumed
from outcomes import RESULTS, Outcome, described, file_of, keep, read
from reporting import data_here

from fljax.cli.run import cache_compilations
from fljax.devices.mesh import use_all_cores
from fljax.numbers import check_numbers
from fljax.report import plots

COUNTS, FACTORS = (2, 3, 4, 6, 8), (0.25, 0.5, 1.0, 2.0, 4.0)
CLUSTERS, THRESHOLD = "number of clusters", "threshold over its middle candidate"


class Point(NamedTuple):
    """A method told another number: ``place`` on the axis, and the entry with its value."""

    axis: str
    place: float
    entry: Entry
    value: float


def points(entry: Entry) -> Iterable[Point]:
    """What to run of a method: nothing of one that is told neither."""
    middle = entry.candidates[len(entry.candidates) // 2]
    count_name = next((name for name in ("n_clusters", "n_learners", "n_groups") if name in entry.choices), None)
    if count_name is not None:
        for count in COUNTS:
            yield Point(CLUSTERS, count, entry._replace(choices={**entry.choices, count_name: count}), middle)
    elif entry.tuned != "lr":
        for factor in FACTORS:
            if is_allowed(entry, factor * middle):
                yield Point(THRESHOLD, factor, entry, factor * middle)


def is_allowed(entry: Entry, value: float) -> bool:
    """Whether the value lies in the range of the method's number."""
    try:
        check_numbers(method_and_hyper(entry, value)[1])
    except ValueError:
        return False
    return True


def run(method: str, point: Point, options: argparse.Namespace, scale: Scale, clients: list) -> None:
    """The runs of a point, a line each for accuracy and ARI."""
    for seed, federation in enumerate(clients):
        algorithm, numbers = method_and_hyper(point.entry, point.value)
        run_folder = options.folder / run_folder_name(
            point.entry.name, options.setting, f"{point.place:g}_{seed}", scale
        )
        finished, seconds = resumed(
            algorithm, numbers, federation, jax.random.key(seed), scale.rounds, folder=run_folder
        )
        choices = {"lr": LR, **point.entry.choices, **point.entry.numbers, point.entry.tuned: point.value}
        settings = described(not scale.smoke, scale.rounds, scale.rounds, method=point.entry.name, **choices)
        columns = {name: x for name, x in measured(finished.metrics, seconds).items() if name in ("accuracy", "ARI")}
        run_fields = (None, scale.rounds, seconds, settings)
        lines = [
            Outcome(method, options.setting, seed, f"{name} at {point.axis} {point.place:g}", x, *run_fields)
            for name, x in columns.items()
        ]
        keep(options.results, "leaderboard", "sensitivity", "MNIST", lines)
        print(f"{method}, {point.axis} {point.place:g}, seed {seed}: {columns['accuracy']:.2f}", flush=True)


def curves_of(lines: Iterable[Mapping[str, str]], axis: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Method -> (places, mean accuracy over seeds) of an axis."""
    values_of_method: dict[str, dict[float, list[float]]] = {}
    for line in lines:
        prefix, _, place = line["metric"].rpartition(" ")
        if prefix == f"accuracy at {axis}":
            values_of_method.setdefault(line["method"], {}).setdefault(float(place), []).append(float(line["value"]))
    return {
        method: (
            np.array(sorted(values_of_place)),
            np.array([np.mean(values_of_place[place]) for place in sorted(values_of_place)]),
        )
        for method, values_of_place in values_of_method.items()
    }


def draw(results: Path, setting: str, small: bool) -> None:
    """Draws both figures beside the lines."""
    file = file_of(results, "leaderboard", "sensitivity", "MNIST", small)
    lines = [line for line in read(file) if line["setting"] == setting]
    for axis, name in ((CLUSTERS, "clusters"), (THRESHOLD, "threshold")):
        if curves := curves_of(lines, axis):
            figure = plots.learning_curves(curves, "accuracy, %", title=f"{setting}: four groups", xlabel=axis)
            (axes,) = figure.axes
            axes.set_xscale("log")
            places = sorted({place for curve_places, _ in curves.values() for place in curve_places})
            axes.set_xticks(places, [f"{place:g}" for place in places])
            axes.minorticks_off()
            data = f"MNIST-{setting.replace(' ', '_')}-{name}"
            keep_figure(results, ("leaderboard", "sensitivity", data), small, figure)


def main() -> None:
    """Runs what is asked for, point by point, and draws what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one seed of 8 clients of 60 images, 4 rounds, 2 methods")
    parser.add_argument("--seeds", type=count, default=1)
    parser.add_argument("--only", nargs="+", choices=ENTRIES, default=None, metavar="METHOD")
    parser.add_argument("--setting", choices=GROUPS, default="rotation", metavar="SETTING")
    parser.add_argument("--folder", type=Path, default=Path("results/sensitivity"), help="of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="of the lines")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    use_all_cores()
    cache_compilations()
    scale = Scale(True, 8, 60, 4) if options.smoke else Scale(False, 20, 200, 40)
    clients = federations(options.setting, 1 if options.smoke else options.seeds, scale)[1]
    for method in options.only or (("IFCA", "FL+HC") if options.smoke else ENTRIES):
        for point in points(ENTRIES[method]):
            run(method, point, options, scale, clients)
    draw(options.results, options.setting, options.smoke)


if __name__ == "__main__":
    with data_here():
        main()
