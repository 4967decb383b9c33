"""`fljax compare` and `fljax show`: methods over seeds, each with its own partition, compiled once."""

import csv
import io
import re
import shutil
import tomllib
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from scipy import stats

import fljax
from fljax.catalogue.job import RUN
from fljax.cli import main
from fljax.cli.compare import OWN
from fljax.files import save_arrays
from fljax.folder import writer
from fljax.jobs import seeds
from fljax.jobs.assemble import make_algorithm
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_federation, make_model
from fljax.jobs.unlike import data_settings, same_clients, these_differ
from fljax.metrics.cost import traffic_of_clients
from fljax.metrics.spread import spreads
from fljax.report.comparison import left_out
from fljax.report.formats import Table
from fljax.report.frames import stacked
from fljax.report.significance import compare_scores
from fljax.results.comparison import Comparison, Part
from fljax.results.finished import compare_runs, run_folders
from fljax.results.groups import named_groups
from fljax.sealed import with_checksum

pytestmark = pytest.mark.usefixtures("one_device")  # as many as the commands' runs

FEW = ("--partition", "dirichlet", "--partition.n-clients", "5", "--partition.beta", "0.5", "--rounds", "3")
FEW += ("--model", "logistic_regression", "--epochs", "1", "--batch-size", "32", "--lr", "0.1")


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory, programs_of_seeds):
    """The folder of a comparison of two methods over three seeds, how many programs of rounds it took, and what was
    trained: a `Runs` a method."""
    folder, all_runs = tmp_path_factory.mktemp("compare") / "out", []
    train = seeds.train_together
    words = ["--algorithm", "fedavg", "standalone", *FEW, "--seeds", "3", "--folder", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "train_together", lambda runs, *more: all_runs.append(runs) or train(runs, *more))
        assert main(["compare", *words]) == 0
    return folder, len(programs_of_seeds), all_runs


def test_each_method_is_compiled_once(comparison):
    assert comparison[1] == 2


def test_the_table_is_scipys_on_the_runs_scores(comparison):
    folder, *_ = comparison
    scores = {
        name: [fljax.load_run(folder / f"seed_{seed}")[name].metrics["accuracy_macro"][-1] for seed in range(3)]
        for name in ("fedavg", "standalone")
    }
    fedavg, standalone = rows_of(folder / "comparison.csv")
    assert float(fedavg["mean"]) == pytest.approx(np.mean(scores["fedavg"]), rel=1e-6)
    assert float(fedavg["deviation"]) == pytest.approx(np.std(np.float64(scores["fedavg"]), ddof=1), rel=1e-5)
    expected = stats.ttest_rel(np.float64(scores["standalone"]), np.float64(scores["fedavg"]))
    assert float(standalone["p_value"]) == pytest.approx(expected.pvalue, rel=1e-9)
    for name in ("comparison.md", "comparison.tex", "report.html", "plots/learning_curves.pdf", "seed_1/config.toml"):
        assert (folder / name).stat().st_size > 100
    assert "data:image/png;base64," in (folder / "report.html").read_text()


def test_a_comparison_is_read_back_with_all_its_seeds(comparison):
    folder, *_ = comparison
    loaded = fljax.load_comparison(folder)
    assert (list(loaded), len(loaded), loaded.methods) == ([0, 1, 2], 3, ["fedavg", "standalone"])
    curves = loaded.curves("accuracy_macro")
    runs = [fljax.load_run(folder / f"seed_{seed}") for seed in range(3)]
    for row, (method, values) in zip(loaded.rows, curves.items(), strict=True):
        np.testing.assert_array_equal(values, [run[method].metrics["accuracy_macro"] for run in runs])
        assert row["mean"] == pytest.approx(values[:, -1].mean(), rel=1e-6)
        worst_tenth = loaded.curves("accuracy_worst10")[method]
        assert worst_tenth[2, 1] == pytest.approx(runs[2][method].metrics["client_accuracy"][1].min())
    columns = loaded.rounds()
    assert len(columns["round"]) == 3 * 2 * 3
    of_seed_2 = (columns["algorithm"] == "standalone") & (columns["seed"] == 2)
    np.testing.assert_array_equal(columns["test_loss"][of_seed_2], runs[2]["standalone"].metrics["test_loss"])
    assert columns["round"][of_seed_2].tolist() == [1, 2, 3]
    tests = loaded.tests()
    assert Counter(zip(tests["seed"].tolist(), tests["algorithm"].tolist(), strict=True)) == {
        (seed, method): 5 for seed in range(3) for method in loaded.methods
    }
    assert repr(loaded) == f"<comparison {folder}: fedavg, standalone; seeds 0, 1, 2>"
    for request, message in (
        (lambda: loaded[4], "has no seed 4; it has 0, 1, 2"),
        (lambda: loaded.curves("accuracy"), "no metric 'accuracy'; choose one of "),
        (lambda: loaded.frame("rows"), "choose 'rounds', 'tests'"),
        (lambda: fljax.load_comparison(folder / "seed_1"), "holds no comparison"),
        (lambda: fljax.load_comparison(folder / "gone"), "there is no folder"),
        (lambda: fljax.load_sweep(folder), "holds no runs of a sweep"),
    ):
        with pytest.raises(ValueError, match=message):
            request()


def test_a_comparison_is_a_frame(comparison):
    pytest.importorskip("pandas")
    frame = fljax.load_comparison(comparison[0]).frame()
    mean = frame.groupby(["algorithm", "round"])["accuracy_macro"].mean()
    curves = fljax.load_comparison(comparison[0]).curves("accuracy_macro")
    np.testing.assert_allclose(mean["standalone"], curves["standalone"].mean(axis=0), rtol=1e-6)


def test_a_comparison_of_runs_of_different_lengths_is_read_back(comparison, tmp_path):
    """Seeds that ended early, that have no run of a method, or that were never begun."""
    folder = tmp_path / "out"
    shutil.copytree(comparison[0], folder)
    shutil.rmtree(folder / "seed_1" / "fedavg")
    (folder / "seed_3").mkdir()
    rounds = folder / "seed_2" / "standalone" / "rounds"
    first_chunk = [*sorted(rounds.iterdir())][:1]
    for path in rounds.iterdir():
        if path not in first_chunk:
            path.unlink()
    loaded = fljax.load_comparison(folder)
    n = len(loaded[2]["standalone"].metrics["ids"])
    assert n < 3
    curves = loaded.curves("test_loss")
    assert np.isnan(curves["fedavg"][1]).all()
    assert np.isfinite(curves["fedavg"][[0, 2]]).all()
    assert np.isfinite(curves["standalone"][2]).tolist() == [True] * n + [False] * (3 - n)
    columns = loaded.rounds()
    assert len(columns["round"]) == 3 * 4 + n


def test_what_only_some_runs_have_is_not_there_for_the_others():
    columns = stacked([({"seed": 0}, {"loss": np.ones(2)}), ({"seed": 1}, {"loss": np.ones(1), "churn": np.zeros(1)})])
    assert columns["seed"].tolist() == [0, 0, 1]
    np.testing.assert_array_equal(columns["churn"], [np.nan, np.nan, 0])


def test_a_seed_is_given_what_the_run_of_that_seed_is(comparison):
    """That runs together are those runs one by one is in `run/test_seeds.py`."""
    folder, _, all_runs = comparison
    job = read_job(["--algorithm", "fedavg", "standalone", *FEW, "--seed", "2"], RUN)
    federation, model = make_federation(job), make_model(job, make_federation(job))
    for runs, name in zip(all_runs, ("fedavg", "standalone"), strict=True):
        assembled = make_algorithm(name, job, model, len(federation.train.size))
        assert (runs.algorithm, runs.hyper) == (assembled.algorithm, assembled.hyper)
        assert runs.folders[2] == folder / "seed_2" / name
        np.testing.assert_array_equal(jax.random.key_data(runs.keys[2]), jax.random.key_data(jax.random.key(2)))
        for split in ("train", "test"):
            together, alone = (jax.device_get(getattr(source, split)) for source in (runs.federations[2], federation))
            jax.tree.map(np.testing.assert_array_equal, together.pool, alone.pool)
            np.testing.assert_array_equal(together.size, alone.size)
            for seed_rows, run_rows, size in zip(together.index, alone.index, alone.size, strict=True):
                np.testing.assert_array_equal(seed_rows[:size], run_rows[:size])
        assert not np.array_equal(runs.federations[0].train.size, runs.federations[2].train.size)
    assert tomllib.loads((folder / "seed_2" / "config.toml").read_text())["seed"] == 2


@pytest.mark.slow
def test_a_seed_is_the_run_of_that_seed(comparison, tmp_path):
    folder, *_ = comparison
    assert main(["run", "--algorithm", "fedavg", *FEW, "--seed", "2", "--folder", str(tmp_path / "one")]) == 0
    run, run_of_seed = (fljax.load_run(path)["fedavg"] for path in (tmp_path / "one", folder / "seed_2"))
    for name in ("accuracy_macro", "client_accuracy", "loss", "uplink"):
        np.testing.assert_allclose(run.metrics[name], run_of_seed.metrics[name], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), run.models, run_of_seed.models)
    assert not np.array_equal(run_of_seed.metrics["loss"], fljax.load_run(folder / "seed_0")["fedavg"].metrics["loss"])


@pytest.mark.slow
def test_a_comparison_goes_on_with_more_seeds(comparison, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(comparison[0], folder)
    before = (folder / "seed_1" / "fedavg" / "metrics.jsonl").stat().st_mtime_ns
    assert main(["compare", "--folder", str(folder), "--seeds", "4", "--baseline", "standalone"]) == 0
    assert (folder / "seed_1" / "fedavg" / "metrics.jsonl").stat().st_mtime_ns == before
    rows = rows_of(folder / "comparison.csv")
    assert [(row["algorithm"], row["seeds"]) for row in rows] == [("fedavg", "4"), ("standalone", "4")]
    assert rows[1]["difference"] == ""


def test_a_finished_comparison_is_shown_from_a_read_only_disk(comparison, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "c"
    shutil.copytree(comparison[0], folder)
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    monkeypatch.setattr(writer, "_locked", lambda folder: None)  # what it says where nothing can be written
    assert main(["compare", "--folder", str(folder)]) == 0
    output = capsys.readouterr().out
    assert f"{folder} is not writable: its comparison.csv and plots/ are unchanged\n" in output
    assert re.search(r"^standalone .* 3$", output, re.MULTILINE)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == files


@pytest.mark.slow
def test_more_seeds_may_be_wider_and_a_seeds_folder_is_that_of_its_run(comparison, tmp_path, no_rounds):
    """A partition of its own gives each seed a table of its own width, and one program needs one width."""
    widths = [make_federation(read_job([*FEW, "--seed", str(seed)], RUN)).train.index.shape[1] for seed in range(3)]
    assert max(widths) == widths[2] > widths[1]
    words = ["compare", "--algorithm", "fedavg", *FEW, "--rounds", "1", "--seed", "1", "--folder", str(tmp_path / "c")]
    assert main([*words, "--seeds", "1"]) == 0
    written_at = (tmp_path / "c" / "seed_1" / "fedavg" / "metrics.jsonl").stat().st_mtime_ns
    assert main([*words, "--seeds", "2"]) == 0
    assert (tmp_path / "c" / "seed_1" / "fedavg" / "metrics.jsonl").stat().st_mtime_ns == written_at
    shutil.copytree(comparison[0] / "seed_0", tmp_path / "seed_0")  # of padded ones
    no_rounds()  # all are there
    assert main(["run", "--folder", str(tmp_path / "seed_0")]) == 0
    remade = fljax.remake(tmp_path / "seed_0").runs["fedavg"]
    expected = fljax.load_run(comparison[0] / "seed_0")["fedavg"].metrics
    metrics = fljax.train(**remade, folder=tmp_path / "seed_0" / "fedavg").metrics
    np.testing.assert_array_equal(metrics["client_loss"], expected["client_loss"])


def test_runs_that_differ_in_seeds_alone_go_together_whatever_else_stands_beside_them(tmp_path):
    """By what their folders' names have alike; where that tells nothing apart, by the first of them."""

    def run(name, seed, **config):
        return SimpleNamespace(folder=tmp_path / name, config={"seed": seed, "rounds": 3, **config})

    def names(*runs):
        return {name: [member.folder.name for member in members] for name, members in named_groups(runs).items()}

    low_rate = [run(f"g_0.05_{seed}", seed, lr=0.05) for seed in range(3)]
    high_rate = [run(f"g_0.2_{seed}", seed, lr=0.2) for seed in range(2)]
    assert names(low_rate[0], high_rate[0], low_rate[1], high_rate[1], low_rate[2]) == {
        "g_0.05": ["g_0.05_0", "g_0.05_1", "g_0.05_2"],
        "g_0.2": ["g_0.2_0", "g_0.2_1"],
    }
    assert names(*low_rate, run("h", 0, lr=0.3)) == {"g_0.05": ["g_0.05_0", "g_0.05_1", "g_0.05_2"], "h": ["h"]}
    assert list(names(*low_rate)) == ["g_0.05"]
    two_groups = [run("a", 0, lr=0.1), run("b", 1, lr=0.1), run("c", 0, lr=0.2), run("d", 1, lr=0.2)]
    assert names(*two_groups) == {"a": ["a", "b"], "c": ["c", "d"]}
    same_seed = [run("a", 0, lr=0.1), run("b", 0, lr=0.1), run("c", 0, lr=0.2)]  # no seeds of one
    assert names(*same_seed) == {"a": ["a"], "b": ["b"], "c": ["c"]}
    assert names(run("s0", 0), run("s1", 1, ignored_column=[]), run("c", 0, lr=0.2)) == {"s": ["s0", "s1"], "c": ["c"]}
    without_config = [SimpleNamespace(folder=tmp_path / name, config={}) for name in "ab"]
    assert names(*without_config, run("c", 0)) == {"a": ["a"], "b": ["b"], "c": ["c"]}


def test_finished_runs_are_shown_again(comparison, tmp_path, capsys):
    folder, *_ = comparison
    page = tmp_path / "page.html"
    assert (
        main(["show", str(folder), "--baseline", "standalone", "--html", str(page), "--out", str(tmp_path / "o")]) == 0
    )
    output = capsys.readouterr().out
    assert "minus standalone" in output
    rows = rows_of(tmp_path / "o" / "comparison.csv")
    assert rows[0]["seeds"] == "3"

    assert float(rows[0]["difference"]) == pytest.approx(-float(rows_of(folder / "comparison.csv")[1]["difference"]))
    assert page.read_text().startswith("<!doctype html>")
    assert "# fljax compare --config" in page.read_text()  # the comparison's settings, not a seed's
    assert main(["show", str(folder / "seed_0"), str(folder / "seed_0" / "fedavg")]) == 0
    assert "seed_0/standalone" in capsys.readouterr().out


@pytest.mark.slow
def test_a_seed_that_was_shown_as_a_run_is_still_one_of_the_seeds(comparison, tmp_path):
    shutil.copytree(comparison[0], tmp_path / "c")
    assert main(["run", "--folder", str(tmp_path / "c" / "seed_0")]) == 0
    assert [row["seeds"] for row in compare_runs(run_folders([tmp_path / "c"])).rows] == [3, 3]


def test_letters_that_an_encoding_lacks_are_left_out(comparison, monkeypatch):
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, encoding="ascii", write_through=True))
    assert main(["show", str(comparison[0])]) == 0
    assert b"mean +- deviation" in output.getvalue()


@pytest.mark.slow
def test_a_run_that_was_stopped_is_said_to_be_at_another_round(comparison, tmp_path, capsys):
    folder = tmp_path / "c"
    shutil.copytree(comparison[0], folder)
    assert main(["show", str(folder)]) == 0
    assert "not at the same round" not in capsys.readouterr().out
    shutil.rmtree(folder / "seed_1" / "standalone")
    assert main(["show", str(folder)]) == 0
    assert "\nstandalone (seed 1): no results yet\n" in capsys.readouterr().out
    assert main(["show", str(folder / "seed_0"), str(folder / "seed_1")]) == 0
    assert "\nstandalone (seed 1): no results yet\n" in capsys.readouterr().out
    assert main(["show", str(folder / "seed_1")]) == 0
    assert "\nstandalone: no results yet\n" in capsys.readouterr().out
    fljax.train(
        **fljax.remake(folder / "seed_1").runs["standalone"] | {"n_rounds": 1}, folder=folder / "seed_1" / "standalone"
    )
    capsys.readouterr()
    assert main(["show", str(folder)]) == 0
    assert "not at the same round: standalone 1 of 3 rounds (seed 1)\n" in capsys.readouterr().out
    assert main(["show", str(folder / "seed_1")]) == 0
    assert "not at the same round: standalone 1 of 3 rounds\n" in capsys.readouterr().out


def drop_test(folder, method, round, **more_metrics):
    """The folder of a seed whose method has no test in a round, counted from 0; its metrics before."""
    metrics = fljax.load_run(folder)[method].metrics
    tested = [name for name in metrics if name.startswith(("client_", "accuracy", "f1", "test_"))]
    with_nan = {name: np.where(np.arange(len(metrics[name])) == round, np.nan, metrics[name].T).T for name in tested}
    for path in (folder / method / "rounds").iterdir():
        path.unlink()
    save_arrays(folder / method / "rounds" / "00000000.npz", metrics | with_nan | more_metrics)
    return metrics


def test_a_run_that_stopped_between_two_tests_has_its_last_test(comparison, tmp_path, capsys):
    folder = tmp_path / "c"
    copy_with(comparison[0] / "seed_0", folder, rounds=8, evaluate_every=2)
    metrics = drop_test(folder, "fedavg", 2)
    assert main(["show", str(folder), "--out", str(tmp_path / "o")]) == 0
    assert "not finished (their last tests are compared): fedavg 3 of 8 rounds; standalone 3 of 8 rounds" in (
        capsys.readouterr().out
    )
    row = rows_of(tmp_path / "o" / "comparison.csv")[0]
    assert row["seeds"] == "1"
    assert float(row["mean"]) == pytest.approx(float(metrics["accuracy_macro"][1]))
    (setting,) = compare_runs(folder).parts.values()
    np.testing.assert_array_equal(setting.clients["fedavg"], metrics["client_accuracy"][1])


def test_a_run_that_came_to_nothing_has_no_score(comparison, tmp_path):
    """Its last round was tested, and the test was no number: an earlier one does not stand for it."""
    folder = tmp_path / "c"
    shutil.copytree(comparison[0], folder)
    drop_test(folder / "seed_0", "fedavg", 2)
    result = compare_runs([folder / "seed_0"])
    assert result.rows[0]["seeds"] == 0
    assert "accuracy_macro is not finite and was left out: fedavg" in result.text
    assert "accuracy_macro is not finite and was left out: fedavg (seed 0)\n" in compare_runs(folder).text + "\n"


def test_results_that_were_left_out_are_said(comparison, tmp_path, capsys):
    folder, page = tmp_path / "c", tmp_path / "page.html"
    shutil.copytree(comparison[0], folder)
    drop_test(folder / "seed_0", "fedavg", 9, ok=np.arange(3)[:, None] * np.ones((1, 5)) == 1)
    assert main(["show", str(folder), "--html", str(page)]) == 0
    line = "results that were not finite were left out: fedavg in 2 of 9 rounds of 3 seeds"
    assert line in capsys.readouterr().out
    assert line in page.read_text()


def test_errors_beyond_all_bounds_are_said():
    ids, ok = np.zeros((2, 3), np.int32), np.ones((2, 3), bool)
    finite = {
        "ids": ids,
        "active": ok,
        "ok": ok,
        "test_loss": np.array([0.5, np.nan]),
        "r2_micro": np.array([0.1, np.nan]),
    }
    infinite = finite | {"r2_micro": np.array([-np.inf, np.nan])}
    assert left_out({"fedavg": [finite], "ditto": [finite, infinite]}) == [
        "test errors became infinite: ditto; a lower learning rate may help"
    ]
    assert left_out({"fedavg": [finite | {"test_loss": np.array([0.5, np.inf])}]})[0].startswith(
        "test errors became infinite"
    )
    assert left_out({"fedavg": [finite]}) == []
    nan = finite | {"test_loss": np.array([0.5, np.nan]), "accuracy_macro": np.array([0.5, 0.0])}
    assert left_out({"fedavg": [finite], "ditto": [nan]}) == [
        "models predict NaN, which counts as wrong, in the last test: ditto"
    ]


def test_simulated_seconds_are_those_of_the_whole_run(comparison, tmp_path):
    """As in a run's own table."""
    folder = tmp_path / "c"
    shutil.copytree(comparison[0], folder)
    seconds = np.array([1.5, 2.0, 0.25], np.float32)
    for method in ("fedavg", "standalone"):
        drop_test(folder / "seed_0", method, 9, simulated_seconds=seconds)
    result = compare_runs([folder / "seed_0"], measure="simulated_seconds")
    assert result.rows[0]["mean"] == 3.75
    np.testing.assert_array_equal(result.parts[""].curves["fedavg"], [[1.5, 3.5, 3.75]])


@pytest.mark.parametrize(("measure", "summarize"), [("accuracy_worst10", np.min), ("accuracy_deviation", np.std)])
def test_methods_are_compared_by_how_the_clients_fare(comparison, measure, summarize):
    """Five clients, whose worst tenth is one. The least deviation is not said to be the best."""
    folders = [comparison[0] / f"seed_{seed}" for seed in range(3)]
    result = compare_runs(folders, measure=measure)
    accuracy = [fljax.load_run(folder)["fedavg"].metrics["client_accuracy"] for folder in folders]
    np.testing.assert_allclose(result.parts[""].curves["fedavg"][1], summarize(accuracy[1], axis=1), rtol=1e-6)
    (mean,) = (row["mean"] for row in result.rows if row["algorithm"] == "fedavg")
    assert mean == pytest.approx(np.mean([summarize(values[-1]) for values in accuracy]), rel=1e-6)
    assert ("**" in result.markdown) == (measure == "accuracy_worst10")


def test_a_report_has_no_figures_of_other_runs(comparison, tmp_path):
    out = tmp_path / "o"
    (out / "plots").mkdir(parents=True)
    (out / "plots" / "models_of_before.png").write_bytes(b"")
    assert main(["show", str(comparison[0] / "seed_0"), "--out", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "models of before" not in page
    assert "Learning curves: " in page
    assert "losses" in page
    assert {"learning_curves.pdf", "losses.png", "clients.png"} <= {path.name for path in (out / "plots").iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "--baseline", "ifca"), "--baseline ifca: choose one of standalone"),
        (("show",), "usage"),
        (("show", "nowhere"), "no folder nowhere"),
        (("show", "nowhere", "--html", "."), "--html .: it is a folder; give the name of a file, such as report.html"),
        (("show", "nowhere", "--out", __file__), "test_compare.py: it is a file; give the name of a folder"),
        (("show", ".", "--metric", "x"), "--metric x: fljax show takes"),
        (("sweep", "--algorithm", "fedavg", "ifca", "--lr", "0.1", "1"), "fljax compare runs several"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message, capsys):
    code = main(list(arguments))
    out = capsys.readouterr()
    assert message in (out.err if code else out.out)
    assert code == (0 if message == "usage" else 2)


def contents(folder):
    """Every file of a folder but its lock, with what is in it."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture
def comparison_copy(comparison, refused, tmp_path):
    """Where commands run, a folder "c" with a comparison; it must be as it was after the test."""
    folder = tmp_path / "c"
    shutil.copytree(comparison[0], folder)
    before = contents(folder)
    yield folder
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["run", "sweep", "plan"])
@pytest.mark.parametrize("settings", [(), ("--algorithm", "fedprox", "--model", "logistic_regression", "--lr", "0.2")])
@pytest.mark.usefixtures("comparison_copy")
def test_a_comparisons_folder_is_no_other_commands(refused, command, settings):
    kind = "a sweep" if command == "sweep" else "a run"
    assert (
        f"--folder c: it holds the results of a comparison, not of {kind}; resume it with fljax compare --folder c"
        in refused(command, *settings, "--folder", "c")
    )


def test_the_settings_of_a_comparison_or_sweep_are_no_other_commands(refused, comparison, tmp_path):
    (tmp_path / "c").mkdir()
    shutil.copy(comparison[0] / "config.toml", tmp_path / "c")
    message = refused("run", "--folder", "c")
    assert "holds the settings of a comparison, not of a run; resume it with fljax compare --folder c" in message
    (tmp_path / "s" / "runs" / "parts").mkdir(parents=True)
    settings = with_checksum("# fljax sweep --config THIS_FILE repeats this sweep\n")
    (tmp_path / "s" / "config.toml").write_bytes(settings)
    assert (
        "s: it holds the settings of a sweep, not of a run; resume it with fljax sweep --folder s --resume"
        in refused("run", "--folder", "s")
    )
    (tmp_path / "s" / "runs" / "parts" / "0.npz").touch()
    assert "s: it holds the results of a sweep, not of a comparison" in refused("compare", "--folder", "s")


def test_several_values_are_for_a_sweep(refused):
    for command in ("compare", "run"):
        message = "--lr 0.1 0.2: give one number; fljax sweep takes several"
        assert message in refused(command, "--algorithm", "fedavg", "--lr", "0.1", "0.2")


@pytest.mark.usefixtures("comparison_copy")
def test_a_comparisons_file_of_settings_is_no_other_commands(refused):
    message = refused("run", "--config", "c/config.toml")
    assert "--config c/config.toml: it holds the settings of a comparison, not of a run; fljax compare --con" in message
    assert "the settings of a comparison, not of a sweep" in refused("sweep", "--config", "c/config.toml")


def test_a_file_with_new_clients_is_refused(refused, tmp_path):
    (tmp_path / "new.toml").write_text("new_clients = 0.2\n")
    assert "the file sets new_clients: only fljax run tests new" in refused("compare", "--config", "new.toml")


def test_seeds_end(refused):
    message = refused("compare", "--seed", "4294967294", "--seeds", "3", *FEW, "--folder", "new")
    assert "--seeds 3: the last seed is 4294967296; seeds are at most 4294967295" in message
    message = refused("compare", "--seeds", "1000001", *FEW, "--folder", "new")
    assert "x --seeds 1000001 are" in message
    assert "runs; choose at most 1000000" in message


def test_a_comparison_is_refused_before_anything_is_written(refused, comparison_copy):
    """Also where it would be by the runs of its seeds alone."""
    assert "--rounds 2: c/seed_0 holds 3 rounds of fedavg" in refused("compare", "--folder", "c", "--rounds", "2")
    fewer = ("compare", "--folder", "c", "--algorithm", "fedavg")
    assert "c holds results of standalone too; choose --algorithm fedavg standalone" in refused(*fewer)


def test_a_measure_is_checked_before_anything_is_trained(refused, comparison_copy, comparison):
    message = refused("compare", "--algorithm", "fedavg", *FEW, "--measure", "bogus", "--folder", "new")
    assert "measure='bogus': fedavg has no such metric; choose one of " in message
    assert not comparison_copy.with_name("new").exists()
    metrics = fljax.load_run(comparison[0] / "seed_0")["fedavg"].metrics
    numbers = message.partition("choose one of ")[2].strip().split(", ")
    round_metrics = [name for name, value in metrics.items() if value.ndim == 1]
    assert sorted(numbers) == sorted([*round_metrics, *spreads(metrics), "rounds", "megabytes_up", "megabytes_down"])
    assert "measure='bogus': " in refused("compare", "--folder", "c", "--measure", "bogus")


@pytest.mark.usefixtures("comparison_copy")
def test_a_comparison_goes_on_with_its_own_settings(refused):
    assert "c holds results with --fedavg.lr 0.1, not 0.5" in refused("compare", "--folder", "c", "--lr", "0.5")
    job = read_job(["--folder", "c", "--seeds", "4", "--batch-size", "16"], OWN, "compare")
    assert list(job.methods) == ["fedavg", "standalone"]
    assert job.run.model == "logistic_regression"


def test_folders_of_one_name_are_two_runs(comparison, tmp_path, capsys):
    folder, *_ = comparison
    for name in ("a", "b"):  # with different settings
        shutil.copytree(folder / "seed_0", tmp_path / name / "run")
    settings = tmp_path / "b" / "run" / "config.toml"
    text = settings.read_text().rstrip("\n").rpartition("\n")[0] + "\n"
    assert "lr = 0.1\n" in text
    settings.write_bytes(with_checksum(text.replace("lr = 0.1\n", "lr = 0.2\n")))
    assert main(["show", str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), "--out", str(tmp_path / "o")]) == 0
    names = [row["algorithm"] for row in rows_of(tmp_path / "o" / "comparison.csv")]
    assert names == ["a/run/fedavg", "a/run/standalone", "b/run/fedavg", "b/run/standalone"]
    folders = [str(folder / "seed_0"), f"{folder}/../out/seed_0", str(folder / "seed_1")]  # one of them twice
    capsys.readouterr()
    assert main(["show", *folders, "--out", str(tmp_path / "p")]) == 0
    assert {row["seeds"] for row in rows_of(tmp_path / "p" / "comparison.csv")} == {"2"}


def test_a_seed_that_another_machine_went_on_with_is_no_run_of_its_own(comparison, tmp_path, capsys):
    """As `--force-resume` leaves it."""
    folder = tmp_path / "c"
    shutil.copytree(comparison[0], folder)
    settings = folder / "seed_1" / "config.toml"
    text = settings.read_text().rstrip("\n").rpartition("\n")[0]
    settings.write_bytes(with_checksum(f"{text}\n[[history]]\nmachine.cores = 1\n"))
    assert main(["show", str(folder), "--out", str(tmp_path / "o")]) == 0
    assert [row["seeds"] for row in rows_of(tmp_path / "o" / "comparison.csv")] == ["3", "3"]


@pytest.mark.slow
def test_comparisons_of_other_settings_are_compared_seed_by_seed(comparison, tmp_path, capsys):
    first, second, target = comparison[0], tmp_path / "quick", tmp_path / "o"
    arguments = ["--algorithm", "fedavg", *FEW[:-1], "0.3", "--seed", "1", "--seeds", "2", "--folder", str(second)]
    assert main(["compare", *arguments]) == 0
    assert main(["show", str(first), str(second), "--out", str(target)]) == 0
    rows = {row["algorithm"]: row for row in rows_of(target / "comparison.csv")}
    assert {name: row["seeds"] for name, row in rows.items()} == {
        "out/fedavg": "3", "out/standalone": "3", "quick/fedavg": "2",
    }  # fmt: skip
    first_scores, second_scores = (
        [fljax.load_run(folder / f"seed_{seed}")["fedavg"].metrics["accuracy_macro"][-1] for seed in (1, 2)]
        for folder in (first, second)
    )
    expected = stats.ttest_rel(np.float64(second_scores), np.float64(first_scores))  # of the seeds that both have
    message = "differences are over the seeds in common with out/fedavg: 2 of quick/fedavg\n"
    assert message in capsys.readouterr().out
    assert float(rows["quick/fedavg"]["p_value"]) == pytest.approx(expected.pvalue, rel=1e-6)
    assert float(rows["quick/fedavg"]["difference"]) == pytest.approx(
        np.mean(second_scores) - np.mean(first_scores), abs=1e-6
    )
    capsys.readouterr()
    assert main(["show", str(second), str(first), "--out", str(target)]) == 0
    message = "differences are over the seeds in common with quick/fedavg: 2 of out/fedavg, 2 of out/standalone\n"
    assert message in capsys.readouterr().out
    assert main(["show", str(first / "seed_0"), str(second), "--out", str(target)]) == 0  # no seed in common
    rows = {row["algorithm"]: row for row in rows_of(target / "comparison.csv")}
    assert rows["quick/fedavg"]["difference"] == ""


@pytest.mark.slow
def test_a_comparison_of_one_seed_has_its_own_name(comparison, tmp_path, capsys):
    arguments = ["--algorithm", "fedavg", *FEW[:-1], "0.3", "--seeds", "1", "--folder", str(tmp_path / "quick")]
    assert main(["compare", *arguments]) == 0
    assert main(["show", str(comparison[0]), str(tmp_path / "quick"), "--out", str(tmp_path / "o")]) == 0
    names = [row["algorithm"] for row in rows_of(tmp_path / "o" / "comparison.csv")]
    assert names == ["out/fedavg", "out/standalone", "quick/fedavg"]


def copy_with(folder, target, **settings):
    """A copy of a run's folder whose settings say something else."""
    shutil.copytree(folder, target)
    text = (target / "config.toml").read_text().rstrip("\n").rpartition("\n")[0] + "\n"
    for old, new in settings.items():
        assert f"{old} = " in text
        text = re.sub(f"^{old} = .*$", f"{old} = {new}", text, flags=re.MULTILINE)
    (target / "config.toml").write_bytes(with_checksum(text))
    return str(target)


def test_runs_of_other_clients_are_no_pairs(comparison, tmp_path, capsys):
    first = str(comparison[0] / "seed_0")
    other_data = copy_with(first, tmp_path / "b", dataset='"mnist"', beta="0.25")
    other_rate = copy_with(first, tmp_path / "c", lr="0.2")
    assert main(["show", first, other_data, other_rate, "--out", str(tmp_path / "o")]) == 0
    output = capsys.readouterr().out
    assert (
        "runs differ in dataset, partition.beta: dataset digits (seed_0, c), mnist (b); partition.beta 0.5 (" in output
    )
    assert "methods differ in: lr 0.1, c/fedavg 0.2, c/standalone 0.2\n" in output
    rows = {(row["data"], row["algorithm"]): row for row in rows_of(tmp_path / "o" / "comparison.csv")}
    assert {name for name, row in rows.items() if row["difference"] == ""} == {
        ("digits, beta 0.5", "seed_0/fedavg"), ("mnist, beta 0.25", "fedavg"),
    }  # fmt: skip
    assert "runs differ in dataset" in (tmp_path / "o" / "comparison.md").read_text()
    assert main(["show", first, copy_with(first, tmp_path / "d", seed="1", lr="0.2"), "--baseline", "d/fedavg"]) == 0
    output = capsys.readouterr().out
    assert "no paired difference of seed_0/fedavg and seed_0/standalone to d/fedavg" in output
    assert main(["show", first, str(comparison[0] / "seed_0" / "fedavg")]) == 0
    assert "differ" not in capsys.readouterr().out


def test_several_data_settings_have_a_table_each_and_one_of_all(comparison, tmp_path, capsys):
    """As if each were alone, and the same means beside each other."""
    other = tmp_path / "skewed"
    shutil.copytree(comparison[0], other)
    for seed in range(3):
        shutil.rmtree(other / f"seed_{seed}")
        copy_with(comparison[0] / f"seed_{seed}", other / f"seed_{seed}", beta="0.1")
        metrics = fljax.load_run(other / f"seed_{seed}")["standalone"].metrics
        drop_test(other / f"seed_{seed}", "standalone", 9, accuracy_macro=metrics["accuracy_macro"] / 2)
    assert main(["show", str(comparison[0]), str(other), "--baseline", "standalone", "--out", str(tmp_path / "o")]) == 0
    output = capsys.readouterr().out
    result = fljax.compare_runs([comparison[0], other], "standalone")
    assert str(result) == result.text
    assert f"{result}\nwritten to {tmp_path / 'o'}\n" == output
    assert repr(result) == ("<comparison of fedavg, standalone by accuracy_macro at the end; beta 0.5, beta 0.1>")
    singles = [fljax.compare_runs(folder, "standalone") for folder in (comparison[0], other)]
    assert [part.table for part in result.parts.values()] == [single.parts[""].table for single in singles]
    assert result.rows == [
        {"data": name, **row} for name, single in zip(result.parts, singles, strict=True) for row in single.rows
    ]
    columns = [[row["mean"] for row in single.rows] for single in singles]
    assert [[cell[:6] for cell in row[1:3]] for row in result.over_settings.cells] == [
        [f"{mean:.4f}" for mean in row] for row in zip(*columns, strict=True)
    ]
    ranks = np.mean([[1 + (b > a), 1 + (a > b)] for a, b in columns], axis=0)
    assert [row[3] for row in result.over_settings.cells] == [f"{rank:.2f}" for rank in ranks]
    assert result.tables["accuracy_macro at the end"][1] == [
        "runs differ in partition.beta: partition.beta 0.5 (out), 0.1 (skewed)"
    ]
    assert [line for line in result.markdown.splitlines() if line.startswith("## ")] == [
        "## accuracy_macro at the end", "## beta 0.5", "## beta 0.1",
    ]  # fmt: skip
    assert result.latex.count(r"\begin{tabular}") == 3
    page = (tmp_path / "o" / "report.html").read_text()
    assert page.index("<h2>accuracy_macro at the end</h2>") < page.index("<h2>beta 0.1</h2>")
    assert page.index("learning curves beta 0.1") < page.index("clients beta 0.5")
    assert (tmp_path / "o" / "plots" / "clients_beta_0.5.pdf").exists()
    result.save(tmp_path / "p")
    for name in ("comparison.csv", "comparison.md", "comparison.tex"):
        assert (tmp_path / "p" / name).read_bytes() == (tmp_path / "o" / name).read_bytes()


def test_tables_have_titles_and_rows_their_data_where_there_are_several():
    """By hand; two notes are two paragraphs in Markdown."""
    scores = compare_scores({"a": np.array([0.5])}, "a")
    part = Part(scores, Table(["algorithm", "x"], [["a", "1"]]), {}, {}, "accuracy", ["a note", "another"])
    one = Comparison("m", "m at the end", {"iid": part}, None, ["nowhere"], "")
    text, markdown = "algorithm  x\na          1", "| algorithm | x |\n| --- | ---: |\n| a | 1 |\n"
    assert one.text == str(one) == f"{text}\na note\nanother"
    assert one.markdown == f"{markdown}\na note\n\nanother\n"
    assert one.latex == part.table.latex
    assert [(row["algorithm"], row["mean"], "data" in row) for row in one.rows] == [("a", 0.5, False)]
    assert repr(one) == "<comparison of a by m at the end>"
    over = Table(["algorithm", "iid", "own"], [["a", "1", "2"]])
    two = Comparison("m", "m at the end", {"iid": part, "own": part._replace(notes=[])}, over, ["ranks"], "")
    assert list(two.tables) == ["m at the end", "iid", "own"]
    assert (
        two.text == f"m at the end\nalgorithm  iid  own\na            1    2\nranks\n\niid\n{one.text}\n\nown\n{text}"
    )
    assert two.markdown.endswith(f"\n\nranks\n\n## iid\n\n{one.markdown}\n## own\n\n{markdown}")
    assert two.latex == f"% m at the end\n{over.latex}\n% iid\n{one.latex}\n% own\n{one.latex}"
    assert [row["data"] for row in two.rows] == ["iid", "own"]
    assert repr(two) == "<comparison of a by m at the end; iid, own>"


def test_data_settings_are_named_by_what_is_not_the_same():
    def names(**configs):
        return {name: "".join(members) for name, members in data_settings(configs).items()}

    iid = {"dataset": "mnist", "partition": {"name": "iid", "n_clients": 5}, "rounds": 3, "seed": 1}
    skew = iid | {"partition": {"name": "dirichlet", "n_clients": 5, "beta": 0.5}}
    more_skew = iid | {"partition": {"name": "dirichlet", "n_clients": 5, "beta": 0.1}}
    assert names(a=iid, b=iid | {"rounds": 9, "seed": 2}, c={}) == {"": "abc"}
    assert names(a=iid, b=skew, c=iid) == {"iid": "ac", "dirichlet": "b"}
    assert names(a=iid, b=skew, c=more_skew) == {"iid": "a", "dirichlet, beta 0.5": "b", "dirichlet, beta 0.1": "c"}
    assert names(a=skew, b=iid | {"dataset": "digits"}) == {"mnist, dirichlet": "a", "digits, iid": "b"}
    table = {"data": "d/mine.csv", "partition": {"name": "natural"}}
    assert names(a=table, b=table | {"ignored_column": ["x", "y"]}) == {"a": "a", "ignored-column x y": "b"}
    assert names(a=table, b={"data": "e/other.csv", "partition": {"name": "natural"}}) == {"mine": "a", "other": "b"}


def test_a_measure_is_taken_where_a_target_is_first_reached(comparison, tmp_path, capsys):
    """Rounds and megabytes until then; a seed that never gets there is none of the mean's."""
    folder = tmp_path / "c"
    shutil.copytree(comparison[0], folder)
    accuracy = {0: [0.1, 0.5, 0.6], 1: [0.6, 0.4, 0.7], 2: [0.1, 0.2, 0.3]}
    for seed, values in accuracy.items():
        drop_test(folder / f"seed_{seed}", "fedavg", 9, accuracy_macro=np.array(values))
        drop_test(folder / f"seed_{seed}", "standalone", 9, accuracy_macro=np.array([0.1, 0.9, 0.9]))
    assert main(["show", str(folder), "--target", "0.5"]) == 0
    output = capsys.readouterr().out
    assert "accuracy_macro never reached 0.5: fedavg (seed 2)\n" in output
    assert re.search(r"^fedavg +1\.5 ± 0\.7 .* 2$", output, re.MULTILINE)
    rounds = fljax.compare_runs(folder, target=0.5)
    assert rounds.title == "rounds when accuracy_macro first reaches 0.5"
    assert [(row["mean"], row["seeds"]) for row in rounds.rows] == [(1.5, 2), (2.0, 3)]
    assert rounds.parts[""].table.bold == {(1, 1)}
    until_target = fljax.compare_runs(folder, measure="megabytes_up", target=0.5)
    of_all_rounds = fljax.compare_runs(folder, measure="megabytes_up")
    assert until_target.rows[0]["mean"] == pytest.approx(of_all_rounds.rows[0]["mean"] * 1.5 / 3)
    first = fljax.load_run(folder / "seed_0")["fedavg"].metrics
    n_clients = first["client_accuracy"].shape[1]
    assert of_all_rounds.rows[0]["mean"] == pytest.approx(traffic_of_clients(first, n_clients).uplink.mean() / 1e6)
    assert of_all_rounds.rows[1]["mean"] == 0  # alone
    assert fljax.compare_runs(folder, measure="test_loss", target=0.5).parts[""].curves["fedavg"].shape == (3, 3)
    assert main(["show", str(folder), "--target", "nan"]) == 2
    assert capsys.readouterr().err == "fljax: --target nan: give a finite number\n"
    first_round = fljax.compare_runs(folder, target=0.05).parts[""]  # all in their first round
    assert first_round.table.cells[1] == ["standalone", "1.0 ± 0.0", "+0.0", "-", "-", "3"]
    equal = "the difference to fedavg is equal on all seeds"
    assert first_round.notes[-1] == f"no interval and no p-value of standalone: {equal}"
    never_reached = fljax.compare_runs(folder, target=0.95)
    assert never_reached.parts[""].notes[-1] == "accuracy_macro never reached 0.95: fedavg, standalone"
    assert [row["seeds"] for row in never_reached.rows] == [0, 0]
    with pytest.raises(ValueError, match="target=50: accuracy_macro is at most 1"):
        fljax.compare_runs(folder, target=50)
    with pytest.raises(ValueError, match="baseline='ifca' is not a method; choose one of fedavg, standalone"):
        fljax.compare_runs(folder, "ifca")
    with pytest.raises(ValueError, match="folders is empty"):
        fljax.compare_runs([])


def test_methods_are_compared_on_clients_that_never_took_part(comparison, tmp_path, refused):
    folder = tmp_path / "c"
    shutil.copytree(comparison[0], folder)
    for seed in range(3):
        for method, gain in (("fedavg", 0.0), ("standalone", 0.1)):
            tests = {"accuracy_macro": np.float32(0.5 + gain + seed / 100), "client_accuracy": np.ones(2)}
            save_arrays(folder / f"seed_{seed}" / method / "new_clients.npz", tests)
    result = fljax.compare_runs(folder, measure="new_accuracy_macro")
    assert [row["mean"] for row in result.rows] == pytest.approx([0.51, 0.61])
    assert result.rows[1]["difference"] == pytest.approx(0.1)
    assert result.parts[""].table.bold == {(1, 1)}
    (folder / "seed_1" / "fedavg" / "new_clients.npz").unlink()
    assert "seed_1/fedavg has no such metric" in refused("show", str(folder), "--measure", "new_accuracy_macro")


def test_a_partition_of_another_name_is_told_by_its_name():
    """One of the same name by its settings, whatever else is compared."""
    iid = {"partition": {"name": "iid", "n_clients": 5}, "model": {"name": "mlp", "hidden": [3, 4]}, "rounds": 2}
    skewed = {"partition": {"name": "dirichlet", "n_clients": 6}, "model": {"name": "mlp", "hidden": [3]}}
    assert these_differ({"a": iid, "b": skewed, "c": {}}) == [
        "runs differ in rounds, partition, model.hidden: rounds 2 (a), None (b); partition iid (a), dirichlet (b); "
        "model.hidden 3 4 (a), 3 (b)"
    ]
    assert these_differ({"a": iid, "b": iid | {"seed": 3, "fedavg": {"lr": 3}}}) == these_differ({"a": iid}) == []
    few, many, some = (
        {"sampling": {"name": "power_of_choice", **own}} for own in ({"d": 2}, {"d": 3}, {"d": 3, "b": 8})
    )
    assert these_differ({"a": {"sampling": {"name": "uniform"}}, "b": few, "c": many, "d": some}) == [
        "runs differ in sampling, sampling.d, sampling.b: sampling uniform (a), power_of_choice (b, c, d); "
        "sampling.d 2 (b), 3 (c, d); sampling.b None (b, c), 8 (d)"
    ]
    later = {"ignored_column": [], "common_test": False}  # off: as it was before there were the settings
    assert these_differ({"a": iid, "b": iid | later}) == []
    even = skewed | {"partition": skewed["partition"] | {"iid_share": 0.0, "unset": []}}
    assert these_differ({"a": skewed, "b": even}) == []
    half = skewed | {"partition": skewed["partition"] | {"iid_share": 0.5}}
    assert these_differ({"a": skewed, "b": half}) == [
        "runs differ in partition.iid-share: partition.iid-share 0.0 (a), 0.5 (b)"
    ]


@pytest.mark.slow
def test_a_regression_beside_classes_is_refused(comparison, tmp_path, refused):
    y = np.linspace(0, 1, 40, dtype=np.float32)
    federation = fljax.federation_from_arrays(y[:, None], y, np.repeat(range(4), 10))
    model = fljax.regression(fljax.MODELS["logistic_regression"]((1,), 1))
    algorithm, numbers = fljax.fedavg(model, fljax.Work(1, 8)), tmp_path / "numbers"
    fljax.train(algorithm, fljax.fedavg.Hyper(), federation, jax.random.key(0), n_rounds=1, folder=numbers)
    folders = str(comparison[0] / "seed_0"), str(numbers)
    message = refused("show", *folders)
    assert "seed_0/fedavg is compared by accuracy_macro, which " in message
    assert message.endswith("show them separately, or by a metric that both have, such as test_loss\n")
    assert main(["show", *folders, "--measure", "test_loss"]) == 0


def test_a_comparison_does_not_lose_seeds(comparison, refused):
    folder, *_ = comparison
    before = (folder / "comparison.csv").read_bytes()
    message = refused("compare", "--folder", str(folder), "--seeds", "2")
    assert f"--seeds 2: {folder} holds 3 seeds; choose --seeds 3 or another --folder" in message
    assert (folder / "comparison.csv").read_bytes() == before


def test_runs_on_other_columns_of_a_table_are_on_other_clients():
    column_settings = [name for name in RUN if name.endswith("_column")]
    assert {"client_column", "ignored_column", "text_column"} <= {*column_settings}
    config = {"data": "mine.csv", "seed": 0, "partition": {"name": "natural"}}
    assert same_clients(config, config | {"ignored_column": []}, seeds=True)  # as one from before it was there
    assert same_clients(config, config | {"common_test": False}, seeds=True)
    assert not same_clients(config, config | {"common_test": True}, seeds=True)
    skewed, even, half = (
        config | {"partition": {"name": "dirichlet"} | share} for share in ({}, {"iid_share": 0.0}, {"iid_share": 0.5})
    )
    assert same_clients(skewed, even, seeds=True)
    assert not same_clients(skewed, half, seeds=True)
    for name in column_settings:
        assert not same_clients(config | {name: "a"}, config | {name: "b"}, seeds=True), name
    assert not same_clients(config, config | {"seed": 1}, seeds=True)
    assert same_clients(config, config | {"seed": 1}, seeds=False)
