"""Empty cells of a table: filled by a number of the training examples alone, or all of them told at once."""

import numpy as np
import pytest

import fljax
from fljax.cli import main
from fljax.data.own.arrays import OwnData
from fljax.data.own.cells import EMPTY_NUMBERS
from fljax.data.own.fill import fills
from fljax.data.own.tables import read_table
from fljax.jobs.job import read_job
from fljax.jobs.own_data import read_data
from fljax.jobs.parts import make_parts
from fljax.results.predicted import predicted, predicted_of_new
from tests.cli.test_predict_new import FEW, write
from tests.slow import slow

COLUMNS = ("--client-column", "who", "--label-column", "sick", "--category-column", "ward")


def rows_with_gaps():
    """Of 80 patients of four hospitals; of numbers a third is empty, the later ones much larger than the others."""
    rng = np.random.default_rng(0)
    return [
        {"who": "abcd"[i % 4], "age": "" if i % 3 == 0 else f"{rng.uniform(20, 80) + i * i:.2f}", "ward": "xy"[i % 2]}
        | {"dose": " " if i % 5 == 0 else f"{rng.uniform():.3f}", "sick": "yn"[rng.integers(2)]}
        for i in range(80)
    ]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("fill") / "d.csv"
    write(path, rows_with_gaps())
    return path


def filled(table, fill) -> OwnData:
    return read_table(table, fljax.Columns(("sick",), "who", categories=("ward",), fill=fill))


def numbers_of(name):
    return np.array([float(row[name]) if row[name].strip() else np.nan for row in rows_with_gaps()])


def rows_of(data):
    return np.unique(np.asarray(data.index)[np.arange(data.index.shape[1]) < np.asarray(data.size)[:, None]])


@pytest.mark.parametrize(("fill", "summarize"), [("median", np.nanmedian), ("mean", np.nanmean)])
def test_a_cell_is_what_its_column_is_in_the_middle_where_clients_train(table, fill, summarize):
    data = filled(table, fill)
    federation = data.federation((0.6, 0.2, 0.2), seed=1)
    x, rows = np.asarray(federation.train.pool.x), rows_of(federation.train)
    assert federation.test.pool is federation.val.pool is federation.train.pool
    for name in ("age", "dose"):
        column, is_empty = x[:, data.inputs.index(name)], np.isnan(numbers_of(name))
        np.testing.assert_allclose(column[~is_empty], numbers_of(name)[~is_empty], rtol=1e-6)
        np.testing.assert_allclose(column[is_empty], summarize(numbers_of(name)[rows]), rtol=1e-5)


def test_clients_that_are_held_out_do_not_count(table):
    words = ["--data", str(table), *COLUMNS, "--fill", "median", "--new-clients", "0.25", "--algorithm", "fedavg"]
    training, new = make_parts(read_job(words))
    expected = np.nanmedian(numbers_of("age")[rows_of(training.train)])
    of_everyone = np.nanmedian(numbers_of("age")[np.union1d(rows_of(training.train), rows_of(new.train))])
    assert abs(expected - of_everyone) > 1
    for federation in (training, new):
        column = np.asarray(federation.train.pool.x)[np.isnan(numbers_of("age")), 0]
        np.testing.assert_allclose(column, expected, rtol=1e-6)


def test_clients_that_are_not_chosen_do_not_count(table):
    words = ["--data", str(table), *COLUMNS, "--fill", "median", "--partition.n-clients", "2", "--algorithm", "fedavg"]
    job = read_job(words)
    federation, _ = make_parts(job)
    rows = rows_of(federation.train)
    of_everyone = np.nanmedian(numbers_of("age")[rows_of(filled(table, "median").federation().train)])
    expected = np.nanmedian(numbers_of("age")[rows])
    assert abs(expected - of_everyone) > 1
    column = np.asarray(federation.train.pool.x)[np.isnan(numbers_of("age")), 0]
    np.testing.assert_allclose(column, expected, rtol=1e-6)
    np.testing.assert_allclose(read_data(job).fills(federation)[0], expected, rtol=1e-6)  # as fljax predict has it


def test_a_column_without_any_value_in_training_is_zero():
    x, y = np.array([[1.0, np.nan], [2.0, np.nan], [4.0, 9.0], [5.0, np.nan]], np.float32), np.array([0, 1, 0, 1])
    data = fljax.own_data(np.nan_to_num(x), y, np.zeros(4, int), part=["train", "train", "test", "test"])
    data = data._replace(empty=np.isnan(x), fill="mean")
    assert data.fills(data.federation()).tolist() == [1.5, 0.0]


def test_clients_of_fewer_examples_add_none_of_others():
    x, y = np.array([[90.0], [1.0], [2.0], [np.nan], [6.0]], np.float32), np.array([0, 1, 0, 1, 0])
    data = fljax.own_data(np.nan_to_num(x), y, [0, 0, 0, 1, 1], part=["test", "train", "train", "test", "train"])
    assert data._replace(empty=np.isnan(x), fill="mean").fills(data.federation()).tolist() == [3.0]


def test_an_example_of_two_clients_counts_once():
    x = np.array([[1.0], [2.0], [6.0], [0.0]], np.float32)
    train_rows, test_rows = ([0, 1], [1, 2]), ([3], [3])
    federation = fljax.build(fljax.Examples(x, np.zeros(4, int)), train_rows, (1.0, 0.0, 0.0), test_owned=test_rows)
    assert fills(federation, x == 0, "mean").tolist() == [3.0]


@pytest.mark.parametrize("cell", ["tall", "inf", "1e99"])
def test_what_is_no_number_is_not_taken_for_empty(tmp_path, cell):
    rows = rows_with_gaps()
    rows[7]["age"] = cell
    write(tmp_path / "d.csv", rows)
    with pytest.raises(ValueError, match=f"line 9 .*, column 'age' is '?{cell}'?, not a finite number"):
        filled(tmp_path / "d.csv", "median")


@pytest.mark.parametrize("cell", EMPTY_NUMBERS)
def test_what_other_programs_write_for_empty_cells_is_filled_too(table, tmp_path, cell):
    rows = [row | {"age": row["age"] or cell} for row in rows_with_gaps()]
    write(tmp_path / "d.csv", rows)
    data, expected = filled(tmp_path / "d.csv", "median"), filled(table, "median")
    np.testing.assert_array_equal(data.empty, expected.empty)
    np.testing.assert_array_equal(data.examples.x, expected.examples.x)
    with pytest.raises(ValueError, match=f"column 'age' is '{cell}' .26 more.*correct it, fill it .--fill median"):
        filled(tmp_path / "d.csv", None)


@pytest.mark.parametrize("options", [*slow(()), ("--attack", "label_flip", "--attack.ids", "1")])
def test_new_examples_are_filled_as_the_runs_own(table, tmp_path, options):
    """Where attackers add poisoned examples to the pool, too."""
    arguments = ["--data", str(table), *COLUMNS, "--fill", "median", *FEW, "--algorithm", "fedavg", *options]
    assert main(["run", *arguments, "--folder", str(tmp_path / "r")]) == 0
    expected = predicted(tmp_path / "r")
    write(tmp_path / "n.csv", [rows_with_gaps()[i] for i in sorted(expected["example"])])
    predictions = predicted_of_new(tmp_path / "r", tmp_path / "n.csv")
    np.testing.assert_allclose(predictions["p_y"], expected["p_y"][np.argsort(expected["example"])], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "line 2 (client 'a'), column 'age' is empty (26 more in this column); correct it, fill it (--fill median"),
        ((), "leave the row or the column out; also column 'dose' at line 2 (client 'a') and 15 more\n"),
        (("--fill", "mode"), "fill='mode' is unknown; choose one of 'median', 'mean', None"),
    ],
)
def test_what_is_empty_is_told_of_all_columns_at_once(table, options, message, capsys):
    assert main(["run", "--data", str(table), *COLUMNS, "--algorithm", "fedavg", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_cells_are_filled_where_a_table_names_its_clients(table, tmp_path, capsys):
    write(tmp_path / "d.csv", [{name: row[name] for name in row if name != "who"} for row in rows_with_gaps()])
    arguments = ["--data", str(tmp_path / "d.csv"), *COLUMNS[2:], "--fill", "mean", "--partition", "iid"]
    assert main(["run", *arguments, "--partition.n-clients", "4", "--algorithm", "fedavg"]) == 2
    assert "empty cells are only filled if the data names its clients; fill them before" in capsys.readouterr().err
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1], client=[0, 0, 1, 1])
    assert main(["run", "--data", str(tmp_path / "d.npz"), "--fill", "mean", "--algorithm", "fedavg"]) == 2
    assert "d.npz: only cells of a table can be filled; fill those of arrays before" in capsys.readouterr().err
    train, test = filled(table, "median")._replace(empty=np.zeros((80, 4), bool)).halves(0.25)  # nothing to fill
    assert (len(train.y), len(test.y)) == (60, 20)
    with pytest.raises(ValueError, match="fill='mode' is unknown; choose 'median' or 'mean', or None"):
        filled(table, "mode")
