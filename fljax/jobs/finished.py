"""Finished runs beside each other: seed by seed where they differ in more than that, as a table, files and a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fljax.catalogue.own import short_name
from fljax.jobs.groups import by_method, config_of, configs_of, label_of, named_groups
from fljax.jobs.job import STEPS
from fljax.jobs.unlike import in_words, not_alike, same_clients, these_differ
from fljax.sealed import naming


class Comparison(NamedTuple):
    """Finished runs beside each other."""

    rows: list[dict[str, Any]]  # of the table, plain numbers
    text: str  # for a terminal
    markdown: str
    latex: str
    header: list[str]
    cells: list[list[str]]
    curves: dict[str, Any]  # method -> (seeds, rounds) of the measure
    clients: dict[str, Any]  # method -> (clients,) last test, over all seeds
    of_clients: str  # what those are: "accuracy", "R2" or "loss"
    measure: str
    notes: list[str]  # lines under the table
    settings: str


def compare_folders(folders: Sequence[Path], baseline: str | None = None, measure: str | None = None) -> Comparison:
    """The methods of results folders, over the seeds where the folders are runs with different ones.

    Runs that differ in more are told apart by their folders, the seeds of a comparison by the comparison's.

    Raises:
        ValueError: a folder holds no run, the runs have no such measure, or no such baseline is among the methods.
    """
    import numpy as np

    from fljax.run import formats
    from fljax.run.headline import measures_of
    from fljax.run.load import last_test, load_run
    from fljax.run.significance import compare_scores

    groups = named_groups([load_run(folder) for folder in folders])
    found, config = by_method(groups), configs_of(groups)
    everything = [one for own in found.values() for one in own.values()]
    first = measures_of(everything[0].metrics)
    name = _measure(everything, measure)
    values = {method: [_over_rounds(one, name) for one in own.values()] for method, own in found.items()}
    lasts = {
        method: [last_test(each, config[method]) for one, each in zip(own.values(), values[method], strict=True)]
        for method, own in found.items()
    }
    ends = {m: [each[last] for each, last in zip(values[m], lasts[m], strict=True)] for m in found}
    scores = _scores({method: dict(zip(own, ends[method], strict=True)) for method, own in found.items()})
    other = next(iter(scores)) if baseline is None else baseline
    alone = max(map(len, found.values())) == 1
    apart = [method for method in scores if not same_clients(config[method], config.get(other, {}), seeds=alone)]
    compared = compare_scores(scores, baseline, apart=apart)
    header, notes = formats.header_of(name, other), _notes(groups, found, config, apart, compared, other)
    alike = all(measures_of(one.metrics) == first for one in everything)
    shown = first.scores[0].partition("_")[0] if alike else "loss"
    return Comparison(
        formats.as_rows(compared, name),
        "\n".join([formats.as_text(compared, header, name), *notes]),
        "".join([formats.as_markdown(compared, header, name), *(f"\n{note}\n" for note in notes)]),
        formats.as_latex(compared, header, name),
        [cell.replace("\n", " ") for cell in header],
        formats.cells(compared),
        {method: _curves(values[method], ends[method]) for method in found},
        {
            method: np.concatenate([_of_clients(one, shown, config[method]) for one in own.values()])
            for method, own in found.items()
        },
        first.word if alike else shown,
        name,
        notes,
        _settings(folders[0]),
    )


def _measure(runs: Sequence[Any], asked: str | None) -> str:
    """The measure that is asked for, or the first run's own; ValueError where a run has no such number a round."""
    from fljax.run.headline import measures_of
    from fljax.run.spread import spreads

    first = runs[0]
    name = measures_of(first.metrics).scores[0] if asked is None else asked
    for one in runs:
        spreads_over_clients = spreads(one.metrics)
        if name in spreads_over_clients or (name in one.metrics and one.metrics[name].ndim == 1):
            continue
        if asked is None:
            raise ValueError(
                f"{first.folder} is compared by {name}, which {one.folder} does not have: classes and numbers; "
                "show them apart, or choose what both have: --measure test_loss"
            )
        numbers = [key for key, value in one.metrics.items() if value.ndim == 1 and value.dtype.kind == "f"]
        known = ", ".join([*numbers, *spreads_over_clients])
        raise ValueError(f"--measure {name}: {one.folder} has no such number; it has {known}")
    return name


def _over_rounds(run: Any, measure: str) -> Any:
    """(rounds,) of a run's measure as a table means it: simulated seconds are those since the run began."""
    import numpy as np

    from fljax.run.spread import measured

    values = measured(run.metrics, measure)
    return np.cumsum(values, dtype=np.float64) if measure == "simulated_seconds" else values


def _of_clients(run: Any, kind: str, config: dict[str, Any]) -> Any:
    """(clients,) of a run's last test."""
    from fljax.run.load import last_test

    values = run.metrics[f"client_{kind}"]
    return values[last_test(values, config)]


def _scores(ends: dict[str, dict[Any, Any]]) -> dict[str, Any]:
    """Method -> a number for each seed that any method has, NaN where it lacks one; alone, of whatever seed."""
    import numpy as np

    if max(map(len, ends.values())) == 1:
        return {method: np.array([*own.values()]) for method, own in ends.items()}
    seeds = dict.fromkeys(seed for own in ends.values() for seed in own)
    return {method: np.array([own.get(seed, np.nan) for seed in seeds]) for method, own in ends.items()}


def save_figures_of(folder: Path, figures: Path) -> None:
    """Draws what `fljax run` draws of a finished run, as PNG and PDF; of methods without saved models nothing."""

    from fljax.run.figures import save_figures
    from fljax.run.load import load_run
    from fljax.run.report import Outcome

    run = load_run(folder)
    outcomes = {
        name: Outcome(one.metrics, one.models, float("nan")) for name, one in run.results.items() if one.has_models
    }
    if outcomes:
        group = _groups(folder / "clients.csv", run.clients(), len(next(iter(outcomes.values())).deployed.row))
        save_figures(outcomes, group, figures, pdf=True)


def _groups(file: Path, lines: Sequence[dict[str, str]], n_clients: int) -> Any:
    """The clients' true groups, (clients,) int, of the lines of clients.csv; None where it has none.

    Raises:
        ValueError: they are not as a run writes them.
    """
    import numpy as np

    groups = [line.get("group") for line in lines]
    known = [word for word in groups if word]
    if not groups or len(known) < len(groups):
        return None
    if len(groups) != n_clients:
        raise ValueError(f"{file} has {len(groups)} clients, the models {n_clients}; put it back")
    for client, word in enumerate(known):
        if not word.isdecimal() or int(word) >= n_clients:
            raise ValueError(
                f"{file}: client {client} has group {word!r}; groups are 0 to {n_clients - 1}; put it back"
            )
    return np.array(known, int)


def save_comparison(compared: Comparison, folder: Path, title: str, drawn: Path | None = None) -> None:
    """Writes comparison.csv, comparison.md, comparison.tex, plots/ and report.html.

    ``drawn`` is a folder of more figures for both; those of other runs, which may lie in plots/, are none of them.
    """
    from shutil import copy
    from tempfile import TemporaryDirectory

    from fljax.run.report import save_table

    folder.mkdir(parents=True, exist_ok=True)
    save_table(folder / "comparison.csv", compared.rows)
    for path, text in ((folder / "comparison.md", compared.markdown), (folder / "comparison.tex", compared.latex)):
        with naming(path):
            path.write_text(text, encoding="utf-8")
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    with TemporaryDirectory() as spare:
        drawn = drawn or Path(spare)
        save_plots(compared, drawn)
        for path in drawn.iterdir():
            copy(path, plots)
        save_report(compared, folder / "report.html", title, drawn)


def save_plots(compared: Comparison, folder: Path) -> None:
    """Draws mean learning curves with the range of the seeds, and the spread over the clients."""
    import numpy as np

    from fljax.run import plots

    folder.mkdir(parents=True, exist_ok=True)
    # Of all seeds: one that stopped has its last value in rounds in which the others were not tested.
    tested = {method: np.isfinite(own).all(axis=0) for method, own in compared.curves.items()}
    lines = {m: (np.flatnonzero(tested[m]) + 1, own[:, tested[m]].mean(axis=0)) for m, own in compared.curves.items()}
    ranges = {m: (own[:, tested[m]].min(axis=0), own[:, tested[m]].max(axis=0)) for m, own in compared.curves.items()}
    word = compared.measure.replace("_", " ")
    few = ranges if len(lines) <= 5 else None  # more bands hide each other
    plots.save(plots.learning_curves(lines, word, spread=few), folder / "learning_curves.png", pdf=True)
    plots.save(
        plots.over_clients(compared.clients, f"client's test {compared.of_clients}"), folder / "clients.png", pdf=True
    )


def save_report(compared: Comparison, path: Path, title: str, figures: Path | None = None) -> None:
    """Writes the report in one HTML file; figures are drawn where no folder has them."""
    from tempfile import TemporaryDirectory

    from fljax.run.page import figures_of, page, save_page

    with TemporaryDirectory() as spare:
        if figures is None:
            save_plots(compared, figures := Path(spare))
        tables = {f"{compared.measure} at the end": (compared.header, compared.cells)}
        save_page(path, page(title, tables, figures_of(figures), compared.settings, compared.notes))


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """The run folders: a comparison's are those of its seeds."""
    found = []
    for folder in folders:
        seeds = [path for path in folder.glob("seed_*") if path.is_dir()] if folder.is_dir() else []
        found += sorted(seeds, key=lambda path: (len(path.name), path.name)) or [folder]
    return list({path.resolve(): path for path in found}.values())


def _notes(
    groups: dict[str, list[Any]],
    found: dict[str, dict[Any, Any]],
    config: dict[str, dict[str, Any]],
    apart: Sequence[str],
    compared: Sequence[Any],
    other: str,
) -> list[str]:
    """Lines under a table: what its runs do not have alike, what they left out, which have no pairs, and how many pairs
    the others have."""
    from fljax.run.comparison import left_out

    lines = these_differ({name: config_of(group[0]) for name, group in groups.items()})
    if len(groups) > 1:
        methods = {label: next(iter(own.values())).name for label, own in found.items()}
        lines += not_alike({label: _with_nones(config[label].get(name, {})) for label, name in methods.items()})
    lines += _not_at_the_same_round(found, config) + _no_results_yet(groups)
    lines += left_out({label: [one.metrics for one in own.values()] for label, own in found.items()})
    if apart:
        lines.append(f"no difference to {other} of {in_words(apart)}: other clients, or another seed's, are no pairs")
    of_other = [one.n_seeds for one in compared if one.algorithm == other]
    few = [
        f"{one.n_pairs} of {one.algorithm}"
        for one in compared
        if one.difference and {one.n_seeds, *of_other} != {one.n_pairs}
    ]
    return lines + ([f"seeds in common with {other}, which differences are over: {', '.join(few)}"] if few else [])


def _not_at_the_same_round(found: dict[str, dict[Any, Any]], config: dict[str, dict[str, Any]]) -> list[str]:
    """A line with the runs that have made fewer rounds than they are to make."""
    done = {label: {seed: len(one.metrics["ids"]) for seed, one in own.items()} for label, own in found.items()}
    longest = max(n for own in done.values() for n in own.values())
    told = []
    for label, own in done.items():
        planned = config[label].get("rounds", longest)
        for n in sorted(set(own.values())):
            which = _which([seed for seed, made in own.items() if made == n], len(own))
            told += [f"{label} {n} of {planned}{which}"] if n < planned else []
    same = all(n == longest for own in done.values() for n in own.values())
    word = "not finished, so that the last tests are compared" if same else "not at the same round"
    return [f"{word}: {'; '.join(told)}"] if told else []


def _no_results_yet(groups: dict[str, list[Any]]) -> list[str]:
    """A line with the methods that a folder's config.toml has and that have made no round there."""
    told = []
    for name, group in groups.items():
        for method in dict.fromkeys(short_name(word) for run in group for word in run.config.get("algorithm", ())):
            seeds = [run.config.get("seed") for run in group if method not in run]
            told += [f"{label_of(groups, name, method)}{_which(seeds, len(group))}"] if seeds else []
    return [f"{', '.join(told)}: no results yet"] if told else []


def _which(seeds: Sequence[Any], n_seeds: int) -> str:
    """Which of a method's seeds are meant, where not all of them are."""
    return f" (seed {', '.join(map(str, seeds))})" if len(seeds) < n_seeds else ""


def _with_nones(section: dict[str, Any]) -> dict[str, Any]:
    """A method's settings, with those of its optimiser that a config.toml leaves out where they are None."""
    return dict.fromkeys(STEPS[1:] if "lr" in section else ()) | section


def _curves(runs: Sequence[Any], ends: Sequence[Any]) -> Any:
    """(seeds, rounds); runs of fewer rounds keep their last value, of ``ends``."""
    import numpy as np

    longest = max(len(run) for run in runs)
    padded = [np.append(run, [end] * (longest - len(run))) for run, end in zip(runs, ends, strict=True)]
    return np.stack(padded).astype(float)


def _settings(folder: Path) -> str:
    """What made a run: the comparison that it is a seed of, or itself."""
    paths = (folder.parent / "config.toml", folder / "config.toml")
    above, own = (path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in paths)
    return above if above.startswith("# fljax compare") else own
