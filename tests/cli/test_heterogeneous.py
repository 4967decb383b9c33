"""`fljax run` with clients of different networks: resumed, loaded, asked for predictions, met by new clients."""

import csv

import numpy as np
import pytest

import fljax
from fljax import tree
from fljax.cli import main
from fljax.models.own_network import FLAGS

WORDS = ("--model", "heterogeneous", "--networks", "logistic_regression", "mlp", "--n-features", "8")


@pytest.mark.slow
def test_a_run_is_resumed_loaded_and_asked(tmp_path, capsys):
    words = ["run", "--algorithm", "fedproto", "fml", *WORDS, "--new-clients", "0.2", "--epochs", "1", "--lr", "0.1"]
    assert main([*words, "--rounds", "1", "--folder", str(tmp_path / "two")]) == 0
    assert main(["run", "--folder", str(tmp_path / "two"), "--rounds", "2"]) == 0
    assert main([*words, "--rounds", "2", "--folder", str(tmp_path / "one")]) == 0
    assert "parameters in 2 networks" in capsys.readouterr().out
    for name in ("fedproto", "fml"):
        resumed, whole = (fljax.load_run(tmp_path / folder)[name] for folder in ("two", "one"))
        for i in range(3):
            one = resumed.client_model(i)
            for path, leaf in tree.named_leaves(whole.client_model(i)).items():
                np.testing.assert_array_equal(tree.named_leaves(one)[path], leaf)
            flags = {network: float(flag) for network, flag in one[tree.STATISTICS][FLAGS].items()}
            assert flags == {"logistic_regression": float(i % 2 == 0), "mlp": float(i % 2 == 1)}
    assert main(["predict", str(tmp_path / "one"), "--method", "fedproto"]) == 0
    [path] = (tmp_path / "one").glob("predictions_test*.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    is_right = np.array([row["label"] == row["predicted"] for row in rows])
    last = fljax.load_run(tmp_path / "one")["fedproto"].metrics["accuracy_micro"][-1]
    assert is_right.mean() == pytest.approx(float(last), abs=1e-6)
