"""`fljax predict` of clients that took no part: those that a run held out, and those that join it by examples."""

import csv
import shutil

import numpy as np
import pytest

import fljax
from fljax import compare_runs, load_run, remake, save_models
from fljax.cli import main
from fljax.data.own.new_examples import Known, read_new
from fljax.data.own.tables import Columns
from fljax.results.joining import Held, models_for, read_joining
from fljax.run.models_on_disk import OF_NEW
from fljax.types import ModelTable
from tests.cli.test_predict_new import FEW, patients, write

OWN = "standalone"
"""Its new clients train a model of their own, from the run's first one."""


@pytest.fixture(scope="module")
def held_out_run(tmp_path_factory):
    """A run of FedAvg and of clients alone that held one of four hospitals out: its folder, and that hospital."""
    root = tmp_path_factory.mktemp("join")
    write(root / "d.csv", patients())
    data = ["--data", str(root / "d.csv"), "--client-column", "hospital", "--label-column", "sick"]
    inputs = ["--feature-column", "age", "ward", "--category-column", "ward", "--new-clients", "0.25"]
    sampling = ["--sampling", "least_recent"]  # whose memory is in the checkpoints beside the methods' states
    options = [*data, *inputs, *FEW, *sampling, "--algorithm", "fedavg", OWN, "--folder", str(root / "r")]
    assert main(["run", *options]) == 0
    (name,) = load_run(root / "r")[OWN].new_clients
    assert main(["predict", str(root / "r"), "--split", "new"]) == 0
    return root / "r", name


def lines_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def rows_of(folder, split, **changes):
    """The held-out client's rows of a split in the file, as they are there but for ``changes``."""
    data = getattr(remake(folder).newcomers, split)
    names = ("hospital", "age", "ward", "sick")
    rows = np.asarray(data.index)[0, : int(data.size[0])]
    return [{name: patients()[i][name] for name in names} | changes for i in rows]


def lines_for(folder, path, *options):
    file = folder / "asked.csv"
    assert main(["predict", str(folder), "--data", str(path), "--out", str(file), *options]) == 0
    return lines_of(file)


def test_clients_that_were_held_out_are_told_by_the_models_that_they_got(held_out_run):
    folder, name = held_out_run
    lines, run = lines_of(folder / "predictions_new.csv"), load_run(folder)
    assert {line["client"] for line in lines} == {name}
    for method in ("fedavg", OWN):
        is_right = [line["label"] == line["predicted"] for line in lines if line["method"] == method]
        with np.load(folder / method / "new_clients.npz") as results:
            assert np.mean(is_right) == pytest.approx(float(results["client_accuracy"][0]))
    own_model, shared_model = run[OWN].client_model(name), run["fedavg"].client_model(name)
    assert np.abs(own_model["fc1"]["kernel"] - shared_model["fc1"]["kernel"]).max() > 0
    with pytest.raises(ValueError, match="there is no client 'h9'; clients are .*" + name):
        run[OWN].client_model("h9")


def test_tests_of_clients_that_were_held_out_have_their_names(held_out_run):
    folder, name = held_out_run
    columns, lines = load_run(folder).new_tests(), lines_of(folder / "predictions_new.csv")
    assert columns["client"].tolist() == [name, name]
    assert columns["algorithm"].tolist() == ["fedavg", OWN]
    for method, accuracy in zip(columns["algorithm"], columns["client_accuracy"], strict=True):
        is_right = [line["label"] == line["predicted"] for line in lines if line["method"] == method]
        assert accuracy == pytest.approx(np.mean(is_right))


def test_new_examples_of_a_client_that_was_held_out(held_out_run, tmp_path):
    folder, _ = held_out_run
    write(tmp_path / "n.csv", rows_of(folder, "test"))
    expected = lines_of(folder / "predictions_new.csv")
    predicted = lines_for(folder, tmp_path / "n.csv")
    p, p_expected = ([float(line["p_yes"]) for line in lines] for lines in (predicted, expected))
    np.testing.assert_allclose(p, p_expected, rtol=1e-5)  # of other shapes: the last digit depends on the processor


@pytest.mark.parametrize("names", [{"hospital": "h8"}, {}])
def test_who_joins_gets_what_a_client_that_was_held_out_got(held_out_run, names, tmp_path):
    """Here with its examples; where the files do not name it, it is called as that of the labelled examples."""
    folder, _ = held_out_run
    for path, split in (("n.csv", "test"), ("h9.csv", "train")):
        rows = rows_of(folder, split, **names)
        write(tmp_path / path, rows if names else [{k: row[k] for k in row if k != "hospital"} for row in rows])
    expected = lines_of(folder / "predictions_new.csv")
    predicted = lines_for(folder, tmp_path / "n.csv", "--join", str(tmp_path / "h9.csv"))
    p, p_expected = ([float(line["p_yes"]) for line in lines] for lines in (predicted, expected))
    np.testing.assert_allclose(p, p_expected, rtol=1e-5)
    assert {line["client"] for line in predicted} == {names.get("hospital", "h9")}
    after_9_rounds = lines_for(folder, tmp_path / "n.csv", "--join", str(tmp_path / "h9.csv"), "--rounds", "9")
    is_equal = [a["p_yes"] == b["p_yes"] for a, b in zip(after_9_rounds, predicted, strict=True)]
    assert is_equal == [line["method"] == "fedavg" for line in predicted]  # everyone's model has no rounds of its own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sick": "maybe"}, "j.csv: example 0 has the label 'maybe'; give one of the run's; the classes are no, yes"),
        ({"sick": None}, "j.csv: its examples have no labels, which training needs; put them in a column 'sick'"),
        ({"ward": "d"}, "j.csv: line 2 (client 'h9'), column 'ward' is 'd' (23 more in this column); choose one of a"),
        ({"hospital": "took part"}, "cannot join: it was in the run and has a model; leave it out"),
    ],
)
def test_who_cannot_join(held_out_run, changes, message, tmp_path, capsys):
    folder, _ = held_out_run
    changes = {"hospital": "h9"} | changes
    if changes["hospital"] != "h9":
        changes["hospital"] = load_run(folder)[OWN].clients[0]
    rows = [{k: v for k, v in row.items() if v is not None} for row in rows_of(folder, "train", **changes)]
    write(tmp_path / "j.csv", rows)
    assert main(["predict", str(folder), "--data", str(tmp_path / "j.csv"), "--join", str(tmp_path / "j.csv")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--join", "j.csv"], "--join j.csv: it is for new examples; give --data FILE, too"),
        (["--data", "n.csv", "--rounds", "3"], "--rounds 3: it is for clients that join; give --join FILE"),
        (["--data", "n.csv", "--join", "j.csv", "--rounds", "-1"], "--rounds -1: give a whole number, 0 or more"),
    ],
)
def test_refusals(held_out_run, arguments, message, capsys):
    assert main(["predict", str(held_out_run[0]), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_tests_of_clients_that_were_held_out_are_those_of_all_rounds(held_out_run, tmp_path):
    shutil.copytree(held_out_run[0], tmp_path / "r")
    run = load_run(tmp_path / "r")
    save_models(tmp_path / "r" / "fedavg" / OF_NEW, run["fedavg"].new_models, 9)  # as before it went on and was stopped
    for read_tests in (run.new_tests, lambda: compare_runs(tmp_path / "r", measure="new_accuracy_macro")):
        with pytest.raises(
            ValueError, match=r"was written after 9 rounds, but the run was interrupted after \d; resume it first"
        ):
            read_tests()


@pytest.mark.slow
def test_a_run_that_held_nobody_out_has_no_new_clients(tmp_path, capsys):
    options = ["--partition", "iid", "--partition.n-clients", "3", *FEW, "--algorithm", "fedavg"]
    assert main(["run", *options, "--folder", str(tmp_path / "r")]) == 0
    assert main(["predict", str(tmp_path / "r"), "--split", "new"]) == 2
    assert "split='new': " in (error := capsys.readouterr().err)
    assert "has no such examples; run with --new-clients 0.2" in error
    with pytest.raises(ValueError, match=r"new_clients.npz; fljax run writes it with --new-clients 0.2"):
        load_run(tmp_path / "r").new_tests()
    with pytest.raises(ValueError, match=r"new_models.npz; fljax run writes it if it holds clients out"):
        _ = load_run(tmp_path / "r")["fedavg"].new_models


def test_arrays_are_no_rows_of_the_runs_table(held_out_run, tmp_path, capsys):
    np.savez(tmp_path / "n.npz", x=np.zeros((2, 4), np.float32))
    assert main(["predict", str(held_out_run[0]), "--data", str(tmp_path / "n.npz")]) == 2
    assert "n.npz: the run's examples are rows of a table; give one with its columns, .csv," in capsys.readouterr().err


def test_labels_of_arrays_and_images_are_read_where_they_must_be_there(tmp_path):
    known = Known(Columns(()), (4,), np.float32)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "a.npz", x=x, y=[2, 0, 1], client_ids=["a", "b", "a"])
    assert read_new(tmp_path / "a.npz", known).label == ()
    (label,) = read_new(tmp_path / "a.npz", known, labelled=True).label
    assert label.tolist() == ["2", "0", "1"]
    np.savez(tmp_path / "a.npz", x=x, y=[2, 0])
    with pytest.raises(ValueError, match=r"a.npz: has 3 examples and labels of shape \(2,\); give one for each"):
        read_new(tmp_path / "a.npz", known, labelled=True)
    np.savez(tmp_path / "a.npz", x=x)
    with pytest.raises(ValueError, match=r"a.npz: has no array y; it has x"):
        read_new(tmp_path / "a.npz", known, labelled=True)


@pytest.mark.slow
def test_examples_of_several_that_join_say_whose_they_are(held_out_run, tmp_path, capsys):
    folder, _ = held_out_run
    rows = rows_of(folder, "train")
    write(tmp_path / "j.csv", [row | {"hospital": f"h{i % 2 + 8}"} for i, row in enumerate(rows)])
    write(tmp_path / "n.csv", [{name: row[name] for name in row if name != "hospital"} for row in rows])
    arguments = ["predict", str(folder), "--data", str(tmp_path / "n.csv"), "--join", str(tmp_path / "j.csv")]
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert (
        f"{OWN} has different models for its clients, and no client is given; give --client NAME, or a column"
        in message
    )
    assert message.endswith("or choose a method with one model for all, --method fedavg\n")
    assert main([*arguments, "--method", "fedavg"]) == 0
    assert main([*arguments, "--client", "h9"]) == 0


def test_who_joins_is_no_part_of_the_runs_own_federation(tmp_path):
    """And its labels may be written as numbers with a point, as a table beside missing ones has them."""
    x, y = np.arange(80, dtype=np.float32).reshape(40, 2), np.arange(40) % 3
    federation = fljax.own_data(x, y, np.arange(40) // 10).federation((0.5, 0.2, 0.3))._replace(group=np.zeros(4, int))
    known = Known(Columns(("y",), "who"), (2,), np.float32, inputs=("a", "b"))
    write(tmp_path / "j.csv", [{"a": 1, "b": i, "y": f"{i}.0", "who": "n"} for i in (2, 0, 1)])
    joining = read_joining(tmp_path / "j.csv", known, federation, ())
    assert joining.names == ("n",)
    assert joining.federation.train.pool.y.tolist() == [2, 0, 1]
    assert (joining.federation.val, joining.federation.group) == (None, None)


def test_the_models_of_several_tables_are_put_together_as_they_are_held():
    """The last of two of one name; a table of one row is everyone's, a row that is none is no model."""
    one_model, two_models, three_models = ({"w": np.full((n, 1), 10 * n) + np.arange(n)[:, None]} for n in (1, 2, 3))
    tables = [
        Held(("a", "b"), ModelTable(two_models, np.array([1, 0]))),
        Held(("c", "d"), ModelTable(one_model, np.array([4, -1]))),
        Held(("b", "e"), ModelTable(three_models, np.array([2, -1]))),
    ]
    table = models_for(["a", "b", "c", "e", "a"], tables)
    rows = np.asarray(table.row)
    assert rows[3] == -1
    assert np.asarray(table.params["w"])[rows[[0, 1, 2, 4]], 0].tolist() == [21, 32, 10, 21]
    assert len(models_for(["c"], tables).params["w"]) == 1
