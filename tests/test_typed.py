"""What a user's type checker sees: Pyrefly and Pyright check this file, and it runs too."""

import json
import subprocess
import sys
from pathlib import Path
from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import fljax
from fljax import Algorithm, Examples, LocalHyper, Model, Work, server
from fljax.algorithms.fedprox import FedProxHyper
from fljax.rounds.bricks import BRICKS


def test_examples_take_arrays_of_numpy_and_hold_arrays():
    examples = fljax.Examples(np.zeros((2, 3), np.float32), np.zeros(2, np.int32))
    assert_type(examples.x, Array)
    x, y = examples
    assert_type(y, Array)
    assert (x.shape, repr(examples)) == ((2, 3), "Examples(x=float32[2,3], y=int32[2])")


def test_data_sets_without_users_are_examples():
    train, test = assert_type(fljax.load("digits"), tuple[Examples, Examples])
    assert type(train) is type(test) is Examples


def test_primitives_take_arrays_of_numpy_and_keep_their_signatures():
    def traced(label: Array, value: Array) -> None:
        assert_type(server.adjusted_rand(label, label), Array)
        assert_type(server.kmeans(jax.random.key(0), value, 2).label, Array)
        assert_type(server.linkage(value, "average"), Array)

    label, value = jnp.zeros(3, int), jnp.zeros((3, 3))
    jax.eval_shape(traced, label, value)  # compiles nothing
    with pytest.raises(
        TypeError, match=r"^cluster_mean\(stacked, weight, label, empty\): multiple values for .*'empty'"
    ):
        server.cluster_mean(value, label, label, value, empty=value)  # type: ignore
    assert_type(server.due_layers(np.int32(4), np.ones((1, 2), np.int32)), Array)
    tree = np.array([[0, 1, 1.0, 2]])
    assert_type(server.threshold(np.int32(1), np.float32(0.5)), Array)
    with pytest.raises(ValueError, match="label has shape"):  # which tells before anything is compiled
        server.next_split(tree, np.zeros(3, np.int32), np.int32(0), np.float32(0.5))
    with pytest.raises(ValueError, match="labelling is of type list, not an array"):
        server.adjusted_rand([0, 1], np.zeros(2, int))  # type: ignore


def test_methods_know_their_static_choices_and_their_hyperparameters():
    model, work = fljax.MODELS["logistic_regression"]((2, 2, 1), n_classes=2), fljax.Work(1, 8)
    assert_type(fljax.ifca(model, work, n_clusters=4), Algorithm)
    assert_type(fljax.ifca(model=model, work=work), Algorithm)
    assert_type(fljax.fedprox.Hyper(mu=0.5, lr=0.1), FedProxHyper)
    assert_type(fljax.fedprox.Hyper(lr=0.1).replace(mu=np.float32(0.5)), FedProxHyper)
    fljax.fedprox.Hyper(mu=np.float32(0.5))  # type: ignore - runs; what is read is a float or JAX's
    assert_type(fljax.compose("fedavg+krum")(model, work), Algorithm)
    assert_type((fljax.fedavg + BRICKS["krum"])(model, work, weighting="uniform"), Algorithm)
    with pytest.raises(ValueError, match="ifca has no static choice 'n_cluster'"):
        fljax.ifca(model, work, n_cluster=4)  # type: ignore
    with pytest.raises(ValueError, match="weighting='siz' is unknown"):
        fljax.fedprox(model, work, weighting="siz")  # type: ignore
    with pytest.raises(ValueError, match="n_clusters='4' is not a whole number"):
        (fljax.ifca + BRICKS["prox"])(model, work, n_clusters="4")  # type: ignore
    with pytest.raises(ValueError, match="muh"):
        fljax.fedprox.Hyper(muh=0.5)  # type: ignore
    with pytest.raises(TypeError, match=r"^fedavg\(model, work, .*\): missing a required argument: 'work'"):
        fljax.fedavg(model)  # type: ignore


def test_methods_of_ones_own_know_them_too():
    @fljax.method
    def plain(model: Model, work: Work, n_parts: int = 2) -> Algorithm:
        """Plain: FedAvg."""
        return fljax.fedavg(model, work)

    @fljax.method(kind="personalised")
    def personal(model: Model, work: Work) -> Algorithm:
        """Personal: FedAvg."""
        return fljax.fedavg(model, work)

    @fljax.method(FedProxHyper, "nobody, never")
    def proximal(model: Model, work: Work) -> Algorithm:
        """Proximal: FedAvg."""
        return fljax.fedavg(model, work)

    assert_type(plain.Hyper(lr=0.1), LocalHyper)
    assert_type(personal.Hyper(lr=0.1), LocalHyper)
    assert_type(proximal.Hyper(mu=0.1), FedProxHyper)
    with pytest.raises(ValueError, match="plain has no static choice 'parts'"):
        plain(None, Work(1, 8), parts=3)  # type: ignore


def test_methods_are_listed_for_type_checkers_by_name():
    stub = Path(fljax.__file__).with_suffix(".pyi").read_text()
    lines = [f"from .algorithms.{name} import {name} as {name}" for name in fljax.ALGORITHMS]
    assert [line for line in stub.splitlines() if line.startswith("from .algorithms.")] == lines


@pytest.mark.slow
def test_pyright_sees_the_same(tmp_path):
    pytest.importorskip("basedpyright")
    where = {"include": [__file__], "extraPaths": [str(Path(fljax.__file__).parents[1])]}
    rules = {"typeCheckingMode": "standard", "reportUnnecessaryTypeIgnoreComment": True}
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(where | rules))
    command = [sys.executable, "-m", "basedpyright", "-p", str(config), "--pythonpath", sys.executable]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout
    assert "0 errors" in process.stdout
