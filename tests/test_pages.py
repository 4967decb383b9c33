"""Blocks of the documentation that go everywhere: compositions, the search, the script for several hosts; tables."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fljax
from fljax.cli import main
from fljax.data.datasets import NAMES
from tests.cli.conftest import leave_figures_empty
from tests.devices.test_hosts import free_port

pytestmark = pytest.mark.usefixtures("one_device")

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str) -> list[str]:
    """The blocks of Python of a page."""
    return re.findall(r"```python\n(.*?)```", DOCS.joinpath(f"{page}.md").read_text(), re.DOTALL)


BEGIN, *COMPOSITIONS = blocks("compositions")
(SWEEP,) = (block for block in blocks("sweeps") if "halving" in block)
(HOSTS,) = (block for block in blocks("devices") if "join_hosts" in block)


def smaller(code: str, *changes: tuple[str, str]) -> str:
    """A block of Python with tiny numbers, or others that only this machine has, in place of its own."""
    for old, new in changes:
        assert code.count(old) == 1
        code = code.replace(old, new)
    return code


@pytest.mark.slow
def test_the_sweep_in_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    changes = (("n_seeds=3", "n_seeds=1"), ("n_rounds=50", "n_rounds=2"), ("log_spaced(1e-3, 1, 4)", "(0, 1)"))
    exec(smaller(SWEEP, *changes), {})
    assert re.match(r"Spread\(point={'lr': .*, 'mu': .*}, mean=0\.\d+", capsys.readouterr().out)
    assert Path("results/x/parts/search.json").exists()


IMPORTS = BEGIN.partition("\n\n")[0] + "\n"
TINY = "--rounds 2 --dataset digits --partition iid --partition.n-clients 4 --model mlp --hidden 4 --epochs 1"


RUN_ELSEWHERE = (
    "fedper+prox",
    "ifca+trimmed_mean",
    "fedavg+krum",
    "--augment",
    "./mine.py:by_data",
    "./mine.py:brighter",
)
"""Compositions that other tests run too: slow here, where each has six programs."""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=code.split()[4], marks=[pytest.mark.slow] * any(word in code for word in RUN_ELSEWHERE))
        for code in COMPOSITIONS
    ],
)
def test_a_composition_of_at_most_six_lines_goes_everywhere(code, tmp_path, monkeypatch):
    """Through simulate, a sweep, train with resume, and the command line, which all find the same."""
    assert 2 <= len([line for line in code.splitlines() if line.strip()]) - 1 <= 6
    names = {}
    exec(BEGIN + code, names)
    federation, key = names["federation"], names["key"]
    method, _, name = code.split()[4].rpartition("./mine.py:")
    own = fljax.compose(method.removesuffix("+"), names[name]) if method.endswith("+") else names.get(name)
    algorithm = names.get("algorithm") or own(names["model"], names["work"])
    hyper, options = names.get("hyper", fljax.LocalHyper()), {"sampling": names.get("sampling")}
    _, expected = fljax.simulate(algorithm, hyper, federation, key, 2, **options)
    assert np.isfinite(expected["client_loss"]).all()
    rates = hyper.replace(lr=np.float32([0.05, 0.1]))
    sweep_metrics = fljax.sweep(algorithm, rates, federation, key, 1, 2, **options)
    _, metrics = fljax.simulate(algorithm, hyper.replace(lr=0.1), federation, jax.random.fold_in(key, 0), 2, **options)
    np.testing.assert_allclose(sweep_metrics["client_loss"][1, 0], metrics["client_loss"], rtol=1e-4)
    fljax.train(algorithm, hyper, federation, key, 1, folder=tmp_path / "run", **options)
    resumed = fljax.train(algorithm, hyper, federation, key, 2, folder=tmp_path / "run", **options)
    np.testing.assert_allclose(resumed.metrics["client_loss"], expected["client_loss"], rtol=1e-5)
    monkeypatch.chdir(tmp_path)
    leave_figures_empty(monkeypatch)
    Path("mine.py").write_text(IMPORTS + code)
    command = code.partition("\n")[0].partition("  ")[0].removeprefix("# fljax ").split()
    assert main([*command, *TINY.split(), "--folder", "out"]) == 0
    assert main(["run", "--folder", "out", "--rounds", "3"]) == 0  # goes on with it, whoever wrote the method
    (results,) = Path("out").glob("*/metrics.jsonl")
    assert len(results.read_text().splitlines()) == 3


SETUP = """
import fljax
federation = fljax.PARTITIONS["iid"](*fljax.load("digits"), n_clients=4)
algorithm = fljax.fedavg(fljax.MODELS["mlp"]((8, 8, 1), (8,), 10), fljax.Work(1, 32))
hyper = fljax.fedavg.Hyper()
"""


@pytest.mark.slow
def test_the_script_for_several_hosts_runs_on_two(tmp_path):
    code = smaller(
        HOSTS,
        ("10.0.0.1:12345", f"localhost:{free_port()}"),
        ("algorithm, hyper, federation = ...  # the same on every host\n", SETUP),
        ("100, folder", "2, folder"),
        ("a folder that all hosts see", str(tmp_path)),
    )
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    pipe = subprocess.PIPE
    hosts = [
        subprocess.Popen([sys.executable, "-c", code, host], cwd=DOCS.parent, env=environment, stderr=pipe, text=True)
        for host in ("0", "1")
    ]
    errors = [process.communicate()[1] for process in hosts]
    assert [process.returncode for process in hosts] == [0, 0], errors[0][-3000:]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_data_sets_are_named():
    text = DOCS.joinpath("own_data.md").read_text()
    assert {name for name in NAMES if f"`{name}`" not in text} == set()


def test_pfllibs_files_are_read(tmp_path):
    """In the form in which its dataset/utils/dataset_utils.py saves them: a pickled dict an .npz, channels first."""
    (code,) = (block for block in blocks("coming_from") if "def from_pfllib" in block)
    rng, written = np.random.default_rng(0), {}
    for name_of_split, n in (("train", 6), ("test", 3)):
        (tmp_path / name_of_split).mkdir()
        for client in range(11):
            x = rng.normal(size=(n + client, 2, 4, 5)).astype(np.float32)
            written[name_of_split, client] = {"x": x, "y": np.arange(n + client, dtype=np.int64) % 3}
            np.savez_compressed(tmp_path / name_of_split / f"{client}.npz", data=written[name_of_split, client])
    (tmp_path / "config.json").write_text("{}")
    names = {"np": np, "fljax": fljax}
    exec(code, names)
    federation = jax.device_get(names["from_pfllib"](tmp_path))
    for (name_of_split, client), expected in written.items():
        split = getattr(federation, name_of_split)
        rows = split.index[client, : split.size[client]]
        np.testing.assert_array_equal(split.pool.x[rows], expected["x"].transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(split.pool.y[rows], expected["y"])


def test_fl_benchs_clients_are_read(tmp_path):
    """In the form in which its generate_data.py saves them: rows among all images for each client and part."""
    (code,) = (block for block in blocks("coming_from") if "def from_fl_bench" in block)
    rng = np.random.default_rng(0)
    x, y, rows = rng.normal(size=(40, 4, 5, 1)).astype(np.float32), rng.integers(0, 3, 40), rng.permutation(40)
    clients = [
        {"train": rows[:9], "val": rows[9:11], "test": rows[11:15]},
        {"train": rows[15:28], "val": rows[28:30], "test": rows[30:40]},
    ]
    file = tmp_path / "partition.pkl"
    file.write_bytes(pickle.dumps({"data_indices": clients, "separation": {"train": [0, 1], "total": 2}}))
    names = {"np": np, "fljax": fljax, "Path": Path}
    exec(code, names)
    federation = jax.device_get(names["from_fl_bench"](file, x, y))
    for client, parts in enumerate(clients):
        for part, expected in parts.items():
            split = getattr(federation, part)
            held = split.index[client, : split.size[client]]
            np.testing.assert_array_equal(np.sort(split.pool.x[held], axis=0), np.sort(x[expected], axis=0))
            np.testing.assert_array_equal(np.sort(split.pool.y[held]), np.sort(y[expected]))
