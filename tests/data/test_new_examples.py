"""New examples come to a trained network as those of its run did."""

import gzip
import shutil

import numpy as np
import pytest

from fljax.data.own.new_examples import Known, read_new
from fljax.data.own.tables import Columns, from_frame


class Frame(dict):
    """A table of columns, as pandas and polars have it."""

    @property
    def columns(self):
        return list(self)


def known_of(columns, data):
    x = np.asarray(data.examples.x)
    return Known(columns, x.shape[1:], x.dtype, data.inputs, data.words)


def test_categories_whose_names_begin_alike(tmp_path):
    """`a` with the word `b=u` and `a=b` with the word `v`: what they become begins with `a=b=`, whichever it is of."""
    columns = Columns(("y",), categories=("a", "a=b"))
    data = from_frame(Frame({"a": ["w", "x", "w"], "a=b": ["u", "v", "v"], "n": [1, 2, 3], "y": [0, 1, 0]}), columns)
    assert data.inputs == ("a=w", "a=x", "a=b=u", "a=b=v", "n")
    (tmp_path / "n.csv").write_text("n,a=b,a\n1,u,w\n2,v,x\n3,v,w\n")
    assert (read_new(tmp_path / "n.csv", known_of(columns, data)).x == np.asarray(data.examples.x)).all()


def test_labels_are_taken_where_all_are_there(tmp_path):
    columns = Columns(("old", "young"), client="who")
    data = from_frame(Frame({"who": [1, 2], "n": [1, 2], "old": [1, 0], "young": [0, 0]}), columns)
    (tmp_path / "n.csv").write_text("n,old\n1.5,0\n")
    new = read_new(tmp_path / "n.csv", known_of(columns, data))
    assert (new.x.tolist(), new.client, new.label) == ([[1.5]], None, ())
    (tmp_path / "n.csv").write_text("young,n,who,old\n1,1.5,2,0\n")
    new = read_new(tmp_path / "n.csv", known_of(columns, data))
    assert (new.client.tolist(), [label.tolist() for label in new.label]) == (["2"], [["0"], ["1"]])
    (tmp_path / "N.CSV.gz").write_bytes(gzip.compress((tmp_path / "n.csv").read_bytes()))
    assert read_new(tmp_path / "N.CSV.gz", known_of(columns, data)).x.tolist() == new.x.tolist()


def test_a_column_of_arrays_beside_an_index_without_a_name_and_an_ignored_one(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    columns = Columns(("y",), ignored=("day",))
    frame = pandas.DataFrame(
        {
            "": [7, 8, 9],
            "day": ["mon", "tue", "wed"],
            "image": [[row.tolist() for row in image] for image in images],
            "y": [0, 1, 0],
        }
    )
    data = from_frame(frame, columns)
    assert data.inputs == ()
    frame.drop(columns="y").to_parquet(tmp_path / "n.parquet")
    assert (read_new(tmp_path / "n.parquet", known_of(columns, data)).x == images).all()
    assert (np.asarray(data.examples.x) == images).all()


def test_arrays_of_other_names_without_labels_and_parts(tmp_path):
    columns = Columns(("target",), "who", "set", ("pixels",))
    np.savez(tmp_path / "n.npz", pixels=np.ones((2, 3)), who=np.array(["b", "a"]))
    new = read_new(tmp_path / "n.npz", Known(columns, (3,), np.float32))
    assert (new.x.dtype, new.client.tolist()) == (np.float32, ["b", "a"])
    for pixels, who, message in (
        ([[1.0, np.inf, 0]], ["b"], "example 0 is not finite"),
        ([[1.0, 1e39, 0]], ["b"], "example 0 is not finite"),
        ([[1.0, 2.0, 0]], [np.nan], "client id of example 0 is missing"),
        (np.ones((0, 3)), [], "has no examples; give some"),
    ):
        np.savez(tmp_path / "n.npz", pixels=pixels, who=who)
        with pytest.raises(ValueError, match=rf"n\.npz: {message}"):
            read_new(tmp_path / "n.npz", Known(columns, (3,), np.float32))


def test_tokens_and_numbers_are_not_taken_for_each_other(tmp_path):
    np.savez(tmp_path / "n.npz", x=np.ones((2, 3), np.uint8))
    for dtype in (np.float32, np.int32):
        with pytest.raises(ValueError, match=f"examples are uint8; give the run's type, {np.dtype(dtype)}"):
            read_new(tmp_path / "n.npz", Known(Columns(()), (3,), dtype))
    np.savez(tmp_path / "n.npz", x=np.ones((2, 3), np.int64))
    assert read_new(tmp_path / "n.npz", Known(Columns(()), (3,), np.int32)).x.dtype == np.int32
    assert read_new(tmp_path / "n.npz", Known(Columns(()), (3,), np.float32)).x.dtype == np.float32
    np.savez(tmp_path / "n.npz", x=np.array([[0, 1, 2**32 + 2]]))  # its lower 32 bits are the token 2
    with pytest.raises(ValueError, match=r"n\.npz: examples go from 0 to 4294967298; give tokens that int32 holds"):
        read_new(tmp_path / "n.npz", Known(Columns(()), (3,), np.int32))


def test_several_labels_of_an_archive_are_columns_of_their_own(tmp_path):
    np.savez(tmp_path / "n.npz", x=np.ones((3, 2)), y=np.array([[0, 1], [1, 1], [0, 0]]))
    new = read_new(tmp_path / "n.npz", Known(Columns(()), (2,), np.float32), labelled=True)
    assert [label.tolist() for label in new.label] == [["0", "1", "0"], ["1", "1", "0"]]


def test_empty_cells_are_filled_as_those_of_the_run_or_refused(tmp_path):
    (tmp_path / "n.csv").write_text("b,a\n,1\n2,\n")
    given = Known(Columns(("y",)), (2,), np.float32, ("a", "b"))
    filled = read_new(tmp_path / "n.csv", given._replace(fills=np.float32([7, 9])))
    np.testing.assert_array_equal(filled.x, [[1, 9], [7, 2]])
    with pytest.raises(
        ValueError, match="line 3, column 'a' is empty; correct it, or leave the row out; also column 'b'"
    ):
        read_new(tmp_path / "n.csv", given)


def test_images_beside_folders_of_images_are_nobodys(tmp_path):
    from PIL import Image

    (tmp_path / "n" / "c0").mkdir(parents=True)
    (tmp_path / "n" / ".hidden").mkdir()
    for name in ("c0/a.png", "b.png", ".hidden/c.png"):
        Image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "n" / name)
    known = Known(Columns(()), (2, 2, 1), np.uint8)
    with pytest.raises(ValueError, match="it has images on several levels of folders"):
        read_new(tmp_path / "n", known)
    (tmp_path / "n" / "b.png").rename(tmp_path / "b.png")
    new_examples = read_new(tmp_path / "n", known)
    assert (new_examples.names.tolist(), new_examples.client.tolist(), new_examples.label) == (["c0/a.png"], ["c0"], ())
    (tmp_path / "n" / "c0" / "a.png").unlink()
    (tmp_path / "b.png").rename(tmp_path / "n" / "b.png")
    new_examples = read_new(tmp_path / "n", known)
    assert (new_examples.names.tolist(), new_examples.client, new_examples.label) == (["b.png"], None, ())
    (tmp_path / "n" / "b.png").unlink()
    for name in ("c1/cat", "c0/dog"):  # as a run's own images stand
        (tmp_path / "n" / name).mkdir(parents=True)
        Image.fromarray(np.full((2, 2), len(name), np.uint8)).save(tmp_path / "n" / name / "a.png")
    new = read_new(tmp_path / "n", known)
    assert new.names.tolist() == ["c0/dog/a.png", "c1/cat/a.png"]
    assert (new.client.tolist(), [names.tolist() for names in new.label]) == (["c0", "c1"], [["dog", "cat"]])
    shutil.rmtree(tmp_path / "n" / "c0")
    shutil.rmtree(tmp_path / "n" / "c1")
    with pytest.raises(ValueError, match="n: no images"):
        read_new(tmp_path / "n", known)
