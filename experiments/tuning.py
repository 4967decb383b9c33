"""Tuning: FedProx's mu, FedCPS's lambda and FeSEM's mu on Dirichlet(0.2) Fashion-MNIST, by grid and by Optuna.

python experiments/tuning.py [grid optuna] [--scale smoke|paper] [--seeds N]

FLJAX_DATA names the folder with fashion_mnist. Lines are in results/tuning/. Learning rate and weight are searched
together. Points are judged by validation accuracy (macro) over seeds, and what was chosen is then tested once, on the
test split. `optuna` needs `pip install 'fljax[tune]'`: its sampler proposes points in batches, for a batch runs as one
program.

Three seeds at smoke are few: the table has the interval of each number, and weights whose intervals overlap are not
told apart.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from lines import keep_numbers
from reporting import CONSOLE, Scale, main, random_examples
from tables import Row, show

import fljax
from fljax.algorithms.fedcps import fedcps
from fljax.algorithms.fedprox import fedprox
from fljax.algorithms.fesem import fesem
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.models import lenet, mlp
from fljax.report import summary
from fljax.report.plots import save
from fljax.run.sweep import best, grid, log_spaced, on_validation, search, tidy
from fljax.run.sweep.figures import heat_map, response
from fljax.run.sweep.table import Spread
from fljax.types import Algorithm, Federation, Work

LR = (0.01, 0.3)
"""Ends of the learning rates searched."""


class Task(NamedTuple):
    """A method, and which of its numbers is looked for."""

    algorithm: Algorithm
    hyper: Any
    weight: str  # the field
    low: float
    high: float


def tasks(scale: Scale) -> dict[str, Task]:
    """The three methods; at smoke on a small dense network."""
    model, work = scale.pick(mlp(hidden=(64,)), lenet()), Work(epochs=scale.pick(2, 5), batch_size=32)
    cps = fedcps(model, work, 2, lambda_mode="fixed", deployed="fresh")
    return {
        "FedProx mu": Task(fedprox(model, work), fljax.fedprox.Hyper(), "mu", 1e-3, 1.0),
        "FedCPS lambda": Task(cps, fljax.fedcps.Hyper(max_norm=10.0), "strength", 1e-3, 1.0),
        "FeSEM mu": Task(fesem(model, work, 2), fljax.fesem.Hyper(), "mu", 1e-3, 1.0),
    }


def federation(scale: Scale) -> Federation:
    """Dirichlet(0.2): 20 clients, a fifth of each for validation and a fifth for the test."""
    train, test = load("fashion_mnist")
    train = scale.pick(random_examples(train, 2000), train)
    return PARTITIONS["dirichlet"](
        train, test, scale.pick(20, 100), seed=0, beta=0.2, val_fraction=0.2, test_fraction=0.2, public=False
    )


def planned(scale: Scale) -> int:
    """Rounds of a whole run."""
    return scale.pick(10, 200)


def runs(scale: Scale, task: Task, data: Federation, hypers: Any, validated: bool = True) -> list[summary.Row]:
    """A row a point and seed, on the validation split or, once all is decided, on the test split."""
    options: dict = {"evaluate_every": scale.pick(5, 10), "participation": scale.pick(0.5, 0.2)}
    split = on_validation(data) if validated else data
    n_rounds = scale.rounds or planned(scale)
    result = search(task.algorithm, hypers, split, jax.random.key(0), scale.n_seeds, n_rounds, **options)
    return tidy(hypers, result.metrics, result.rounds)


def conclusion(scale: Scale, way: str, name: str, task: Task, data: Federation, rows: list[summary.Row]) -> Row:
    """What was chosen, how it did where it was chosen, and on the test split."""
    chosen = best(rows)
    point = {field: [float(str(value))] for field, value in chosen.point.items()}
    test_rows = runs(scale, task, data, grid(task.hyper, **point), validated=False)
    tested: Spread = best(test_rows)
    numbers: dict[tuple[str, str, int, str], float] = {
        (name, way, seed, "accuracy_macro"): float(str(row["accuracy_macro"])) for seed, row in enumerate(test_rows)
    }
    numbers |= {(name, way, 0, task.weight): point[task.weight][0], (name, way, 0, "lr"): point["lr"][0]}
    numbers |= {(name, way, 0, "validation"): chosen.mean}
    how = {"points": len(rows) // scale.n_seeds, "data": "Dirichlet 0.2"}
    keep_numbers(scale, ("tuning", way, "FMNIST"), numbers, (scale.rounds or planned(scale), planned(scale)), **how)
    return {
        "looked for": name,
        "found": round(point[task.weight][0], 5),
        "lr": round(point["lr"][0], 4),
        "validation": written(chosen),
        "test": written(tested),
        "points": len(rows) // scale.n_seeds,
        "diverged": sum(row["diverged"] is not None for row in rows),
    }


def written(score: Spread) -> str:
    """The mean over seeds and its interval, which one seed does not have."""
    return f"{score.mean:.4f}" + (f" ({score.low:.4f} to {score.high:.4f})" if np.isfinite(score.low) else "")


def searched(scale: Scale, way: str, find: Callable[[Task, Federation], list[summary.Row]]) -> None:
    """Every task searched in one way: its table, and for each a figure of what its weight does."""
    data, conclusions = federation(scale), []
    scale.folder.mkdir(parents=True, exist_ok=True)
    for name, task in tasks(scale).items():
        rows = find(task, data)
        stem = f"{way}_{name.replace(' ', '_')}"
        summary.save_table(scale.folder / f"{stem}.csv", rows)
        title = f"{name}, Dirichlet(0.2) Fashion-MNIST"
        save(response(rows, task.weight, title=title), scale.folder / f"{stem}.png")
        if way == "grid":
            save(heat_map(rows, "lr", task.weight, title=title), scale.folder / f"{stem}_map.png")
        conclusions.append(conclusion(scale, way, name, task, data, rows))
        CONSOLE.print(f"[dim]{way}: {name} done[/]")
    show(scale, way, f"fashion_mnist, Dirichlet(0.2), {scale.seeds_in_words}, searched by {way}", conclusions)


def by_grid(scale: Scale) -> None:
    """Learning rates x weights, both at even ratios."""
    n_lr, n_weights = scale.pick((3, 4), (6, 7))

    def find(task: Task, data: Federation) -> list[summary.Row]:
        values = {"lr": log_spaced(*LR, n_lr), task.weight: log_spaced(task.low, task.high, n_weights)}
        return runs(scale, task, data, grid(task.hyper, **values))

    searched(scale, "grid", find)


def by_optuna(scale: Scale) -> None:
    """Optuna's tree-structured Parzen estimator, asked for a batch of points at a time."""
    import optuna  # the extra 'tune'

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    n_batches, batch = scale.pick((3, 4), (6, 7))

    def find(task: Task, data: Federation) -> list[summary.Row]:
        sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=batch, constant_liar=True)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        rows: list[summary.Row] = []
        for _ in range(n_batches):
            trials = [study.ask() for _ in range(batch)]
            points = [proposed(trial, task) for trial in trials]
            fields = {name: [point[name] for point in points] for name in points[0]}
            new_rows = runs(scale, task, data, task.hyper.replace(**fields))
            for trial, trial_rows in zip(trials, np.array_split(np.arange(len(new_rows)), batch), strict=True):
                values = [new_rows[i]["accuracy_macro"] for i in trial_rows]
                is_finite = all(value is not None for value in values)
                study.tell(
                    trial,
                    float(np.mean(values)) if is_finite else None,
                    # Worse than all others; the sampler would ignore a failed trial, and come back to where it was.
                    state=None if is_finite else optuna.trial.TrialState.PRUNED,
                )
            rows += new_rows
        return rows

    searched(scale, "optuna", find)


def proposed(trial: Any, task: Task) -> dict[str, float]:
    """One point that Optuna wants to see."""
    return {
        "lr": trial.suggest_float("lr", *LR, log=True),
        task.weight: trial.suggest_float(task.weight, task.low, task.high, log=True),
    }


if __name__ == "__main__":
    main(__doc__ or "", {"grid": by_grid, "optuna": by_optuna}, n_seeds=(3, 3))
