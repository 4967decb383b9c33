"""The commands around `run`: help, list, data, and starting fast."""

import subprocess
import sys
from pathlib import Path

import pytest

from fljax.algorithms import ALGORITHMS
from fljax.data.datasets import available
from fljax.data.partition import PARTITIONS
from fljax.models import MODELS


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_usage(fljax, arguments):
    status, out, err = fljax(*arguments)
    assert (status, err) == (0, "")
    assert out.startswith("usage: fljax COMMAND")


def test_help_starts_no_jax():
    code = "import sys, fljax.cli; fljax.cli.main(['--help']); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_module_is_the_command():
    command = [sys.executable, "-m", "fljax", "lst"]
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    assert finished.returncode == 2
    assert finished.stderr == "fljax: no command 'lst'; the nearest is 'list'\n"
    assert finished.stdout == ""


def test_list_has_everything(fljax):
    status, out, _ = fljax("list")
    assert status == 0
    for name in (*ALGORITHMS, *PARTITIONS, *MODELS, *(name for name, _ in available())):
        assert f"\n{name} " in out
    assert "mu=0.1" in out
    assert "flatten - [hidden - ReLU]*" in out


def test_list_one_kind_or_one_thing(fljax, refused):
    assert "ifca" not in fljax("list", "partitions")[1]
    assert "--ifca.min-share" in fljax("list", "ifca")[1]
    assert "--partition.beta" in fljax("list", "dirichlet")[1]
    assert "--model.hidden" in fljax("list", "mlp")[1]
    assert fljax("list", "--help")[1].startswith("usage: fljax list")
    assert fljax("list", "--markdown")[1].startswith("| `--algorithm` |")
    assert "the nearest is 'fesem'" in refused("list", "fesm")


def test_data_list(fljax, refused):
    assert fljax("data")[1] == fljax("data", "list")[1]
    assert "inside scikit-learn" in fljax("data", "list")[1]
    assert fljax("data", "--help")[1].startswith("usage: fljax data")
    assert "takes no settings" in refused("data", "list", "digits")


def test_data_show_draws(fljax):
    status, out, _ = fljax(
        "data", "show", "--partition", "dirichlet", "--beta", "0.3", "--n-clients", "5", "--file", "p.png"
    )
    assert status == 0
    assert out.startswith("5 clients, ")
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert "--partition.n-groups" in fljax("data", "show", "--help")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shw",), "the nearest is 'show'"),
        (("show", "--lr", "1"), "no setting --lr"),
        (("show", "--partition", "iidd"), "the nearest is 'iid'"),
        (("show", "--n-clients", "0"), "n_clients=0"),
        (("prepare",), "say which data set"),
        (("prepare", "digits"), "cannot be prepared"),
        (("prepare", "mnis"), "'mnist'"),
        (("prepare", "mnist", "--to", "x"), "takes --folder only"),
    ],
)
def test_data_refuses_in_one_line(refused, arguments, message):
    assert message in refused("data", *arguments)


def test_preparing_asks_for_tensorflow(refused, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'fljax[prepare]'" in refused("data", "prepare", "mnist", "--folder", "x")
