"""Attacks x defences x methods on real images: accuracy of the honest clients, success of the trigger, clusters.

    python experiments/hostile.py --smoke            # two methods, three attacks, one seed: a minute or two
    python experiments/hostile.py table              # everything on digits, 12 clients, 3 seeds; goes on where it was
    python experiments/hostile.py table --only ifca --scale paper

``table``: each of the attacks on FedAvg, Ditto, IFCA, FeSEM, FedTSDP, LayerCFL, DC-PFL and FedCPS with each of the
defences that the method has a slot for, and what is left under the worst attack. All attacks, defences and seeds of a
method are one compiled program, FoolsGold another. ``placed``: attackers spread over the groups, or all in one. A
quarter of the clients attacks from the third round on; accuracies are those of the others, where nobody attacks too.

Scale smoke: 1,797 digits of 8 x 8 pixels turned in one of three ways, an MLP 64-32-10, 12 rounds of 2 epochs. Paper:
MNIST (FLJAX_DATA names its folder), 20 clients, an MLP 784-64-10, 40 rounds of 5 epochs. A defence is told how many
attackers to expect: of a clustered method one, as if they were spread over its clusters, else all, 3 of 12 or 5 of 20.
Clusters may be fewer than the groups: in the kept table LayerCFL has one in all runs and FedTSDP in four of five, so
that Krum and multi-Krum compare all 12 clients there, of whom three attack, and are told one.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from hostile_runs import Attackers, ChosenHyper, any_defence, under_each
from reporting import CONSOLE, Scale, main
from table_figures import grid, number
from tables import Row, show, spread

import fljax
from fljax.attacks import ATTACKS, Attack, attacked
from fljax.attacks.attackers import attackers
from fljax.data.datasets import load
from fljax.data.federation import n_classes
from fljax.files import checksum
from fljax.folder.surroundings import versions
from fljax.models import mlp
from fljax.numbers import as_dict, joined, numbers_of, replace
from fljax.report.plots import save
from fljax.rounds.bricks import BRICKS
from fljax.rounds.combine import mean
from fljax.rounds.slots import Brick
from fljax.run.identity import static_choices
from fljax.types import Algorithm, Federation, Model, Work

SHARE, START = 0.25, 2
ATTACKED_BY: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "label_flip": {},
    "feature_noise": {},
    "sign_flip": {"scale": 3.0},
    "scaled": {"scale": 5.0},
    "alie": {},
    "ipm": {"scale": 3.0},
    "fang": {},
    "min_max": {},
    "min_sum": {},
    "backdoor": {"width": 2},
    "model_replacement": {"scale": 5.0, "width": 2},
    "free_rider": {},
}
MEAN, CLIP = "mean", 0.5
DEFENCES = (MEAN, "median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "clip_update", "fools_gold")
MEAN_OF_ALL = Brick(MEAN, "combine", mean, "no defence")
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "ditto": {},
    "ifca": {"n_clusters": 3},
    "fesem": {"n_clusters": 3},
    "fedtsdp": {"public_batch": 50, "n_draws": 5},
    "layercfl": {"layers": "all"},
    "dcpfl": {},
    "fedcps": {"n_clusters": 3},
}


@cache
def federation(paper: bool, seed: int) -> Federation:
    """Real images turned in one of three ways, a way a group."""
    train, test = load("mnist" if paper else "digits")
    n_clients = 20 if paper else 12
    return fljax.PARTITIONS["rotated_groups"](train, test, n_clients, n_groups=3, seed=seed, n_public=100)


def network(scale: Scale) -> Model:
    """An MLP for the images."""
    first = federation(scale.paper, 0)
    return mlp(first.train.pool.x.shape[1:], (scale.pick(32, 64),), n_classes(first))


def attack_of(name: str, **placement: Any) -> Attack:
    """An attack with the numbers of `ATTACKED_BY`, by a share of the clients."""
    return ATTACKS[name](
        **ATTACKED_BY[name], **({"share": SHARE, "start": START} | placement if name != "none" else {})
    )


class Program(NamedTuple):
    """A method with several defences that one program has."""

    method: str
    defences: tuple[str, ...]
    algorithm: Algorithm
    numbers: tuple[Any, ...]  # of each defence


def programs(scale: Scale, method: str, defences: Sequence[str]) -> list[Program]:
    """What is compiled for a method: one program, and one for each brick on the way up but clipping."""
    factory, method_programs = fljax.ALGORITHMS[method], []
    usable = [name for name in defences if name == MEAN or BRICKS[name].slot in factory.slots]
    separate = [name for name in usable if name not in (MEAN, "clip_update") and BRICKS[name].slot == "uplink"]
    for names in ([name for name in usable if name not in separate], *([name] for name in separate)):
        bricks = [BRICKS[name] for name in names if name != MEAN]
        robust = [brick for brick in bricks if brick.slot == "combine"]
        links = [brick for brick in bricks if brick.slot == "uplink"]
        composed = fljax.compose("+".join([method, *(brick.name for brick in links)]))
        choices = dict(SYSTEMS[method]) | ({"combine": any_defence([MEAN_OF_ALL, *robust])} if robust else {})
        algorithm = composed(network(scale), Work(scale.pick(2, 5), 32), **choices)
        Hyper = joined(composed.Hyper, *dict.fromkeys(kinds(robust)), ChosenHyper)
        values = run_numbers(scale, factory.kind == "clustered", numbers_of(Hyper))
        places = [robust.index(BRICKS[name]) + 1 if name != MEAN and BRICKS[name] in robust else 0 for name in names]
        clips = [
            {"clip": CLIP if name == "clip_update" else np.inf} if "clip" in numbers_of(Hyper) else {} for name in names
        ]
        numbers = [Hyper(**values | clip, defence=float(place)) for place, clip in zip(places, clips, strict=True)]
        method_programs.append(Program(method, tuple(names), algorithm, tuple(numbers)))
    return method_programs


def kinds(bricks: Sequence[Brick]) -> list[type]:
    """The classes of the numbers of bricks, without those that another one has all of."""
    all_kinds = [brick.Hyper for brick in bricks if brick.Hyper is not None]
    return [kind for kind in all_kinds if not any(issubclass(other, kind) and other is not kind for other in all_kinds)]


def run_numbers(scale: Scale, has_several_models: bool, fields: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a run; a defence expects all attackers, one if the method ``has_several_models``.

    That is one in each of three clusters, and too few of a method that does not divide its clients.
    """
    expected = 1 if has_several_models else len(attackers(federation(scale.paper, 0), SHARE, None, "spread"))
    numbers = {
        "lr": scale.pick(0.3, 0.1),
        "n_attackers": expected,
        "n_selected": 2 if has_several_models else 6,
        "trim": SHARE,
    }
    return {name: float(value) for name, value in numbers.items() if name in fields}


def n_rounds(scale: Scale) -> int:
    """Rounds of every run."""
    return scale.rounds or scale.pick(12, 40, brief=4)


def identity(program: Program, federations: Sequence[Federation]) -> list[Any]:
    """What kept numbers of a program must have been made by, beside its numbers and attacks: a value for JSON."""
    return [static_choices(program.algorithm), program.defences, versions(), [checksum_of(one) for one in federations]]


def checksum_of(federation: Federation) -> int:
    """A checksum of all that the clients and the server have."""
    total = 0
    for leaf in jax.tree.leaves(federation):
        total = checksum(np.ascontiguousarray(leaf), total)
    return total


def rows_of(scale: Scale, program: Program, names: Sequence[str]) -> list[Row]:
    """A line for each defence and attack; from the folder where they have been run before."""
    federations = [federation(scale.paper, seed) for seed in range(scale.n_seeds)]
    attacking, attacks = (
        Attackers(attackers(federations[0], SHARE, None, "spread"), START),
        [attack_of(name) for name in names],
    )
    numbers = [replace(one, attack=float(i)) for one in program.numbers for i in range(len(names))]
    made_by = [as_dict(one) for one in numbers], attacking, n_rounds(scale), [one.about for one in attacks]
    made_by = json.loads(json.dumps([*identity(program, federations), *made_by]))
    file = scale.folder / "runs" / f"{program.algorithm.about.name}.json"
    saved = json.loads(file.read_text()) if file.exists() else {}
    if saved.get("told") != made_by:
        metrics = under_each(program.algorithm, numbers, attacks, federations, n_rounds(scale), attacking)
        columns = ("accuracy_macro", "attack_success", "ari")
        saved = {"told": made_by, **{name: np.asarray(metrics[name]).tolist() for name in columns if name in metrics}}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(saved))
    cells = [(defence, attack) for defence in program.defences for attack in names]
    return [_row(program.method, *cell, saved, i) for i, cell in enumerate(cells)]


def _row(method: str, defence: str, attack: str, metrics: Mapping[str, Any], place: int) -> Row:
    row: Row = {"method": method, "defence": defence, "attack": attack}
    row["accuracy"] = spread(metrics["accuracy_macro"][place])
    if attack == "none" or "width" in ATTACKED_BY[attack]:
        row["attack success"] = spread(metrics["attack_success"][place])
    if "ari" in metrics:
        row["ARI"] = spread(metrics["ari"][place])
    return row


def systems(scale: Scale) -> tuple[str, ...]:
    """Names of the methods."""
    return scale.pick(tuple(SYSTEMS), tuple(SYSTEMS), brief=("fedavg", "ifca"))


def table(scale: Scale) -> None:
    """Every attack on every method with every defence that it has a slot for."""
    methods = scale.chosen(dict.fromkeys(systems(scale)))
    names = scale.pick(tuple(ATTACKED_BY), tuple(ATTACKED_BY), brief=("none", "sign_flip", "model_replacement"))
    defences, rows = scale.pick(DEFENCES, DEFENCES, brief=(MEAN, "median")), []
    all_programs = [program for method in methods for program in programs(scale, method, defences)]
    for program in sorted(all_programs, key=lambda program: -len(program.defences)):
        rows += rows_of(scale, program, names)
        CONSOLE.print(f"[dim]{program.method}: {', '.join(program.defences)}[/]")
    rows.sort(key=lambda row: list(methods).index(row["method"]))
    title = "Accuracy of the honest under the worst attack: a quarter of the clients attacks"
    show(scale, "worst", title, lowest := worst(rows), grid(lowest, "method", "defence"))
    for method in methods:
        figure = grid([row for row in rows if row["method"] == method], "defence", "attack")
        scale.folder.mkdir(parents=True, exist_ok=True)
        save(figure, scale.folder / f"{method}.png")
    show(scale, "table", "Every attack", rows)


def worst(rows: list[Row]) -> list[Row]:
    """For each method and defence the attack that leaves the honest least, and what it leaves."""
    cells: dict[tuple[str, str], Row] = {}
    for row in rows:
        cell = row["method"], row["defence"]
        if row["attack"] != "none" and number(row["accuracy"]) < number(
            cells.get(cell, {"accuracy": np.inf})["accuracy"]
        ):
            cells[cell] = row
    return list(cells.values())


def placed(scale: Scale) -> None:
    """Attackers spread over the groups, or all in one: per cluster a quarter is few, or everybody."""
    rows, columns = [], {"accuracy": "accuracy_macro", "ARI": "ari"}
    for placement in ("spread", "one_group"):
        for name in ("ifca", "ifca+median"):
            composed, seed_metrics = fljax.compose(name), []
            algorithm = composed(network(scale), Work(scale.pick(2, 5), 32), **SYSTEMS["ifca"])
            for seed in range(scale.n_seeds):
                run = attacked(algorithm, federation(scale.paper, seed), attack_of("sign_flip", placed=placement))
                arguments = (
                    composed.Hyper(lr=scale.pick(0.3, 0.1)),
                    run.federation,
                    jax.random.key(seed),
                    n_rounds(scale),
                )
                seed_metrics.append(fljax.simulate(run.algorithm, *arguments, evaluate_every=n_rounds(scale))[1])
            spreads = {
                column: spread(metrics[name][-1] for metrics in seed_metrics) for column, name in columns.items()
            }
            rows.append({"placed": placement, "method": name, "attack": "sign_flip", **spreads})
    title = "IFCA under sign flips, attackers spread over the groups or in one"
    show(scale, "placed", title, rows, grid(rows, "method", "placed"))


if __name__ == "__main__":
    main(__doc__ or "", {"table": table, "placed": placed}, (3, 3), only=systems)
