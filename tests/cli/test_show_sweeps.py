"""`fljax show` of sweeps: those of several folders are one table, a sweep that goes on is shown as it stands."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fljax import load_sweep
from fljax.cli import main
from fljax.results.joined_sweeps import Joined, join_sweeps
from fljax.run.sweep import best, by_point
from fljax.sealed import with_checksum
from tests.cli.conftest import leave_figures_empty

SMALL = ("--rounds", "2", "--model", "logistic_regression", "--partition.n-clients", "4", "--epochs", "1")
LR = ("--lr", "0.1", "0.3")


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory):
    """Sweeps of three folders: of two values of mu, which is fixed in each, and of both by validation examples."""
    folder = tmp_path_factory.mktemp("sweeps")
    with pytest.MonkeyPatch.context() as patch:
        leave_figures_empty(patch)
        for mu in ("0.1", "1"):
            arguments = ("--algorithm", "fedprox", *SMALL, *LR, "--mu", mu, "--seeds", "2", "--runs-at-once", "1")
            assert main(["sweep", *arguments, "--folder", str(folder / mu)]) == 0
        arguments = ("--algorithm", "fedprox", *SMALL, "--outer.mu", "0.1", "1", *LR)  # two folders of one program
        arguments += ("--judge", "val", "--metric", "f1_macro")
        assert main(["sweep", *arguments, "--folder", str(folder / "val")]) == 0
    return folder


def rows_of(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_what_sweeps_do_not_have_alike_is_a_column(sweep_folder, fljax):
    status, out, _ = fljax("show", str(sweep_folder / "0.1"), str(sweep_folder / "1"), "--out", "both")
    assert status == 0
    rows = rows_of("both/table.csv")
    assert [(float(row["mu"]), float(row["lr"]), row["seed"]) for row in rows] == [
        (mu, lr, seed) for mu in (0.1, 1.0) for lr in (0.1, 0.3) for seed in "01"
    ]
    expected = [row for mu in ("0.1", "1") for row in rows_of(sweep_folder / mu / "table.csv")]
    assert [row["accuracy_macro"] for row in rows] == [row["accuracy_macro"] for row in expected]
    means = {(row["mu"], row["lr"]): [] for row in rows}
    for row in rows:
        means[row["mu"], row["lr"]].append(float(row["accuracy_macro"]))
    (mu, lr), values = max(means.items(), key=lambda item: np.mean(item[1]))
    cells = out.splitlines()[1].split()
    assert (float(cells[0]), float(cells[1]), cells[3]) == (float(mu), float(lr), f"{np.mean(values):.4f}")
    assert out.splitlines()[-1] == f"its settings: --fedprox.epochs 1 --fedprox.mu {float(mu)} --fedprox.lr {float(lr)}"
    _, reversed_out, _ = fljax("show", str(sweep_folder / "1"), str(sweep_folder / "0.1"))
    assert reversed_out.splitlines()[-1] == out.splitlines()[-1]
    assert {path.name for path in Path("both/plots").iterdir()} == {
        f"{name}.{kind}" for name in ("mu", "lr", "heat_map", "curves_0", "curves_1") for kind in ("png", "pdf")
    }
    assert Path("both/table.md").read_text().startswith("| mu | lr | rounds | accuracy_macro |")
    assert r"\toprule" in Path("both/table.tex").read_text()


@pytest.mark.slow
def test_a_run_that_two_sweeps_have_is_there_once(sweep_folder, tmp_path):
    shutil.copytree(sweep_folder / "1", tmp_path / "copy")
    result = join_sweeps([sweep_folder / "1", tmp_path / "copy"])
    assert len(result.rows) == 4
    assert result.point == ["lr"]


def test_a_sweep_alone_and_one_that_goes_on(sweep_folder, fljax):
    _, out, _ = fljax("show", str(sweep_folder / "val"))
    table = load_sweep(sweep_folder / "val").table
    assert "val_f1_macro" in out.splitlines()[0]
    assert f"val_f1_macro {best(table, 'val_f1_macro').mean:.4f}" in out
    assert f"--fedprox.mu {best(table, 'val_f1_macro').point['mu']}" in out
    shutil.copytree(sweep_folder / "1", "stopped")
    Path("stopped/table.csv").unlink()
    without_table = join_sweeps([Path("stopped")])
    assert without_table.rows == join_sweeps([sweep_folder / "1"]).rows
    loaded = load_sweep(sweep_folder / "val")
    assert loaded.rows() is loaded.table
    first_file, *other_files = sorted(Path("stopped/runs/parts").glob("*.npz"))
    for path in other_files:
        path.unlink()
    rows = join_sweeps([Path("stopped")]).rows
    assert [(row["lr"], row["seed"]) for row in rows] == [(0.1, 0), (0.1, 1)][: len(rows)]
    assert 0 < len(rows) < 4
    shutil.copytree(sweep_folder / "val", "later")
    lines = Path("later/table.csv").read_text().splitlines(keepends=True)
    Path("later/table.csv").write_text("".join(lines[:3]))
    Path("later/.table.csv.crc").unlink()
    assert len(join_sweeps([Path("later")]).rows) == 4  # the table has not all of the runs
    first_file.unlink()
    status, _, err = fljax("show", "stopped")
    assert (status, "holds no runs of a sweep" in err) == (2, True)


def test_data_is_a_condition_and_a_number_of_the_method_none():
    settings = [{"outer.partition.beta": ["0.1", "1"], "dataset": ["digits"]}, {"dataset": ["mnist"]}]
    row = {"dataset": "digits", "partition.beta": "1", "beta": 0.5, "lr": 0.1, "seed": 0, "accuracy_macro": 0.5}
    joined = Joined([], [row], [0], ["dataset", "lr"], settings, "accuracy_macro", "test")
    assert joined.conditions == ["dataset", "partition.beta"]  # not the method's own beta
    del row["partition.beta"]
    assert joined.conditions == ["dataset", "beta"]


@pytest.mark.slow
def test_what_one_varies_and_another_has_fixed_is_one_column(fljax):
    data = ("--partition", "dirichlet", "--partition.beta", "0.5", "--lr", "0.1", "0.2")
    assert fljax("sweep", *SMALL, *data, "--folder", "one")[0] == 0
    for name, betas in (("two", ("0.1", "0.5")), ("three", ("0.1", "1"))):
        assert fljax("sweep", *SMALL, *data, "--outer.partition.beta", *betas, "--folder", name)[0] == 0
    result = join_sweeps([Path("one"), Path("two"), Path("three")])
    assert result.point == ["beta", "lr"]
    assert [row["beta"] for row in result.rows] == [0.5, 0.5, 0.1, 0.1, 1.0, 1.0]  # each run once
    assert result.conditions == ["beta"]
    out = fljax("show", "one", "two", "three")[1]
    assert re.findall("best with beta=(.*?):", out) == ["0.5", "0.1", "1"]
    assert re.findall("its settings: .*--partition.beta (\\S+)", out) == ["0.5", "0.1", "1.0"]


@pytest.mark.slow
def test_sweeps_of_other_seeds_and_many_points(sweep_folder, fljax, monkeypatch):
    assert fljax("sweep", *SMALL, *LR, "--seed", "1", "--folder", "seed-1")[0] == 0
    assert fljax("sweep", *SMALL, *LR, "--seed", "2", "--folder", "seed-2")[0] == 0
    assert fljax("sweep", *SMALL[2:], *LR, "--seed", "2", "--rounds", "1", "--seeds", "2", "--folder", "short")[0] == 0
    partitions = join_sweeps([Path("seed-1"), Path("seed-2")])
    assert (partitions.point, {row["partition_seed"] for row in partitions.rows}) == (["lr"], {1, 2})
    assert [(point.n_seeds, point.n_partitions) for point in by_point(partitions.rows)] == [(2, 2), (2, 2)]
    assert not re.search("its settings:.*--seed", fljax("show", "seed-1", "seed-2")[1])
    assert fljax("sweep", *SMALL, "--lr", "0.5", "0.6", "--seed", "2", "--folder", "other-points")[0] == 0
    out = fljax("show", "seed-1", "other-points")[1]
    assert "not every point was run on every partition (--seed 1, 2); those on fewer come last\n" in out
    unequal = join_sweeps([Path("seed-2"), Path("short")])
    assert unequal.point == ["sweep.rounds", "lr"]
    assert [(point.rounds, point.n_seeds) for point in by_point(unequal.rows)] == [(2, 1), (2, 1), (1, 2), (1, 2)]
    out = fljax("show", "seed-2", "short")[1]
    rounds = out.partition("best: sweep.rounds=")[2].partition(",")[0]
    assert (
        f"its settings: --rounds {rounds} --fedavg.epochs 1 --fedavg.lr " in out
    )  # what one sweep has otherwise than the other
    assert "the best" not in fljax("show", "seed-2", "short")[1]
    monkeypatch.setattr("fljax.run.sweep.shown.SHOWN", 3)
    assert "the best 3 of 4 points" in fljax("show", "seed-2", "short")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("0.1", "val"), "judged by different splits"),
        (
            ("0.1", "1", "--measure", "speed"),
            "measure='speed' is not a metric by which all runs can be judged; choose one of",
        ),
        (("0.1", "--measure", "best_round"), "measure='best_round' is not a metric by which all runs can be judged"),
        (("0.1", "--target", "0.9"), "--target 0.9: for sweeps fljax show takes only --measure and --out"),
        (("0.1", ".."), ".. holds no sweep; show runs and sweeps separately"),
    ],
)
def test_what_does_not_go_together_is_refused(sweep_folder, refused, words, message):
    folders = [str(sweep_folder / word) if (sweep_folder / word).is_dir() and word != ".." else word for word in words]
    assert message in refused("show", *folders)


def test_sweeps_of_different_metrics_ask_by_what(sweep_folder, tmp_path):
    shutil.copytree(sweep_folder / "val", tmp_path / "other")
    config = tmp_path / "other/config.toml"
    text = config.read_text().replace('metric = "f1_macro"', 'metric = "accuracy_macro"')
    config.write_bytes(with_checksum(text[: text.index("# checksum")]))
    with pytest.raises(ValueError, match="judged by accuracy_macro and f1_macro; choose a measure"):
        join_sweeps([sweep_folder / "val", tmp_path / "other"])
