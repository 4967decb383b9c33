"""`fljax predict --data`: new examples are told as the same examples are where the run has them."""

import csv

import jax
import numpy as np
import pytest
from PIL import Image

from fljax import load_run, remake
from fljax.cli import main
from fljax.results.predicted import predicted, predicted_of_new
from fljax.run.models_on_disk import save_models

FEW = ("--model", "logistic_regression", "--epochs", "1", "--batch-size", "8", "--lr", "0.3", "--rounds", "2")


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)


def patients():
    """Of four hospitals, one of which has numbers for a name, as the class depends on age and ward."""
    rng = np.random.default_rng(0)
    return [
        {"hospital": f"h{i % 4}" if i % 4 else "7", "age": f"{age:.3f}", "ward": "abc"[i % 3], "kind=x": f"{i % 5}"}
        | {"kind": "uv"[i % 2], "sick": "yes" if age + 9 * (i % 3) > 55 else "no", "cost": f"{3 * age:.2f}"}
        for i, age in enumerate(rng.uniform(20, 80, 120))
    ]


METHODS = {"sick": ["fedavg", "standalone"], "cost": ["standalone"]}


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
    """``trained_folder("sick") -> folder``, run once each on `patients`."""
    folders, root = {}, tmp_path_factory.mktemp("new")
    write(root / "d.csv", patients())

    def folder_of(label):
        if label not in folders:
            folders[label] = root / label
            data = ["--data", str(root / "d.csv"), "--client-column", "hospital", "--label-column", label]
            inputs = ["--feature-column", "age", "ward", "kind=x", "kind", "--category-column", "ward", "kind"]
            options = ["--algorithm", *METHODS[label], "--folder", str(folders[label])]
            assert main(["run", *data, *inputs, *FEW, *options]) == 0
        return folders[label]

    return folder_of


def assert_same(new, expected, columns):
    """Whether new examples, told in the file's order, are told as those of the run, client after client."""
    order = np.lexsort((expected["example"], expected["method"]))
    assert len(new["method"]) == len(order)
    for name in columns:
        new_values, expected_values = new[name], expected[name][order]
        if new_values.dtype.kind == "f":
            np.testing.assert_allclose(new_values, expected_values, rtol=2e-5, atol=1e-6)
        else:
            assert new_values.tolist() == expected_values.tolist()


def rows_of(predictions):
    """The rows of the run's own examples, in the file's order."""
    return sorted(set(predictions["example"].tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("label", ["sick", "cost"])
def test_a_table_in_another_order_is_told_as_the_runs_own(trained_folder, label, tmp_path):
    folder, expected = trained_folder(label), predicted(trained_folder(label))
    names = ["ward", "kind", label, "kind=x", "more", "age", "hospital"]
    write(tmp_path / "n.csv", [{n: ({"more": "?"} | patients()[i])[n] for n in names} for i in rows_of(expected)])
    new = predicted_of_new(folder, tmp_path / "n.csv")
    assert_same(new, expected, ["method", "client", "predicted", *(name for name in new if name.startswith("p_"))])
    assert new["example"].tolist() == len(METHODS[label]) * [*range(len(rows_of(expected)))]
    assert new["label"].tolist() == len(METHODS[label]) * [patients()[i][label] for i in rows_of(expected)]
    assert [*new] == [*expected]


def test_without_labels_and_clients(trained_folder, tmp_path, capsys):
    folder = trained_folder("sick")
    rows = [{name: row[name] for name in ("age", "ward", "kind", "kind=x")} for row in patients()[:5]]
    write(tmp_path / "n.csv", rows)
    assert main(["predict", str(folder), "--data", str(tmp_path / "n.csv")]) == 2
    assert "give --client NAME, or a column 'hospital' in the file" in capsys.readouterr().err
    assert main(["predict", str(folder), "--data", str(tmp_path / "n.csv"), "--method", "fedavg"]) == 0
    with (folder / "predictions_of_n_fedavg.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [*lines[0]] == ["method", "client", "example", "predicted", "p_no", "p_yes"]
    assert {line["client"] for line in lines} == {""}
    assert main(["predict", str(folder), "--data", str(tmp_path / "n.csv"), "--client", "h2"]) == 0
    with (folder / "predictions_of_n_h2.csv").open() as file:
        lines_of_h2 = list(csv.DictReader(file))
    assert [line["p_yes"] for line in lines_of_h2[:5]] == [line["p_yes"] for line in lines]  # fedavg has one model
    numbers = [(float(r["age"]), float(r["kind=x"])) for r in rows]
    words = [([r["ward"] == w for w in "abc"], [r["kind"] == k for k in "uv"]) for r in rows]
    x = np.array([[age, *ward, x, *kind] for (age, x), (ward, kind) in zip(numbers, words, strict=True)], np.float32)
    run = load_run(folder)
    assert run.inputs == ("age", "ward=a", "ward=b", "ward=c", "kind=x", "kind=u", "kind=v")
    logits = remake(folder).runs["standalone"]["algorithm"].predict(run["standalone"].client_model("h2"), x)
    np.testing.assert_allclose(
        [float(line["p_yes"]) for line in lines_of_h2[5:]], jax.nn.softmax(logits)[:, 1], rtol=1e-5
    )


def test_a_table_of_one_model_is_everyones_whatever_its_rows(trained_folder, tmp_path):
    folder = trained_folder("sick")
    write(
        tmp_path / "n.csv", [{name: row[name] for name in ("age", "ward", "kind", "kind=x")} for row in patients()[:5]]
    )
    expected = predicted_of_new(folder, tmp_path / "n.csv", methods=["fedavg"])
    models, file = load_run(folder)["fedavg"].models, folder / "fedavg" / "models.npz"
    content = file.read_bytes()
    try:
        save_models(file, models._replace(row=np.arange(len(models.row), dtype=np.int32)))
        predictions = predicted_of_new(folder, tmp_path / "n.csv", methods=["fedavg"])
    finally:
        file.write_bytes(content)
    np.testing.assert_array_equal(predictions["p_yes"], expected["p_yes"])


def test_clients_that_the_run_did_not_have_get_the_model_that_all_share(trained_folder, tmp_path):
    folder, rows = trained_folder("sick"), [row | {"hospital": f"h{i}"} for i, row in enumerate(patients()[:5], 7)]
    write(tmp_path / "n.csv", rows)
    predictions = predicted_of_new(folder, tmp_path / "n.csv", methods=["fedavg"])
    assert predictions["client"].tolist() == ["h7", "h8", "h9", "h10", "h11"]
    for i, row in enumerate(rows):  # one by one: several rows of a client are one product, which rounds otherwise
        write(tmp_path / "n.csv", [row | {"hospital": "h1"}])
        expected = predicted_of_new(folder, tmp_path / "n.csv", methods=["fedavg"])["p_yes"]
        np.testing.assert_array_equal(predictions["p_yes"][i], expected[0])
    with pytest.raises(ValueError, match="there is no client 'h0'"):  # a slip, where one is named
        predicted_of_new(folder, tmp_path / "n.csv", "h0", methods=["fedavg"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ward": "d"}, "line 3 (client 'h1'), column 'ward' is 'd'; choose one of a, b, c"),
        ({"ward": ""}, "line 3 (client 'h1'), column 'ward' is empty; name the category"),
        (
            {"age": "old"},
            "line 3 (client 'h1'), column 'age' is 'old', not a finite number; correct it, or leave the row out",
        ),
        ({"age": ""}, "line 3 (client 'h1'), column 'age' is empty; correct it, or leave the row out"),
        ({"hospital": "h9"}, "there is no client 'h9'; clients are 7, h1, h2, h3"),
        ({"hospital": ""}, "line 3 (client ''), column 'hospital' is empty; name the client"),
        ({"age": None}, "there is no column 'age'; the columns are hospital, ward, kind=x, kind"),
        ({"kind": None}, "there is no column 'kind'; the columns are hospital, age, ward, kind=x"),
    ],
)
def test_what_the_run_did_not_have_is_refused(trained_folder, changes, message, tmp_path, capsys):
    """In the second row, or of all rows where a column is left out."""
    rows = [{name: row[name] for name in ("hospital", "age", "ward", "kind=x", "kind")} for row in patients()[:3]]
    rows[1] |= changes
    write(tmp_path / "n.csv", [{name: row[name] for name in row if changes.get(name, "") is not None} for row in rows])
    assert main(["predict", str(trained_folder("sick")), "--data", str(tmp_path / "n.csv")]) == 2
    assert message in (error := capsys.readouterr().err)
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--client", "h1"], "--client h1: it is for new examples; give --data FILE, too"),
        (
            ["--data", "d.csv", "--split", "val"],
            "--split val: it selects examples of the run; leave --split or --data out",
        ),
        (
            ["--data", "nowhere.csv"],
            "nowhere.csv; give a .csv, .csv.gz, .tsv, .tsv.gz, .parquet or .npz file, or a",
        ),
        (
            ["--data", __file__],
            "new examples in a .py file cannot be read; give .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .npz, or a",
        ),
    ],
)
def test_refusals(trained_folder, arguments, message, capsys):
    assert main(["predict", str(trained_folder("sick")), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_texts(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"who": f"w{i % 3}", "review": " ".join(rng.choice(["sun", "rain", "snow", "ball", "goal", "team"], 1 + i % 6))}
        | {"topic": "ab"[i % 2]}
        for i in range(60)
    ]
    write(tmp_path / "d.csv", rows)
    names = ["--client-column", "who", "--label-column", "topic", "--text-column", "review"]
    data = ["--data", str(tmp_path / "d.csv"), *names]
    sizes = ["--text-words", "5", "--text-length", "4", *FEW[2:], "--model", "fasttext"]
    assert main(["run", *data, *sizes, "--algorithm", "standalone", "--folder", str(tmp_path / "r")]) == 0
    expected = predicted(tmp_path / "r")
    write(tmp_path / "n.csv", [{"review": rows[i]["review"].upper(), "who": rows[i]["who"]} for i in rows_of(expected)])
    predictions = predicted_of_new(tmp_path / "r", tmp_path / "n.csv")
    assert_same(predictions, expected, ["client", "predicted", "p_a", "p_b"])
    write(tmp_path / "n.csv", [{"review": "hail", "who": "w0"}, {"review": "storm", "who": "w0"}])
    predictions = predicted_of_new(tmp_path / "r", tmp_path / "n.csv")
    assert predictions["p_a"][0] == predictions["p_a"][1]  # unknown words are all one


def test_images_and_arrays(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for i in range(36):
        folder = tmp_path / "d" / f"c{i % 3}" / "ox"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (6, 6), np.uint8)).save(folder / f"{i:02}.png")
    folder, run = tmp_path / "r", ["run", "--algorithm", "standalone", *FEW, "--folder", str(tmp_path / "r")]
    assert main([*run, "--data", str(tmp_path / "d")]) == 0
    expected = predicted(folder)
    x = np.asarray(remake(folder).federation.test.pool.x)
    for image, client in zip(expected["example"], expected["client"], strict=True):
        (tmp_path / "n" / client).mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[image, ..., 0]).save(tmp_path / "n" / client / f"{image:02}.png")
    predictions = predicted_of_new(folder, tmp_path / "n")
    order = np.lexsort((expected["example"], expected["client"]))
    assert predictions["example"].tolist() == [
        f"{expected['client'][i]}/{expected['example'][i]:02}.png" for i in order
    ]
    np.testing.assert_allclose(predictions["p_o"], expected["p_o"][order], rtol=1e-5)
    order = np.argsort(expected["example"])
    np.savez(tmp_path / "n.npz", x=x[expected["example"][order], ..., 0], client_ids=expected["client"][order])
    predictions = predicted_of_new(folder, tmp_path / "n.npz")
    assert_same(predictions, expected, ["method", "client", "predicted", "p_o", "p_x"])
    for wrong, message in (
        ({"x": x[:2, :5]}, "examples have shape (5, 6, 1); give the run's shape, (6, 6, 1)"),
        ({"x": x[:2] / 255}, "examples are float64; give the run's type, uint8"),
        ({"x": x[:2], "client_ids": ["c0"]}, "has 2 examples and client ids of shape (1,); give one for each example"),
        ({"images": x[:2], "client_ids": ["c0", "c9"]}, "there is no client 'c9'; clients are c0, c1, c2"),
        ({"z": x[:2]}, "n.npz: has no array x; it has z"),
    ):
        np.savez(tmp_path / "n.npz", **wrong)
        assert main(["predict", str(folder), "--data", str(tmp_path / "n.npz")]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_set_by_name_has_numbers_for_clients(tmp_path, capsys):
    folder = tmp_path / "r"
    options = ["--partition", "iid", "--partition.n-clients", "3", *FEW, "--algorithm", "standalone"]
    assert main(["run", "--dataset", "digits", *options, "--folder", str(folder)]) == 0
    expected, x = predicted(folder), np.asarray(remake(folder).federation.test.pool.x)
    np.savez(tmp_path / "n.npz", x=x[expected["example"]], client=expected["client"])
    predictions = predicted_of_new(folder, tmp_path / "n.npz")
    assert predictions["predicted"].tolist() == expected["predicted"].tolist()
    np.testing.assert_allclose(predictions["p_3"], expected["p_3"], rtol=1e-5, atol=1e-7)
    assert main(["predict", str(folder), "--data", str(tmp_path / "n.npz"), "--client", "3"]) == 2
    assert "there is no client '3'; choose 0 to 2" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there is no client 'h3'; clients have no names"):
        load_run(folder)["standalone"].client_model("h3")
