"""`fljax compare`: several methods over several seeds, each seed with its own partition."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fljax.catalogue.job import RUN
from fljax.catalogue.parameters import parameters
from fljax.choices import Positive
from fljax.cli.run import carry_out
from fljax.jobs.job import Job
from fljax.jobs.kinds import RESULTS
from fljax.jobs.layers import MAY_CHANGE
from fljax.jobs.settings import OF_A_RUN_ALONE

HELP = """Runs several methods under several seeds and tests whether they differ.

Seed s is a run of fljax run --seed s: it has its own partition, cohorts and initial model, the same for all methods.
Partitions are padded to one shape, so each method is compiled once and one program trains all its seeds; with --attack,
--drift or --clock seeds are trained one by one. The table shows the mean and the standard deviation over the seeds, and
for each method the paired difference to --baseline with its 95 % confidence interval, the p-value of the paired t-test,
and the p-value after Holm's correction for the number of methods. The same command with --folder resumes an interrupted
comparison; --seeds may then be larger."""


class CompareSettings(NamedTuple):
    """The settings of a comparison, besides those of a job.

    seeds: number of runs of each method, with seeds --seed, --seed + 1 and so on.
    baseline: method that the others are compared with; None: the first.
    measure: metric that is compared, or megabytes_up, megabytes_down; None: accuracy_macro, for regression r2_micro.
    """

    seeds: Positive = 3
    baseline: str | None = None
    measure: str | None = None


COMPARE = parameters(CompareSettings)
OWN = {name: one for name, one in RUN.items() if name not in ("new_client_rounds", *OF_A_RUN_ALONE)} | COMPARE


def main(arguments: Sequence[str]) -> None:
    """Runs the comparison that ``arguments`` describe.

    Raises:
        ValueError: in one line, for every error that the user can correct.
    """
    carry_out("fljax compare", HELP, OWN, arguments, execute)


def execute(job: Job) -> list[Any]:
    """Carries out every run, prints the table and writes the results folder."""
    from fljax.cli.execute import check_each
    from fljax.data.padding import same_shapes
    from fljax.folder.writer import only_run
    from fljax.jobs import config
    from fljax.jobs.assemble import devices_of
    from fljax.jobs.going_on import begun_with
    from fljax.jobs.parts import make_federation, make_model
    from fljax.jobs.remarks import noises
    from fljax.jobs.seeds import Seed, check_going_on, on_devices, plans
    from fljax.results.comparison_settings import check_comparison, check_measure

    check_comparison(job)
    jobs = [job.with_setting("seed", job.run.seed + i) for i in range(job.own["seeds"])]
    federations = same_shapes([make_federation(seed_job) for seed_job in jobs])
    begun = begun_with(job, [job.folder / _name(seed_job) for seed_job in jobs] if job.folder else [])
    devices = devices_of(jobs[0], make_model(jobs[0], federations[0]), federations[0], begun, len(jobs))
    federations = on_devices(federations, devices)
    planned, _ = plans(Seed(jobs[0], federations[0], Path(), devices))
    check_each(planned)
    if job.own["measure"] is not None:
        check_measure(job.own["measure"], planned)
    folder = job.folder or config.new_folder()
    with only_run(folder) as writable:
        settings = {name: value for name, value in config.as_toml(job).items() if name not in COMPARE}
        comparison_settings = {name: value for name, value in config.as_toml(job).items() if name in COMPARE}
        folders, may_change = [folder / _name(seed_job) for seed_job in jobs], (*MAY_CHANGE, *COMPARE)
        seeds = [Seed(*parts, devices) for parts in zip(jobs, federations, folders, strict=True)]
        config.check(comparison_settings | settings, job, folder, may_change)
        _check_seeds(job.own["seeds"], folder)
        check_going_on(seeds, folder)
        config.write("compare", comparison_settings | settings, job, folder, may_change, writable)
        return _results(seeds, folder, noises(job, planned), writable)


def _name(job: Job) -> str:
    """The name of a seed's folder."""
    return f"seed_{job.run.seed}"


def _check_seeds(n_seeds: int, folder: Path) -> None:
    """Raises ValueError if the folder holds more seeds than asked for: its table would lose them."""
    n_held = len([path for path in folder.glob("seed_*") if any(path.glob(RESULTS["run"]))])
    if n_held > n_seeds:
        raise ValueError(
            f"--seeds {n_seeds}: {folder} holds {n_held} seeds; choose --seeds {n_held} or another --folder"
        )


def _results(seeds: Sequence[Any], folder: Path, noises: Sequence[str], writable: bool) -> list[Any]:
    from fljax.cli.interrupts import saying_how_to_go_on
    from fljax.jobs.parts import make_model
    from fljax.jobs.remarks import headline
    from fljax.jobs.seeds import alike, run_seeds
    from fljax.results.comparison import save_comparison
    from fljax.results.finished import compare_runs

    job, federation, _, devices = seeds[0]
    print("\n".join([headline(job, federation, make_model(job, federation), devices=devices), *noises]))
    n_seeds = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    print(f"{n_seeds} of {', '.join(job.methods)}")
    with saying_how_to_go_on("compare", folder):
        for group in alike(seeds):
            run_seeds(group, writable)
    compared = compare_runs([seed.folder for seed in seeds], job.own["baseline"], job.own["measure"])
    if writable:
        save_comparison(compared, folder, title=f"{', '.join(job.methods)}: {n_seeds}")
    print(compared.text)
    if writable:
        print(f"results in {folder}: comparison.csv, .md and .tex, report.html, plots/, one folder per seed")
    else:
        print(f"{folder} is not writable: its comparison.csv and plots/ are unchanged")
    return compared.rows
