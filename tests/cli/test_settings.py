"""From words to values: short names, the nearest name, types."""

from typing import Literal

import pytest
from fljax.cli.parameters import REQUIRED, Parameter

from fljax.cli.settings import parse, resolve, typed, words_of_arguments, words_of_toml

LR = Parameter(float, 0.1, "")
SCHEMA = {
    "": {"rounds": Parameter(int, 3, ""), "dropout": Parameter(float | None, None, "")},
    "partition": {"n_clients": Parameter(int, REQUIRED, ""), "alpha": LR},
    "model": {"hidden": Parameter(tuple[int, ...], (200,), ""), "dropout": LR},
    "fedavg": {"lr": LR},
    "ifca": {"lr": LR, "alpha": LR, "public": Parameter(bool, True, "")},
}


def test_arguments_by_name():
    words = words_of_arguments(["--model.hidden", "64", "-1", "--ifca.n-clusters=4", "--public"])
    assert words == {"model.hidden": ["64", "-1"], "ifca.n_clusters": ["4"], "public": []}


def test_toml_by_name():
    table = {"rounds": 3, "partition": {"name": "iid", "public": True}, "model": {"hidden": [64, 32]}}
    assert words_of_toml(table) == {
        "rounds": ["3"],
        "partition": ["iid"],
        "partition.public": ["True"],
        "model.hidden": ["64", "32"],
    }


def test_a_short_name_sets_every_method_and_a_full_one_wins():
    words = resolve({"ifca.lr": ["2"], "lr": ["1"]}, SCHEMA)
    assert words == {"fedavg.lr": ["1"], "ifca.lr": ["2"]}
    assert resolve({"n_clients": ["5"]}, SCHEMA) == {"partition.n_clients": ["5"]}
    assert resolve({"dropout": ["0.5"]}, SCHEMA) == {"dropout": ["0.5"]}  # the run's own name is a full one


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("round", "no setting --round; the nearest is --rounds"),
        ("model.hiden", "no setting --model.hiden; the nearest is --model.hidden"),
        ("n_client", "no setting --n-client; the nearest is --n-clients"),
        ("alpha", "--alpha could be --partition.alpha or --ifca.alpha"),
    ],
)
def test_unknown_and_ambiguous_names(name, message):
    with pytest.raises(ValueError, match=message):
        resolve({name: ["1"]}, SCHEMA)


@pytest.mark.parametrize(
    ("kind", "words", "value"),
    [
        (int, ["-4"], -4),
        (float, ["1e-3"], 1e-3),
        (float | None, ["None"], None),
        (bool, ["true"], True),
        (bool, [], True),
        (bool, ["False"], False),
        (tuple[int, ...], [], ()),
        (tuple[float, float], ["0", "0.5"], (0.0, 0.5)),
        (Literal["low", "high"], ["high"], "high"),
        (str, ["MiXed"], "MiXed"),
    ],
)
def test_values_have_their_type(kind, words, value):
    parsed = typed("x", words, kind)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (int, ["3.5"], "--n-x 3.5: give int"),
        (int, ["1", "2"], "--n-x 1 2: give int"),
        (int, [], "--n-x: give int"),
        (float, ["abc"], "--n-x abc: give float"),
        (bool, ["maybe"], "--n-x Maybe: give bool"),
        (Literal["low", "high"], ["hi"], "--n-x hi: give 'low' | 'high'"),
    ],
)
def test_other_types_are_refused(kind, words, message, capfd):
    with pytest.raises(ValueError, match="give") as error:
        typed("n_x", words, kind)
    assert str(error.value) == message
    assert capfd.readouterr() == ("", "")


def test_values_default_unless_required():
    values = parse({"partition.n_clients": ["7"]}, SCHEMA)
    assert values["partition"] == {"n_clients": 7, "alpha": 0.1}
    assert values["model"]["hidden"] == (200,)
    with pytest.raises(ValueError, match=r"--partition\.n-clients is not set; give int"):
        parse({}, SCHEMA)
