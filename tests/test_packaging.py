"""What importing needs, what the contributors' guide says, and what a citation has."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
import pytest

import fljax
from fljax.catalogue.own import find
from fljax.data.readers.foreign import installed
from fljax.data.synthetic import linear_groups
from fljax.run.one_round import split_key
from tests.test_docs import names_of_fljax

ROOT = Path(fljax.__file__).parents[1]
IMPORTS = """
import sys

refused = []

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow_datasets", "tensorflow", "array_record", "matplotlib", "pandas"):
            refused.append(name)
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import fljax
fljax.server.weighted_mean
platform, sys.platform = sys.platform, "win32"
try:
    fljax.simulate
except ImportError as error:
    print(error)
sys.platform = platform
for name in sys.argv[1:]:
    eval(name)
import fljax.server, fljax.client, fljax.rounds, fljax.algorithms, fljax.models, fljax.data.datasets
import fljax.run.simulate, fljax.run.train, fljax.results.load, fljax.data.own.files
assert not {"tensorflow_datasets", "tensorflow"} & {*refused}, refused  # not even where it could do without
print(fljax.__version__)
"""


def test_nothing_but_the_numbers_is_needed_to_import_and_nothing_but_fljax_for_what_pages_name():
    """In a process that has imported nothing else, as a reader's. On Windows primitives need no run."""
    names = names_of_fljax()
    assert "fljax.rounds.clock" in names
    process = subprocess.run([sys.executable, "-c", IMPORTS, *names], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    on_windows, version = process.stdout.splitlines()
    assert on_windows.startswith("fljax runs on Linux and macOS; on Windows")
    assert version == fljax.__version__ == metadata.version("fljax")


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ValueError, match=r"needs tensorflow_datasets: pip install 'fljax\[datasets\]'"):
        installed("tensorflow_datasets", tmp_path)


def test_extras_are_those_that_messages_name():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names_in_messages = {
        name
        for path in (ROOT / "fljax").rglob("*.py")
        for names in re.findall(r"fljax\[(\w+)\]", path.read_text())
        for name in names.split(",")
    }
    assert {"datasets", "export"} <= names_in_messages <= set(extras)


def test_the_method_of_the_contributors_guide_is_one(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (tmp_path / "fedhalf.py").write_text(code)
    method = find("algorithm", f"{tmp_path / 'fedhalf.py'}:fedhalf")
    assert method.title == "FedHalf"
    assert method.summary == "FedAvg whose server goes half of the way to the clients' mean"
    algorithm = method(fljax.MODELS["logistic_regression"]((2, 2, 1), 2), fljax.Work(1, 8))
    assert algorithm.about.name == "fedhalf"
    federation, key = linear_groups(3, 1, side=2, n_classes=2, examples=12), jax.random.key(0)
    half, full = (
        jax.device_get(fljax.simulate(candidate, fljax.fedavg.Hyper(lr=0.5), federation, key, 1)[0].server)
        for candidate in (algorithm, fljax.fedavg(fljax.MODELS["logistic_regression"]((2, 2, 1), 2), fljax.Work(1, 8)))
    )
    start = jax.device_get(fljax.MODELS["logistic_regression"]((2, 2, 1), 2).init(split_key(key).init))
    np.testing.assert_allclose(half["fc1"]["kernel"], (start["fc1"]["kernel"] + full["fc1"]["kernel"]) / 2, rtol=1e-5)


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"version: {tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}\n" in text
    assert "license: Apache-2.0" in text
