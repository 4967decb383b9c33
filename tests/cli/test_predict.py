"""`fljax predict`: what trained models say of each example, held to the run's own tests and to the file's rows."""

import csv

import jax
import numpy as np
import pytest

from fljax import load_run, remake
from fljax.cli import main
from fljax.run.models_on_disk import save_models

FEW = ("--model", "logistic_regression", "--epochs", "1", "--batch-size", "8", "--lr", "0.3", "--rounds", "2")


def table(path):
    """Of 160 patients of 8 hospitals, of which the last has twice as many: a class, a number and two labels that follow
    from the age."""
    rng = np.random.default_rng(0)
    rows = [
        {"hospital": f"h{min(i % 9, 7)}", "age": f"{age:.3f}", "sick": "yes" if age > 50 else "no"}
        | {"cost": f"{9 * age + 30 * rng.normal():.2f}"}
        | {"old": int(age > 60), "young": int(age < 40)}
        for i, age in enumerate(rng.uniform(20, 80, 160))
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return rows


@pytest.fixture(scope="module")
def predictions_for(tmp_path_factory):
    """``predictions_for("sick")``, run once each: folder, run, rows of the file, lines of predictions_test.csv.

    Of "sick" two methods, one of which has a model for each client.
    """
    results, root = {}, tmp_path_factory.mktemp("predict")
    rows = table(root / "d.csv")

    def predictions_of(*labels):
        if labels not in results:
            folder = root / "-".join(labels)
            words = ["--data", str(root / "d.csv"), "--client-column", "hospital", "--label-column", *labels, *FEW]
            methods = ["fedavg", "standalone"] if labels == ("sick",) else ["fedavg"]
            options = ["--feature-column", "age", "--algorithm", *methods, "--folder", str(folder)]
            assert main(["run", *words, *options]) == 0
            assert main(["predict", str(folder)]) == 0
            results[labels] = folder, load_run(folder), rows, read_lines(folder / "predictions_test.csv")
        return results[labels]

    return predictions_of


def read_lines(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def of_client(lines, method, client):
    return [line for line in lines if (line["method"], line["client"]) == (method, client)]


def test_classes_have_their_names_and_the_runs_accuracy(predictions_for):
    folder, run, rows, lines = predictions_for("sick")
    assert [*lines[0]] == ["method", "client", "example", "label", "predicted", "p_no", "p_yes"]
    assert run.classes == ("no", "yes")
    for method in run:
        for i, client in enumerate(run[method].clients):
            client_lines = of_client(lines, method, client)
            assert client_lines
            assert all(rows[int(line["example"])]["hospital"] == client for line in client_lines)
            assert all(rows[int(line["example"])]["sick"] == line["label"] for line in client_lines)
            accuracy = np.mean([line["label"] == line["predicted"] for line in client_lines])
            assert accuracy == pytest.approx(run[method].metrics["client_accuracy"][-1, i])
    algorithm, line = remake(folder).runs["standalone"]["algorithm"], of_client(lines, "standalone", "h3")[0]
    x = np.array([[float(rows[int(line["example"])]["age"])]], np.float32)
    p = jax.nn.softmax(algorithm.predict(run["standalone"].client_model("h3"), x))[0]
    np.testing.assert_allclose([float(line["p_no"]), float(line["p_yes"])], p, rtol=1e-5)


@pytest.mark.slow
def test_numbers_are_in_the_files_unit(predictions_for):
    _, run, rows, lines = predictions_for("cost")
    assert [*lines[0]] == ["method", "client", "example", "label", "predicted"]
    for i, client in enumerate(run["fedavg"].clients):
        client_lines = of_client(lines, "fedavg", client)
        cost = np.array([float(rows[int(line["example"])]["cost"]) for line in client_lines])
        np.testing.assert_allclose([float(line["label"]) for line in client_lines], cost, rtol=1e-6)
        error = np.square(cost - [float(line["predicted"]) for line in client_lines]).mean()
        assert error == pytest.approx(float(run["fedavg"].metrics["client_mse"][-1, i]), rel=1e-4)


@pytest.mark.slow
def test_each_label_has_its_name(predictions_for):
    _, run, rows, lines = predictions_for("old", "young")
    columns = [f"{prefix}_{name}" for name in ("old", "young") for prefix in ("label", "p", "predicted")]
    assert [*lines[0]] == ["method", "client", "example", *columns]
    assert all(float(line[f"label_{n}"]) == rows[int(line["example"])][n] for line in lines for n in ("old", "young"))
    assert all((float(line["p_old"]) >= 0.5) == float(line["predicted_old"]) for line in lines)
    for i, client in enumerate(run["fedavg"].clients):
        own = of_client(lines, "fedavg", client)
        is_right = [
            float(line[f"label_{n}"]) == float(line[f"predicted_{n}"]) for line in own for n in ("old", "young")
        ]
        assert np.mean(is_right) == pytest.approx(run["fedavg"].metrics["client_accuracy"][-1, i])


def test_one_method_another_split_and_file(predictions_for, tmp_path, capsys):
    folder, run, _, lines = predictions_for("sick")
    options = ["--method", "standalone", "--split", "train", "--out", str(tmp_path / "t.csv")]
    assert main(["predict", str(folder), *options]) == 0
    train = read_lines(tmp_path / "t.csv")
    assert {line["method"] for line in train} == {"standalone"}
    assert {line["example"] for line in train}.isdisjoint(line["example"] for line in lines)
    assert len(train) + len(lines) / len(run) == 160
    assert f"{len(train)} predictions written to {tmp_path / 't.csv'}" in capsys.readouterr().out


def test_predictions_of_one_method_do_not_replace_those_of_all(predictions_for, capsys):
    folder, *_ = predictions_for("sick")
    all_file, method_file = folder / "predictions_test.csv", folder / "predictions_test_standalone.csv"
    content = all_file.read_bytes()
    capsys.readouterr()
    try:
        for remark in ("", ", in place of those that were there"):
            assert main(["predict", str(folder), "--method", "standalone"]) == 0
            assert capsys.readouterr().out.endswith(f" predictions written to {method_file}{remark}\n")
        assert {line["method"] for line in read_lines(method_file)} == {"standalone"}
    finally:
        method_file.unlink()
    assert all_file.read_bytes() == content


def test_a_client_whose_model_gives_nan_has_no_prediction(predictions_for, tmp_path):
    folder, run, _, _ = predictions_for("sick")
    models, file = run["standalone"].models, folder / "standalone" / "models.npz"
    content = file.read_bytes()
    params = jax.tree.map(np.array, models.params)
    params["fc1"]["bias"][2, 0] = np.nan  # of one class alone
    try:
        save_models(file, models._replace(params=params))
        assert main(["predict", str(folder), "--out", str(tmp_path / "t.csv")]) == 0
    finally:
        file.write_bytes(content)
    for line in read_lines(tmp_path / "t.csv"):
        is_nan = (line["method"], line["client"]) == ("standalone", "h2")
        assert (line["predicted"] == line["p_no"] == "") == is_nan


@pytest.mark.slow
def test_images_of_a_comparisons_seed(tmp_path, capsys):
    arguments = [
        "--partition.n-clients",
        "4",
        *FEW,
        "--algorithm",
        "fedavg",
        "--seeds",
        "2",
        "--folder",
        str(tmp_path / "c"),
    ]
    assert main(["compare", *arguments]) == 0
    assert main(["predict", str(tmp_path / "c")]) == 2
    assert (
        "holds no results: it is a comparison of seed_0, seed_1; read it with fljax.load_comparison"
        in capsys.readouterr().err
    )
    assert main(["predict", str(tmp_path / "c" / "seed_1"), "--split", "val"]) == 0
    lines = read_lines(tmp_path / "c" / "seed_1" / "predictions_val.csv")
    assert {line["client"] for line in lines} == {"0", "1", "2", "3"}
    assert {line["label"] for line in lines} == set("0123456789")
    assert all(max(range(10), key=lambda k: float(line[f"p_{k}"])) == int(line["predicted"]) for line in lines)


@pytest.mark.slow
def test_clients_are_those_of_the_last_round(tmp_path):
    drift = ("--drift", "leave", "--drift.start", "1", "--drift.share", "0.5", "--algorithm", "fedavg")
    assert main(["run", "--partition.n-clients", "4", *FEW, *drift, "--folder", str(tmp_path / "d")]) == 0
    assert main(["predict", str(tmp_path / "d")]) == 0
    is_tested = np.isfinite(load_run(tmp_path / "d")["fedavg"].metrics["client_accuracy"][-1])
    assert is_tested.sum() == 2
    lines = read_lines(tmp_path / "d" / "predictions_test.csv")
    assert {int(line["client"]) for line in lines} == {*np.flatnonzero(is_tested).tolist()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--split", "vall"), "split='vall' is unknown; choose one of 'test', 'val', 'train'"),
        (("--split", "val"), "has no such examples; run with --partition.val-fraction 0.1"),
        (("--method", "ditto"), "sick has no 'ditto'; it has fedavg, standalone"),
        (("--out", "nowhere/p.csv"), "--out nowhere/p.csv: there is no folder nowhere"),
        (("--out", "p.parquet"), "--out p.parquet: give the name of a file, such as predictions.csv"),
        (("--seed", "3"), "--seed 3: fljax predict takes --method, --split, --data, --client, --join"),
        (("other",), "other: fljax predict reads one folder at a time"),
    ],
)
def test_refusals(predictions_for, arguments, message, capsys):
    assert main(["predict", str(predictions_for("sick")[0]), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), [("h0,", "h0,1"), (",yes,", ",no,")])
def test_data_that_has_changed_is_told(predictions_for, old, new, capsys):
    folder, *_ = predictions_for("sick")
    file = folder.parent / "d.csv"
    text, predictions = file.read_text(), (folder / "predictions_test.csv").read_bytes()
    try:
        file.write_text(text.replace(old, new, 1))
        assert main(["predict", str(folder)]) == 2
    finally:
        file.write_text(text)
    assert "fedavg holds a run on other examples; restore the data" in capsys.readouterr().err
    assert (folder / "predictions_test.csv").read_bytes() == predictions


def test_a_run_that_is_not_finished_has_no_models(predictions_for, tmp_path, capsys):
    folder, *_ = predictions_for("sick")
    models = folder / "fedavg" / "models.npz"
    models.rename(tmp_path / "models.npz")
    try:
        assert main(["predict", str(folder), "--method", "fedavg"]) == 2
    finally:
        (tmp_path / "models.npz").rename(models)
    assert "models.npz" in capsys.readouterr().err


def test_help_and_no_folder(capsys):
    assert main(["predict", "--help"]) == 0
    assert "--split   the examples; default: test" in capsys.readouterr().out
    assert main(["predict", "--split", "test"]) == 2
    assert "name a folder: fljax predict FOLDER" in capsys.readouterr().err


@pytest.mark.slow
def test_changed_examples_are_told_by_the_rows_that_they_are_of(tmp_path):
    """Of clients that a drift and an attack have given changed copies, which stand in no file."""
    rows, folder = table(tmp_path / "d.csv"), tmp_path / "f"
    data_options = ["--data", str(tmp_path / "d.csv"), "--client-column", "hospital", "--label-column", "sick"]
    drift = ["--drift", "swap_labels", "--drift.start", "1", "--drift.share", "1", "--attack", "label_flip"]
    options = [*data_options, "--feature-column", "age", "--algorithm", "fedavg", *drift, "--attack.ids", "3"]
    assert main(["run", *options, *FEW, "--compile", "fast", "--folder", str(folder)]) == 0
    swapped = {"yes": "no", "no": "yes"}
    for split in ("test", "train"):
        assert main(["predict", str(folder), "--split", split]) == 0
        lines = read_lines(folder / f"predictions_{split}.csv")
        assert {line["client"] for line in lines} == {f"h{i}" for i in range(8) if i != 3 or split == "train"}
        for line in lines:  # all are swapped, and the attacker's training examples flipped
            row = rows[int(line["example"])]
            assert (row["hospital"], swapped[row["sick"]]) == (line["client"], line["label"])
