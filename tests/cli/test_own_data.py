"""`--data mine.csv --client-column hospital --label-column sick`: one's own data on the command line."""

import csv

import numpy as np
import pytest

import fljax
from fljax.cli import main
from fljax.cli.assemble import make_model, make_parts
from fljax.cli.job import read_job

FEW = ("--rounds", "2", "--epochs", "1", "--model", "logistic_regression", "--algorithm", "fedavg")


@pytest.fixture
def table(tmp_path):
    """A CSV of 6 hospitals with 20 patients each; the label follows from the age, which is not scaled."""
    rng = np.random.default_rng(0)
    with (tmp_path / "mine.csv").open("w") as file:
        file.write("hospital,age,noise,sick,cost\n")
        for i in range(120):
            age = rng.uniform(20, 90)
            file.write(f"h{i % 6},{age:.1f},{rng.normal():.3f},{'yes' if age > 55 else 'no'},{3 * age + 7:.2f}\n")
    return tmp_path / "mine.csv"


def arguments(table, *more):
    return ["--data", str(table), "--client-column", "hospital", *more]


def test_a_table_is_run_with_its_own_clients(table, tmp_path, capsys):
    given = arguments(table, "--label-column", "sick", "--feature-column", "age", "noise", "--lr", "0.5", *FEW)
    assert main(["run", *given, "--rounds", "5", "--folder", str(tmp_path / "out")]) == 0
    assert "mine.csv, natural: 6 clients, 16 training examples each" in capsys.readouterr().out
    with (tmp_path / "out" / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["accuracy_macro"]) > 0.85  # raw ages would not be learnt in 5 rounds
    with (tmp_path / "out" / "clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    assert [client["client"] for client in clients] == [f"h{i}" for i in range(6)]
    assert np.mean([float(client["fedavg client_accuracy"]) for client in clients]) == pytest.approx(
        float(row["accuracy_macro"])
    )


@pytest.mark.slow
def test_a_comparison_scales_each_seed_by_its_own_training_examples(table, tmp_path):
    given = arguments(table, "--label-column", "sick", "--feature-column", "age", "noise", "--lr", "0.5", *FEW)
    assert main(["compare", *given, "--seeds", "2", "--folder", str(tmp_path / "both")]) == 0
    assert main(["run", *given, "--seed", "1", "--folder", str(tmp_path / "one")]) == 0
    runs = [fljax.load_run(path) for path in (tmp_path / "both/seed_0", tmp_path / "both/seed_1", tmp_path / "one")]
    for name in ("accuracy_macro", "client_loss", "loss"):
        np.testing.assert_allclose(runs[1]["fedavg"].metrics[name], runs[2]["fedavg"].metrics[name], rtol=1e-5)
    other, among, alone = (run.scales["inputs"]["mean"] for run in runs)
    np.testing.assert_array_equal(among, alone)
    assert other[0] != alone[0]  # the premise: another split has another mean age
    federation, _ = make_parts(read_job([*given, "--seed", "1"]))
    (layer,) = runs[2]["fedavg"].client_model("h3").values()
    x, y = (np.asarray(part)[federation.test.index[3, : federation.test.size[3]]] for part in federation.test.pool)
    logits = (x - alone) / runs[2].scales["inputs"]["deviation"] @ layer["kernel"] + layer["bias"]  # taken elsewhere
    assert (logits.argmax(axis=1) == y).mean() == pytest.approx(runs[2]["fedavg"].metrics["client_accuracy"][-1, 3])


def test_a_column_of_numbers_is_regressed_on(table):
    job = read_job(arguments(table, "--label-column", "cost", "--feature-column", "age", "noise", *FEW))
    federation, _ = make_parts(job)
    model = make_model(job, federation)
    assert dict(model.about)["task"] == "regression"
    assert dict(model.about)["target_mean"][0] == pytest.approx(np.asarray(federation.train.pool.y).mean(), rel=0.1)


def test_settings_of_the_partition_hold_for_the_tables_clients(table):
    more = ("--label-column", "sick", "--feature-column", "age", "--partition.val-fraction", "0.2")
    federation, _ = make_parts(read_job(arguments(table, *more, "--partition.n-clients", "4")))
    assert federation.train.size.tolist() == [12] * 4
    assert federation.val is not None
    dealt = ["--data", str(table), "--label-column", "sick", "--feature-column", "age", "--partition", "dirichlet"]
    federation, _ = make_parts(read_job([*dealt, "--partition.n-clients", "3", "--seed", "1"]))
    assert federation.train.size.shape == (3,)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--label-column", "ill"), "there is no column 'ill'; the columns are hospital, age"),
        ((), "say which column has the labels"),
        (("--label-column", "sick", "--partition", "iid"), "--client-column says whose the examples are"),
        (("--label-column", "sick", "--client-column", "None", "--feature-column", "age"), "does not say whose"),
        (("--label-column", "sick", "--partition.min-size", "99"), "the largest has 20"),
        (("--label-column", "sick"), "line 2 (client 'h0'), column 'cost'"),
        (("--dataset", "mine.npz", "--data", "None"), "data of your own is --data mine.npz"),
    ],
)
def test_what_is_wrong_is_one_line(table, capsys, more, message):
    if message.startswith("line 2"):
        table.write_text(table.read_text().replace(table.read_text().split("\n")[1].split(",")[4], "dear"))
    assert main(["run", *arguments(table, *more)]) == 2
    assert message in capsys.readouterr().err
