"""`fljax sweep` from words to files: grids, draws, the outer loop, resume, and every way to be refused."""

import csv
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fljax import load_sweep
from fljax.cli.sweep import HELP
from fljax.jobs.job import read_job
from fljax.jobs.static_setting import checked, ready_for
from fljax.jobs.sweep import read_sweep
from fljax.jobs.sweep_settings import as_words, may_grow
from fljax.jobs.sweep_values import BRICKS, OF_THE_WHOLE, check_different
from fljax.run.sweep import best
from tests.slow import slow

SMALL = ("--rounds", "2", "--model", "logistic_regression", "--partition.n-clients", "4", "--epochs", "1")


def points(*arguments):
    job = read_sweep(arguments)
    return job.hypers(job.job)


def rows_of(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def test_words_become_points():
    hypers = points("--algorithm", "fedprox", "--lr", "0.1", "0.2", "--mu", "log:0.01:1:3")
    np.testing.assert_allclose(hypers.lr, np.repeat([0.1, 0.2], 3), rtol=1e-6)
    np.testing.assert_allclose(hypers.mu, [0.01, 0.1, 1] * 2, rtol=1e-6)
    draws = points("--lr", "log:0.01:1", "--momentum", "lin:0:0.9:2", "--draws", "5")
    assert len(np.unique(draws.lr)) == 5
    np.testing.assert_allclose(draws.momentum, [0, 0.9] * 5, rtol=1e-6)
    assert points("--seeds", "2").lr == 0.1  # the main job's


def test_the_points_must_be_possible_and_not_the_defaults():
    """Eight bands need a longer separation; a count_noise of 5 is too little for this epsilon's noise."""
    resting = ("--sampling", "least_recent", "--sampling.separation", "4", "--participation", "0.25")
    banded = (*SMALL, "--algorithm", "fedavg+banded_client_dp", *resting, "--bands")
    assert ready_for(read_sweep([*banded, "1", "4"]), {}).made.hyper.bands == 1
    with pytest.raises(ValueError, match=r"bands=5: .* the sampling least_recent assures 4; choose"):
        checked(read_sweep([*banded, "1", "5"]), {})
    adaptive = (*SMALL, "--algorithm", "fedavg+adaptive_client_dp", "--target-epsilon", "0.5", "--count-noise")
    assert ready_for(read_sweep([*adaptive, "50", "60"]), {}).made.hyper.count_noise == 50
    with pytest.raises(ValueError, match="count_noise=5 is too little"):
        ready_for(read_sweep([*adaptive, "5", "60"]), {})


def test_the_outer_loop_has_whole_values():
    job = read_sweep(["--outer.hidden", "64", "128 64", "--outer.epochs", "1", "5", "--seeds", "2"])
    assert job.outer == {"model.hidden": [(64,), (128, 64)], "fedavg.epochs": [1, 5]}
    settings = job.job_with({"hidden": (128, 64), "epochs": 5}).settings
    assert settings["model"]["hidden"] == (128, 64)
    assert settings["fedavg"]["epochs"] == 5
    assert job.job.settings["fedavg"]["epochs"] != 5 or job.job.settings["model"]["hidden"] == (64,)


def test_a_toml_file_says_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text(
        'seeds = 3\n[fedavg]\nlr = [0.1, 0.2]\nmomentum = "lin:0:0.9:2"\n[outer]\nepochs = [1, 2]\n'
    )
    job = read_sweep(["--config", "x.toml", "--lr", "0.3", "0.4"])
    assert job.own.seeds == 3
    assert job.outer == {"fedavg.epochs": [1, 2]}
    np.testing.assert_allclose(job.hypers(job.job).lr, [0.3, 0.3, 0.4, 0.4], rtol=1e-6)
    Path("x.toml").write_text("seeds = 2\n[fedavg]\nlr = [0.1]\n[outer.fedavg]\nepochs = [1]\n")  # grids of one
    assert read_sweep(["--config", "x.toml"]).outer == {"fedavg.epochs": [1]}
    for text, message in (
        ("[outer.x]\ny = [1, 2]", "--outer.x.y 1 2: no setting --x.y"),
        ("seeds = [2]", "seeds = [2] is a list; give one value, seeds = 2"),
    ):
        Path("x.toml").write_text(text)
        with pytest.raises(ValueError, match=re.escape(f"x.toml: {message}")):
            read_sweep(["--config", "x.toml"])


def test_a_sweep_leaves_its_results_and_goes_on(fljax, refused):
    arguments = (*SMALL, "--lr", "0.01", "0.3", "1e38", "--momentum", "0", "0.5", "--seeds", "2", "--halving", "2")
    status, out, err = fljax("sweep", *arguments, "--folder", "x")
    assert (status, err) == (0, "")
    assert "6 points x 2 seeds of fedavg" in out
    assert "best: lr=" in out
    rows = rows_of("x/table.csv")
    assert [row["best_accuracy"] == "" for row in rows] == [False] * 8 + [True] * 4
    assert [row["seed"] for row in rows] == ["0", "1"] * 6
    assert [row["diverged"] for row in rows] == [""] * 8 + ["1"] * 4
    assert sorted(row["rounds"] for row in rows) == ["1"] * 6 + ["2"] * 6
    figures = {path.name for path in Path("x/plots").iterdir()}
    assert figures == {"curves.png", "heat_map.png", "lr.png", "momentum.png"}
    config = tomllib.loads(Path("x/config.toml").read_text())
    assert (config["seeds"], config["fedavg"]["lr"]) == (2, ["0.01", "0.3", "1e38"])

    loaded = load_sweep("x")
    (result,) = loaded.found
    assert [point["seed"] for point in loaded.table] == [0, 1] * 6
    assert [(point["lr"], point["momentum"]) for point in result.points for _ in range(2)] == [
        (point["lr"], point["momentum"]) for point in loaded.table
    ]
    curves = result.curves("accuracy_macro").reshape(12, 2)
    for row, curve in zip(loaded.table, curves, strict=True):
        assert np.isfinite(curve).sum() == (0 if row["diverged"] else row["rounds"])
        assert row["diverged"] or curve[row["rounds"] - 1] == pytest.approx(row["accuracy_macro"], rel=1e-6)
    columns = loaded.rounds()
    assert [*columns][:4] == ["lr", "momentum", "seed", "round"]
    assert len(columns["round"]) == sum(row["rounds"] for row in loaded.table)
    is_run = (columns["lr"] == result.points[3]["lr"]) & (columns["momentum"] == 0.5) & (columns["seed"] == 1)
    n = int(result.rounds[3, 1])
    np.testing.assert_array_equal(columns["test_loss"][is_run], result.metrics["test_loss"][3, 1, :n])
    assert repr(loaded) == "<sweep x: 6 points x 2 seeds, 2 rounds>"
    with pytest.raises(ValueError, match="no metric 'f1'; choose one of "):
        result.curves("f1")

    content = Path("x/table.csv").read_bytes()
    assert "add --resume" in refused("sweep", "--folder", "x")
    assert "holds results with --seeds 2, not 3" in refused("sweep", "--folder", "x", "--resume", "--seeds", "3")
    max(Path("x/runs/parts").glob("*.npz")).unlink()
    assert fljax("sweep", "--folder", "x", "--resume")[0] == 0
    assert Path("x/table.csv").read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to sweep: give a setting of fedavg several values"),
        (("--lr",), "--lr: an empty grid"),
        (("--lr", "lin:0.1:1:0"), "--lr lin:0.1:1:0: n=0: an empty range"),
        (("--mu", "0.1", "1"), "no setting --mu; it is a setting of the methods"),
        (("--epochs", "1", "5"), "epochs is static, so each value needs its own program; use the outer loop"),
        (("--participation", "0.5", "1"), "outer loop: --outer.participation 0.5 1"),
        (("--rounds", "1", "5"), "rounds cannot vary within a sweep"),
        (("--lr", "0.1", "x"), "--lr x: give a number"),
        (("--algorithm", "fedprox", "--mu", "log:0:1:3"), "--mu log:0:1:3: low=0.0, high=1.0: give 0 < low <= high"),
        (("--lr", "log:0:1:3"), "lr=0 is out of its range; choose lr > 0"),
        (("--lr", "lin:1:inf:3"), "lr=inf is out of its range; choose a finite number"),
        (("--lr", "lin:0:1:inf"), "give lin:LOW:HIGH:N, N whole"),
        (("--lr", "lin:0:1:nan"), "give lin:LOW:HIGH:N, N whole"),
        (("--lr", "lin:0:1:2.7"), "give lin:LOW:HIGH:N, N whole"),
        (("--lr", "log:0.1:1:1e13"), "give log:LOW:HIGH:N, N whole"),
        (("--lr", "lin:1"), "give lin:LOW:HIGH:N"),
        (("--lr", "lin:1:2:3:4"), "give lin:LOW:HIGH:N"),
        (("--lr", "lin:0.1:1:10000000000000"), "choose at most 1000000 values"),
        (("--lr", "lin:-1e308:1e308:3"), "lr=-1e+308 is out of its range"),
        (("--lr", "0.1", "1e39"), "lr=1e+39 is too large for float32"),
        (("--lr", "0.1", "-1"), "lr=-1 is out of its range; choose lr > 0"),
        (("--lr", "nan", "0.1"), "lr=nan is not a number"),
        (("--momentum", "lin:0:1:3"), "momentum=1 is out of its range; choose momentum in [0, 1)"),
        (("--lr", "0.1", "0.10"), "--lr 0.1 0.10: 0.1 is given twice"),
        (("--lr", "lin:0.1:0.1:2"), "0.1 is given twice"),
        (("--lr", "lin:0.1:0.1", "--draws", "2"), "every draw is the same"),
        (("--lr", "0.1", "0.2", "--draws", "5"), "--draws 5: nothing to draw from"),
        (("--seeds", "2", "--draws", "5"), "--draws 5: nothing to draw from"),
        (("--lr", "log:0.1:1", "--draws", "0"), "draws=0 is not positive"),
        (("--lr", "log:0.1:1", "--draws", "99999999999999"), "--draws 99999999999999: choose at most 2147483647"),
        (("--lr", "log:0.1:1", "--draws", "2000000"), "2000000 points x --seeds 1 are 2000000 runs; choose at most"),
        (("--seeds", "1000000000000"), "--seeds 1000000000000: choose at most 2147483647"),
        (("--seeds", "2000000"), "1 points x --seeds 2000000 are 2000000 runs; choose at most 1000000"),
        (("--lr", "0.1", "0.2", "--seed", "99999999999999999999"), "--seed 99999999999999999999: choose at most"),
        (("--lr", "0.1", "0.2", "--outer.lr", "0.3", "0.4"), "--outer.lr: --lr is varied already"),
        (("--outer.hidden", "8", "--outer.model.hidden", "16"), "are both --model.hidden; give one"),
        (("--outer.hidden", "8 8", "'8 8"), "--outer.hidden 8 8 '8 8: a quotation mark is not closed"),
        (("--outer.", "0.3"), "a setting has no name; write settings as --name value"),
        (("--outer.epochs", "1", "2", "1"), "--outer.epochs 1 2 1: 1 is given twice"),
        (("--outer.epochs", "1", "0"), "epochs=0 is not positive"),
        (("--outer.lr", "0.1", "-0.1"), "lr=-0.1 is out of its range; choose lr > 0"),
        (("--outer.participation", "1", "2"), "participation=2 is out of its range"),
        (("--lr", "0.1", "0.2", "--new-clients", "0.3"), "--new-clients 0.3: a sweep tests no new clients"),
        (("--lr", "0.1", "0.2", "--new-client-rounds", "3"), "--new-client-rounds 3: a sweep tests no new clients"),
        (("--outer.new-clients", "0.2", "0.3"), "--outer.new-clients: a sweep tests no new clients"),
        (("--lr", "log:0.1:1"), "or log:LOW:HIGH and --draws N to draw from it"),
        (("--lr", "log:a:1:3"), "give log:LOW:HIGH:N"),
        (("--outer.epochs",), "--outer.epochs: an empty grid"),
        (("--outer.epoch", "1"), "--outer.epoch 1: no setting --epoch; the nearest is --epochs"),
        (("--outer.rounds", "1", "2"), "rounds cannot vary within a sweep"),
        (("--outer.data", "a.csv", "b.csv"), "--outer.data: data cannot vary within a sweep"),
        (
            ("--outer.uplink", "clip:1", "clip:0.001"),
            "--outer.uplink: bricks are part of the method; name one there and vary its setting, as in --algorithm "
            "fedavg+clip_update --clip VALUE VALUE",
        ),
        (("--algorithm", "fedprox+sam", "--outer.downlink", "top-k:0.1"), "--algorithm fedprox+down_top_k --down-top"),
        (("--force-resume", "true", "false"), "--force-resume true false: force_resume cannot vary within a sweep"),
        (("--outer.epochs", "1", "x"), "--outer.epochs x: give a whole number"),
        (("--algorithm", "fedavg", "ifca"), "a sweep has one method"),
        (("--seeds", "0"), "seeds=0"),
        (("--lr", "0.1", "0.2", "--halving", "1"), "halving=1 keeps every point"),
        (("--lr", "0.1", "0.2", "--runs-at-once", "0"), "runs_at_once=0 is not positive"),
        (
            ("--lr", "0.1", "0.2", "--judge", "val", "--partition", "dirichlet"),
            "--judge val: the federation has no validation split; make it with val_fraction above 0 "
            "(--partition.val-fraction 0.1)",
        ),
        (("--lr", "0.1", "0.2", "--metric", "speed"), "metric='speed' is unknown; choose one of"),
        (("--resume",), "--resume: name the sweep with --folder"),
        (("--resume", "--folder", "nowhere"), "--folder nowhere does not exist: there is no sweep to resume"),
        (
            ("--lr", "0.1", "0.2", "--attack", "sign_flip", "--attack.share", "0.2", "0.4"),
            "--attack.share 0.2 0.4: share is static, so each value needs its own program; use the outer loop: "
            "--outer.attack.share 0.2 0.4",
        ),
        (("--partition.beta", "log:0.1:1:3", "--partition", "dirichlet"), "--outer.partition.beta VALUE VALUE"),
        (("--momentum", "None", "0.9"), "use the outer loop: --outer.momentum None 0.9"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_line(refused, arguments, message):
    assert message in refused("sweep", *arguments)


@pytest.mark.parametrize("name", ["new_clients", "patience", "validate"])
def test_what_a_sweep_does_not_have_may_be_named_with_its_default(name):
    """As a file of settings may do, that `fljax run` reads too."""
    option, default = f"--{name.replace('_', '-')}", "False" if name == "validate" else "None"
    assert list(read_sweep(["--lr", "0.1", "0.2", option, default]).axes) == ["lr"]
    with pytest.raises(ValueError, match=rf"^{option} (1|true): "):
        read_sweep([option, "true" if name == "validate" else "1"])


@pytest.mark.parametrize("options", slow(("--lr", "1e37", "1e38"), ("--outer.lr", "1e38", "--seeds", "2")))
def test_a_sweep_whose_points_all_diverged_is_written_too(fljax, drawn, options):
    status, out, err = fljax("sweep", *SMALL, *options, "--folder", "x")
    assert (status, err) == (2, "fljax: every point diverged on some seed; try lower learning rates\n")
    assert "results in x" in out
    with Path("x/table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["diverged"], row["accuracy_macro"]) for row in rows] == [("1", "")] * 2
    assert Path("x/plots/curves.png").stat().st_size > 100


@pytest.mark.parametrize("name", OF_THE_WHOLE)
def test_what_is_one_for_the_whole_sweep_is_not_for_the_outer_loop(refused, name):
    option = name.replace("_", "-")
    message = refused("sweep", f"--outer.{option}", "1", "2", "--lr", "0.1", "0.2")
    assert f"--outer.{option}: {name} is a setting of the whole sweep; give it as --{option}" in message


@pytest.mark.parametrize("name", ["judge", "metric", "draws", "seeds", "halving"])
def test_what_makes_another_table_is_not_for_the_outer_loop(refused, name):
    assert f"--outer.{name}: {name} cannot vary within a sweep" in refused("sweep", f"--outer.{name}", "2", "3")


@pytest.mark.parametrize("name", BRICKS)
def test_the_number_of_a_brick_is_varied_as_the_refusal_says(name):
    brick, number = BRICKS[name]
    assert list(read_sweep(["--algorithm", f"fedavg+{brick}", f"--{number.replace('_', '-')}", "0.5", "1"]).axes) == [
        number
    ]


def of_point(folder, lr):
    """The mean over seeds of a point's accuracy, from the table."""
    with Path(folder, "table.csv").open() as file:
        return np.mean([float(row["val_accuracy_macro"]) for row in csv.DictReader(file) if float(row["lr"]) == lr])


def test_the_best_points_settings_are_those_that_a_run_takes():
    """Of whatever kind they are, to the last digit."""
    arguments = ["--algorithm", "fedprox", "--lr", "log:0.001:1", "--mu", "0.1", "0.3", "--draws", "2"]
    sweep = read_sweep([*arguments, "--outer.model.hidden", "64 32", "8", "--outer.epochs", "1", "2"])
    lr, hidden = 0.034567890, next(label for label, full in sweep.labels.items() if full == "model.hidden")
    epochs = next(label for label in sweep.labels if label != hidden)
    words = as_words(sweep, {hidden: "64 32", epochs: "2", "lr": float(np.float32(lr)), "mu": 0.3})
    job = read_job(["--algorithm", "fedprox", *words])
    assert job.settings["model"]["hidden"] == (64, 32)
    settings = job.settings["fedprox"]
    assert (settings["epochs"], settings["mu"]) == (2, 0.3)
    assert np.float32(settings["lr"]) == np.float32(lr)
    sweep_of_lr = read_sweep(["--algorithm", "fedprox", "--lr", "0.01", "0.1", "--mu", "0.5"])  # 0.1 in the main job
    words = as_words(sweep_of_lr, {"lr": 0.01})
    assert read_job(["--algorithm", "fedprox", *words]).settings["fedprox"]["mu"] == 0.5
    assert words == ["--fedprox.mu", "0.5", "--fedprox.lr", "0.01"]


@pytest.mark.slow
def test_what_is_judged_by_validation_examples_says_so(fljax):
    status, out, err = fljax("sweep", *SMALL, "--lr", "0.01", "0.3", "--seeds", "2", "--judge", "val", "--folder", "v")
    assert (status, err) == (0, "")
    assert "val_accuracy_macro" in out.split("best: ")[0]
    assert re.search(r"best: lr=0\.\d+: val_accuracy_macro 0\.\d+", out)
    assert "fljax compare with the best point's settings gives its test accuracy" in out
    with Path("v/table.csv").open() as file:
        columns = next(csv.reader(file))
    assert {"val_accuracy_macro", "val_loss", "val_best_accuracy", "best_round", "lr"} <= set(columns)
    assert not {"accuracy_macro", "test_loss", "best_accuracy"} & set(columns)
    (settings,) = re.findall(r"\nits settings: (.*)\n", out)
    best_lr = max((0.01, 0.3), key=lambda lr: of_point("v", lr))
    assert read_job(["--algorithm", "fedavg", *shlex.split(settings)]).settings["fedavg"]["lr"] == best_lr
    for metric, choose in (("val_accuracy_macro", max), ("val_loss", min)):
        best_point, table = best(load_sweep("v").table, metric), load_sweep("v").table
        means = {lr: np.mean([row[metric] for row in table if row["lr"] == lr]) for lr in (0.01, 0.3)}
        assert (best_point.point, best_point.n_seeds) == ({"lr": choose(means, key=means.get)}, 2)
        assert best_point.mean == pytest.approx(means[best_point.point["lr"]])
    loaded, tests = load_sweep("v"), {"val_accuracy_macro", "val_loss", "val_f1_macro"}
    (result,), rounds = loaded.found, loaded.rounds()
    assert tests | {"lr", "loss"} <= rounds.keys()
    assert not {"accuracy_macro", "test_loss", "f1_macro"} & rounds.keys()
    assert {"val_client_accuracy", *tests} <= result.metrics.keys()
    for i, row in enumerate(loaded.table):
        curves = result.curves("val_accuracy_macro")[divmod(i, 2)], result.curves("val_loss")[divmod(i, 2)]
        assert (curves[0][-1], curves[1][-1]) == pytest.approx((row["val_accuracy_macro"], row["val_loss"]), rel=1e-6)
        worst = result.curves("val_accuracy_worst10")[divmod(i, 2)][-1]
        assert worst == pytest.approx(row["val_accuracy_worst10"], rel=1e-6)
    with pytest.raises(ValueError, match=r"no metric 'accuracy_macro'; choose one of .*val_accuracy_macro"):
        result.curves("accuracy_macro")


@pytest.mark.parametrize(
    ("options", "metric"),
    [
        (("--judge", "val", "--metric", "val_loss"), "test_loss"),
        (("--judge", "val", "--metric", "val_f1_macro"), "f1_macro"),
        (("--judge", "val", "--metric", "f1_macro"), "f1_macro"),
        (("--metric", "val_loss"), "val_loss"),  # which the search refuses: nothing is judged by it
        ((), None),
    ],
)
def test_the_metric_may_be_named_for_the_split_that_is_judged_by(options, metric):
    assert read_sweep(["--algorithm", "fedavg", "--lr", "0.1", "0.2", *options]).metric == metric


@pytest.mark.slow
def test_a_sweep_of_static_settings_is_read_back_by_their_names(fljax):
    options = ("--outer.epochs", "1", "2", "--outer.batch-size", "8", "16", "--lr", "0.1", "0.2", "--folder", "x")
    assert fljax("sweep", *SMALL, *options)[0] == 0
    loaded = load_sweep("x")
    settings = [dict(values.setting) for values in loaded.found]
    assert [tuple(values.values()) for values in settings] == [("1", "8"), ("1", "16"), ("2", "8"), ("2", "16")]
    columns = loaded.rounds()
    epochs, size = settings[0]
    is_last = columns["round"] == 2
    for i, row in enumerate(loaded.table):
        assert (str(row[epochs]), str(row[size])) == (columns[epochs][is_last][i], columns[size][is_last][i])
        assert row["accuracy_macro"] == pytest.approx(columns["accuracy_macro"][is_last][i], rel=1e-6)


def test_a_sweep_goes_on_with_more_seeds(fljax, refused):
    options = (*SMALL, "--lr", "0.1", "0.2", "--folder", "x", "--seeds")
    assert fljax("sweep", *options, "1")[0] == 0
    first_rows = rows_of("x/table.csv")
    status, out, _ = fljax("sweep", "--folder", "x", "--resume", "--seeds", "2")
    assert status == 0
    assert "2 points x 2 seeds" in out
    rows = rows_of("x/table.csv")
    assert [row["seed"] for row in rows] == ["0", "1"] * 2
    assert [row for row in rows if row["seed"] == "0"] == first_rows
    assert tomllib.loads(Path("x/config.toml").read_text())["seeds"] == 2
    settings = Path("x/config.toml").read_bytes()
    assert "holds a run with n_seeds=2, not 1" in refused("sweep", "--folder", "x", "--resume", "--seeds", "1")
    assert Path("x/config.toml").read_bytes() == settings
    assert fljax("sweep", "--folder", "x", "--resume")[0] == 0
    Path("x/table.csv").write_bytes(Path("x/table.csv").read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"table\.csv"):
        load_sweep("x")


def test_a_sweep_goes_on_with_more_points_and_static_settings(fljax, refused):
    options = ("--lr", "0.1", "0.2", "--momentum", "0", "--outer.epochs", "1", "--folder", "x")
    resume = ("sweep", "--folder", "x", "--resume")
    assert fljax("sweep", *SMALL, *options)[0] == 0
    first_rows, contents = rows_of("x/table.csv"), {path: path.read_bytes() for path in Path("x").rglob("*.npz")}
    status, out, _ = fljax(*resume, "--lr", "0.05", "0.1", "0.2", "--outer.epochs", "1", "2")
    assert status == 0
    assert "3 points x 1 seed of" in out
    rows = rows_of("x/table.csv")
    assert [(row["epochs"], float(row["lr"])) for row in rows] == [(e, lr) for e in "12" for lr in (0.05, 0.1, 0.2)]
    assert rows[1:3] == first_rows
    assert {path: path.read_bytes() for path in contents} == contents
    assert [dict(result.setting) for result in load_sweep("x").found] == [{"epochs": "1"}, {"epochs": "2"}]
    settings = Path("x/config.toml").read_bytes()
    assert "holds runs of lr=0.05, which is not among the points" in refused(*resume, "--lr", "0.1", "0.2")
    assert "holds results with --outer.fedavg.epochs 1 2, not 2" in refused(*resume, "--outer.epochs", "2")
    assert "holds results with --fedavg.momentum 0.0, not 0.5" in refused(*resume, "--momentum", "0.5")
    assert Path("x/config.toml").read_bytes() == settings
    assert fljax(*resume, "--momentum", "0.5", "0")[0] == 0  # a number that did not vary
    assert len(rows_of("x/table.csv")) == 12


def test_a_number_whose_name_the_outer_loop_has_does_not_begin_to_vary():
    """Its folders, which are called beta=0.1 while nothing else is, would be called otherwise."""
    words = ["--algorithm", "fedcr", "--partition", "dirichlet", "--model", "variational_cnn", "--lr", "0.1", "1"]
    sweep = read_sweep([*words, "--fedcr.beta", "0.1", "1", "--outer.partition.beta", "0.1", "0.5"])
    assert may_grow(sweep, Path("nowhere")) == ["seeds", "draws", "fedcr.lr"]


def test_more_draws_are_more_points(fljax, refused):
    options = ("--lr", "log:0.01:1", "--draws")
    assert fljax("sweep", *SMALL, *options, "2", "--folder", "x")[0] == 0
    first_rows = rows_of("x/table.csv")
    assert fljax("sweep", "--folder", "x", "--resume", "--draws", "3")[0] == 0
    assert rows_of("x/table.csv")[:2] == first_rows
    outer = ("--outer.epochs", "1", "2")  # whose folders are others
    assert "--outer.fedavg.epochs unset, not 1 2" in refused("sweep", "--folder", "x", "--resume", *outer)


@pytest.mark.slow
def test_a_sweep_with_a_method_of_ones_own_is_read_where_its_file_is_not(fljax, refused):
    Path("mine.py").write_text("import fljax\n\ngentle = fljax.fedprox + fljax.compose('fedavg+sam').bricks[0]\n")
    options = (
        "--lr",
        "0.1",
        "0.2",
        "--outer.epochs",
        "1",
        "2",
        "--folder",
        "x",
        "--judge",
        "val",
        "--partition.val-fraction",
    )
    assert fljax("sweep", "--algorithm", "./mine.py:gentle", *SMALL, *options, "0.3")[0] == 0
    expected = load_sweep("x")
    Path("there").mkdir()
    Path("mine.py").rename("there/mine.py")
    without_file = load_sweep("x")
    assert [result.setting for result in without_file.found] == [{"setting": "epochs=1"}, {"setting": "epochs=2"}]
    for result, expected_result in zip(without_file.found, expected.found, strict=True):
        np.testing.assert_array_equal(result.curves("val_accuracy_macro"), expected_result.curves("val_accuracy_macro"))
    assert "give its new place" in refused("sweep", "--folder", "x", "--resume")
    assert fljax("sweep", "--folder", "x", "--resume", "--algorithm", "there/mine.py:gentle")[0] == 0
    config = Path("x/config.toml").read_text()
    Path("x/config.toml").unlink()
    assert len(load_sweep("x/epochs=1").found) == 1
    assert "there/mine.py" in config


def test_settings_of_one_name_have_columns_of_their_own():
    sweep = read_sweep(["--outer.dropout", "0.1", "0.2", "--model", "cnn", "--outer.model.dropout", "0 0", "0.5 0.5"])
    assert sweep.outer == {"dropout": [0.1, 0.2], "model.dropout": [(0.0, 0.0), (0.5, 0.5)]}
    assert sweep.labels == {"dropout": "dropout", "model.dropout": "model.dropout"}
    settings = sweep.job_with({"dropout": 0.2, "model.dropout": (0.5, 0.5)}).settings
    assert (settings[""]["dropout"], settings["model"]["dropout"]) == (0.2, (0.5, 0.5))
    sweep_of_drift = read_sweep(["--drift", "swap_labels", "--outer.drift.seed", "1", "2"])  # a row has its run's seed
    assert sweep_of_drift.labels == {"drift.seed": "drift.seed"}
    words = ["--algorithm", "fedcr", "--partition", "dirichlet", "--model", "variational_cnn"]
    sweep_of_beta = read_sweep([*words, "--fedcr.beta", "0.1", "1", "--outer.partition.beta", "0.1", "0.5"])
    assert list(sweep_of_beta.labels) == ["partition.beta"]


def test_a_later_layer_replaces_the_outer_loop(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text('new_clients = 0.5\n[outer]\n"fedavg.epochs" = [1, 2]\n')
    with pytest.raises(ValueError, match=r"--new-clients 0\.5: a sweep tests no new clients"):
        read_sweep(["--config", str(path)])
    job = read_sweep(["--config", str(path), "--outer.epochs", "3", "--new-clients", "None"])
    assert job.outer == {"fedavg.epochs": [3]}


def test_examples_in_the_help_can_be_read():
    text = " ".join(HELP.split())
    word = r'(?:"[\d ]+"|[a-z]+:LOW:HIGH(?::N)?|[\d.]*\d|N)'
    examples = re.findall(rf"--[\w.-]+(?: {word})+", text)
    assert len(examples) >= 4
    for example in examples:
        words = shlex.split(example.replace(" N", " 3"))
        read_sweep([*words, "--lr", "log:0.1:1"] if "--draws" in words else words)
    ranges = re.findall(r"[a-z]+:LOW:HIGH(?::N)?", text)
    assert sorted(set(ranges)) == ["lin:LOW:HIGH", "lin:LOW:HIGH:N", "log:LOW:HIGH", "log:LOW:HIGH:N"]
    for range_words in ranges:
        words = range_words.replace("LOW", "0.1").replace("HIGH", "0.9").replace("N", "3")
        assert len(np.unique(points("--lr", words, *(() if range_words.endswith("N") else ("--draws", "3"))).lr)) == 3


def test_help_shows_what_can_be_set(fljax):
    status, out, _ = fljax("sweep", "--algorithm", "fedprox", "--help")
    assert status == 0
    for text in ("--seeds INT", "--halving", "--fedprox.mu", "--outer.epochs"):
        assert text in out
    assert "--new-client" not in out


def test_what_cannot_be_made_leaves_no_folder(refused):
    assert "out of memory (two copies of --model mlp need" in refused("sweep", "--hidden", "2000000000", "--seeds", "2")
    assert "halving=1 keeps" in refused("sweep", *SMALL, "--lr", "0.1", "0.2", "--halving", "1")
    assert "metric='r2_micro' is unknown" in refused("sweep", *SMALL, "--lr", "0.1", "0.2", "--metric", "r2_micro")
    assert not Path("results").exists()


def test_bricks_in_short_go_into_the_method_of_a_sweep_that_names_none():
    assert read_sweep(("--uplink", "clip:1", "--lr", "0.1", "0.2")).job.methods.popitem()[1] == "fedavg+clip_update"


@pytest.mark.slow
def test_a_number_that_changes_how_long_rounds_last_is_swept_one_value_at_a_time(refused, fljax):
    clock = ("--clock", "deadline", "--clock.limit", "1000", "--clock.up", "1e3")
    message = refused(
        "sweep", *SMALL, "--algorithm", "fedavg+top_k", *clock, "--top-share", "0.02", "1", "--folder", "x"
    )
    assert "--clock deadline: top_share changes how much participants send" in message
    assert "run one sweep for each value of top_share" in message
    private = ("--algorithm", "fedavg+top_k+client_dp", *clock, "--attack", "backdoor", "--target-epsilon", "8")
    status, out, _ = fljax("sweep", *SMALL, *private, "4", "--seeds", "1", "--folder", "y")
    assert status == 0
    assert fljax("run", *SMALL, *private, "--folder", "r")[0] == 0
    (run,), rows = rows_of("r/summary.csv"), rows_of("y/table.csv")
    assert [row["simulated_seconds"] for row in rows] == [run["simulated_seconds"]] * 2  # each round is as long
    assert all(0 <= float(row["attack_success"]) <= 1 for row in rows)
    assert [float(row["epsilon_spent"]) for row in rows] == pytest.approx([8, 4], rel=1e-3)
    assert re.search(r"best: target_epsilon=(\d): accuracy_macro 0\.\d+, epsilon (\1|\d\.99\d)", out)


def test_values_that_float32_does_not_tell_apart_stand_there_twice():
    check_different("--lr", [0.1, 0.1001, 1, None])
    with pytest.raises(ValueError, match=r"--lr: 0\.1000000001 is given twice; give each value once"):
        check_different("--lr", [0.1, 0.2, 0.1000000001])
