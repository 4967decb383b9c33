"""A user's own methods, networks and partitions: in a file, or in an installed package, in every command."""

import csv
import importlib.metadata
import os
import re
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from fljax.algorithms.fedavg import fedavg
from fljax.catalogue.file_words import absolute, files_of, parts_of, short_name
from fljax.catalogue.own import find, kind_of_file
from fljax.folder.checkpoint import read_rounds
from fljax.jobs.assemble import program_text
from fljax.jobs.job import read_job
from fljax.jobs.parts import plain_model
from fljax.jobs.sweep import read_sweep
from fljax.results.load import load_run
from fljax.results.load_sweep import load_sweep
from fljax.results.remake import remake
from fljax.run.simulate import simulate
from tests.slow import slow

FILE = '''
"""Mine: half of the way to the mean."""
import jax
from fljax.client.objectives import training_loss
from fljax.choices import Positive
from fljax.data.federation import build
from fljax.data.partition import iid
from fljax.models import mlp as _mlp
from fljax.rounds import Brick, LocalHyper, Scalar, averaging, hyper, mean, method, number, interpolated, trained_on
from fljax.rounds.uplink import Transform


@hyper
class MineHyper(LocalHyper):
    """Numbers of mine."""

    share: Scalar = number(0.5, "share of the way", above=0, most=1)


@method(MineHyper, "A paper", "https://example.org", kind="one model")
def mymethod(model, work, *, steps: Positive = 1, combine=mean):
    """Mine: half of the way to the mean."""
    return averaging(model, trained_on(training_loss(model), work), combine=interpolated(combine, _share))


def _share(hyper, weight):
    return hyper.share


def net(input_shape, n_classes, *, width: Positive = 4):
    """A narrow network.

    Args:
        width: of its one hidden layer.
    """
    return _mlp(input_shape=input_shape, n_classes=n_classes, hidden=(width,))


def split(train, test, n_clients: int, *, seed: int = 0, part: float = 1.0):
    """Equal parts."""
    return iid(train, test, n_clients=n_clients, seed=seed)


def no_model(input_shape, n_classes):
    return 3


def second(outputs, y):
    """Whether the class is the second likeliest."""
    return outputs.argsort(axis=1)[:, -2] == y


def no_score(outputs, y):
    return outputs


@hyper
class FaintHyper:
    faint: Scalar = number(0.5, "factor on what clients send", above=0, most=1)


def _faint(hyper, memory, message, trip):
    return memory, message._replace(values=hyper.faint * message.values)


fainter = Brick("faint", "uplink", Transform(_faint), "updates times a factor", FaintHyper)
behind = Brick("behind", "server", lambda combine: combine, "the server as it is")
three = 3
'''
SMALL = ("--rounds", "1", "--epochs", "1", "--n-clients", "3")
ALL = ("--algorithm", "./mine.py:mymethod", "--model", "./mine.py:net", "--partition", "./mine.py:split")


@pytest.fixture
def own_file(fljax) -> Path:
    Path("mine.py").write_text(FILE)
    return Path("mine.py")


@pytest.mark.slow
def test_scores_by_name_and_of_ones_own_are_told_compared_and_chosen_by(fljax, own_file, refused, tmp_path):
    options = ("--score", "auc", "./mine.py:second", "--partition", "iid", "--model", "logistic_regression")
    status, out, err = fljax("run", *SMALL, "--algorithm", "fedavg", *options, "--new-clients", "0.4", "--folder", "x")
    assert (status, err) == (0, "")
    run = load_run("x")
    (row,) = run.summary
    scores = run["fedavg"].tests()
    assert f"  {np.nanmean(scores['client_auc']):.4f}" in out
    for name in ("auc", "second"):
        assert float(row[f"{name}_macro"]) == pytest.approx(np.nanmean(scores[f"client_{name}"]))
        assert f"fedavg client_{name}" in Path("x/clients.csv").read_text()
        assert f"client_{name}" in np.load("x/fedavg/new_clients.npz")
    assert tomllib.loads(Path("x/config.toml").read_text())["score"] == ["auc", f"{tmp_path}/mine.py:second"]
    assert "--score auc" in refused("run", "--folder", "x", "--score", "auc", "--rounds", "2")
    out = fljax("show", "x", "--measure", "second_macro")[1]
    assert f"{load_run('x')['fedavg'].metrics['second_macro'][-1]:.4f}" in out
    sweep_options = ("--metric", "second_macro", *options, "--folder", "y")
    status, out, err = fljax("sweep", *SMALL, "--algorithm", "fedavg", "--lr", "0.01", "0.5", *sweep_options)
    assert (status, err) == (0, "")
    with Path("y/table.csv").open() as file:
        rows = {float(row["lr"]): float(row["second_macro"]) for row in csv.DictReader(file)}
    assert f"best: lr={max(rows, key=lambda lr: rows[lr]):.4g}: second_macro {max(rows.values()):.4f}" in out
    assert "metric='ece_macro' is unknown" in refused(
        "sweep", "--algorithm", "fedavg", "--lr", "0.1", "0.2", *options, "--metric", "ece_macro"
    )
    assert "Whether the class is the second likeliest" in fljax("list", "./mine.py:second")[1]


def test_everything_of_ones_own_runs_goes_on_and_is_repeated(fljax, own_file, refused, monkeypatch, tmp_path):
    options = (*ALL, "--mymethod.lr", "0.2", "--share", "0.25", "--model.width", "6", "--partition.part", "0.5")
    status, out, err = fljax("run", *SMALL, *options, "--folder", "x")
    assert (status, err) == (0, "")
    assert f"{tmp_path}/mine.py:net of 460 parameters" in out
    stored = tomllib.loads(Path("x/config.toml").read_text())
    assert stored["algorithm"] == [f"{tmp_path}/mine.py:mymethod"]
    assert (stored["mymethod"]["share"], stored["mymethod"]["steps"]) == (0.25, 1)
    assert (stored["model"]["name"], stored["model"]["width"]) == (f"{tmp_path}/mine.py:net", 6)
    assert stored["partition"]["part"] == 0.5

    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")  # what a folder says is found from everywhere
    assert fljax("run", "--folder", "../x", "--rounds", "2")[0] == 0
    assert fljax("run", "--config", "../x/config.toml", "--folder", "y")[0] == 0
    first, second = read_rounds(Path("../x/mymethod")), read_rounds(Path("y/mymethod"))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert "holds results with --mymethod.share 0.25, not 0.5" in refused("run", "--folder", "../x", "--share", "0.5")
    job = read_job(["--config", "../x/config.toml", "--algorithm", "fedavg"])
    assert "mymethod" not in job.settings


@pytest.mark.slow
def test_an_own_method_is_composed_swept_planned_and_listed(fljax, own_file, tmp_path):
    status, out, err = fljax(
        "sweep", *SMALL, *ALL[2:], "--algorithm", "./mine.py:mymethod+krum", "--share", "0.1", "1", "--folder", "x"
    )
    assert (status, err) == (0, "")
    assert "2 points x 1 seed of mymethod+krum" in out
    with Path("x/table.csv").open() as file:
        assert [row["share"] for row in csv.DictReader(file)] == ["0.1", "1.0"]
    assert read_sweep(["--folder", "x", "--resume"]).axes["share"].words == ["0.1", "1"]
    assert "\nmymethod " in fljax("plan", *ALL, *SMALL)[1]
    out = fljax("list", "./mine.py:mymethod+krum")[1]
    for text in ("Mine + krum: half of the way", "--mymethod+krum.share FLOAT", "--mymethod+krum.n-attackers"):
        assert text in out
    assert "--model.width" in fljax("list", "./mine.py:net")[1]
    assert "--partition.part" in fljax("list", "./mine.py:split")[1]
    assert "--mymethod.steps INT" in fljax("run", *ALL, "--help")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--algorithm ./nowhere.py:x", "nowhere.py: No such file"),
        (
            "--algorithm ./mine.py:nothing",
            "mine.py has no 'nothing'; it has MineHyper, mymethod, net, split, no_model,",
        ),
        ("--algorithm fedavg+./mine.py:nothing", "no_model, second, no_score, FaintHyper, fainter, behind"),
        ("--algorithm ./mine.py:fainter", "this is a brick, not a method; add it to one, as --algorithm fedavg+/"),
        ("--algorithm ./mine.py:fainter+krum", "this is a brick, not a method; add it to one, as --algorithm fedavg+/"),
        (
            "--algorithm fedavg+./mine.py:mymethod",
            "mine.py:mymethod: this is a Method, not a brick; a brick is a fljax",
        ),
        ("--algorithm fedavg+krum+./mine.py:three", "/mine.py:three: this is a int, not a brick; a brick is a fljax"),
        ("--algorithm fedavg+./mine.py", "mine.py is a file; write "),
        (
            "--algorithm fedavg+./no.py:x",
            "no.py: No such file; if it has moved, give its new place: --algorithm METHOD+",
        ),
        ("--algorithm ditto+krum+./mine.py:fainter+median", "median would replace krum; leave one out"),
        ("--algorithm fedsoft+./mine.py:behind", "fedsoft+behind: FedSoft has no slot 'server' for behind; its slots"),
        (
            "--algorithm fedavg+./mine.py:fainter+./mine.py:fainter",
            "fedavg+faint+faint: faint and faint both have a hyperparameter 'faint'; use one of them",
        ),
        ("--algorithm fedavg+./mine.py:fainter --faint 2", "faint=2 is out of its range; choose faint in (0, 1]"),
        ("--uplink ./mine.py:fainter:1:2", "2 numbers are given, but the numbers of /"),
        ("--algorithm fedavg+./\0.py:x", r"--algorithm 'fedavg+./\x00.py:x': give several, each text"),
        ("--augment ./mine.py:fainter", "fainter is a brick of the slot 'uplink', not 'augment'"),
        ("--algorithm ./mine.py:net", "mine.py:net: this is a function, not a method; a method is a function (model"),
        ("--algorithm ./mine.py:three", "mine.py:three: this is a int, not a method"),
        ("--model ./mine.py:three", "mine.py:three: this is a int, not a function"),
        ("--model ./mine.py:no_model", "mine.py:no_model returns a int; return a Model"),
        ("--algorithm ./faulty.py:x", "faulty.py, line 2: ZeroDivisionError: division by zero"),
        ("--algorithm ./typo.py:x", "typo.py, line 1: SyntaxError"),
        ("--algorithm ./mine.py:mymethod+krm", "no brick 'krm'; the nearest is 'krum'; bricks that fit mymethod: prox"),
        ("--algorithm ./mine.py:mymethod ./mine.py:mymethod", "mymethod is given twice"),
        ("--algorithm ./mine.py:mymethod --share 2", "share=2 is out of its range; choose share in (0, 1]"),
        ("--algorithm ./mine.py:mymethod --steps 0", "steps=0 is not positive"),
        ("--algorithm zzz", "no algorithm 'zzz'; fljax list has the names"),
        ("--score acu", "no score 'acu'; the nearest is 'auc'"),
        ("--score auc auc", "--score auc auc: score 'auc' is given twice"),
        ("--score ./mine.py:three", "mine.py:three: this is a int, not a function"),
        ("--score ./mine.py:mymethod", "mine.py:mymethod: this is a Method, not a function"),
        ("--score ./mine.py:no_score", "score 'no_score' returned an array (25, 10); return one number per example"),
        ("--score rmse", "score 'rmse' is for regression, not for classification; choose another score"),
    ],
)
def test_what_is_wrong_with_an_own_file_is_one_line(refused, own_file, arguments, message):
    Path("faulty.py").write_text("x = 1\ny = 1 / 0\n")
    Path("typo.py").write_text("def x(:\n")
    assert message in refused("run", "--algorithm", "fedavg", *arguments.split())
    assert not Path("results").exists()


def test_paths_in_toml_begin_at_its_folder(own_file, tmp_path, monkeypatch):
    Path("x.toml").write_text('algorithm = ["./mine.py:mymethod"]\n[mymethod]\nshare = 0.75\n')
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    job = read_job(["--config", "../x.toml"])
    assert job.run.algorithm == (f"{tmp_path}/mine.py:mymethod",)
    assert job.settings["mymethod"]["share"] == 0.75


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("status", [130, *slow(0)], ids=["begun", "trained"])
def test_installed_packages_offer_them_by_entry_points(fljax, refused, own_file, monkeypatch, tmp_path, status):
    if status:
        monkeypatch.setattr("fljax.cli.execute.train", interrupted)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    points = [
        importlib.metadata.EntryPoint(name, f"mine:{value}", f"fljax.{group}")
        for name, value, group in (
            ("theirs", "mymethod", "algorithms"),
            ("their_net", "net", "models"),
            ("their_brick", "fainter", "bricks"),
        )
    ]
    names, installed = [], importlib.metadata.entry_points

    def entry_points(group, **options):
        if not group.startswith("fljax."):
            return installed(group=group, **options)
        names.extend(options.values())
        return [one for one in points if one.group == group and options.get("name", one.name) == one.name]

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    job = read_job(["--algorithm", "theirs", "theirs+prox", "--model", "their_net", "--model.width", "3"])
    assert job.settings["theirs"]["share"] == 0.5
    assert job.settings["theirs+prox"]["mu"] == 0.1
    job = read_job(["--algorithm", "theirs+their_brick", "fedavg+their_brick+krum", "--faint", "0.25"])
    assert [job.settings[name]["faint"] for name in job.methods] == [0.25, 0.25]
    assert read_job(["--algorithm", "fedavg", "--uplink", "their_brick:1"]).run.algorithm == ("fedavg+their_brick",)
    assert fljax("run", *SMALL, "--n-groups", "3", "--algorithm", "theirs", "--folder", "x")[::2] == (status, "")
    assert fljax("run", "--folder", "x")[0] == status
    assert tomllib.loads(Path("x/config.toml").read_text())["algorithm"] == ["theirs"]
    names.clear()
    read_job(["--algorithm", "fedavg+krum", "--uplink", "clip:1"])
    assert not names  # only of names that are not ours
    assert "no algorithm 'their'; the nearest is 'theirs'" in refused("run", "--algorithm", "their")
    listed = fljax("list", "models", "bricks", "theirs+sam", "their_net", "their_brick", "fedavg+their_brick")[1]
    assert "of installed packages\n  their_brick ()\n" in listed
    assert "their_brick: updates times a factor" in listed
    assert "--fedavg+their-brick.faint" in listed
    assert "of installed packages\n  their_net ()\n" in listed
    assert "--theirs+sam.share" in listed
    assert "--model.width" in listed


def test_two_files_find_each_its_own_neighbour(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "neighbour_of_both.py").write_text(f"NAME = {name!r}")
        (folder / f"{name}_own.py").write_text(
            "import neighbour_of_both\ndef part(train, test): return neighbour_of_both.NAME"
        )
    functions = [find("partition", f"{tmp_path}/{name}/{name}_own.py:part") for name in ("a", "b")]
    assert [function(None, None) for function in functions] == ["a", "b"]


def test_a_file_that_ends_the_program_is_refused(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nsys.exit(3)")
    with pytest.raises(ValueError, match=r"script.py, line 2: SystemExit: 3$"):
        find("partition", f"{tmp_path}/script.py:part")


def test_a_file_without_a_name_says_what_it_has(fljax, own_file, refused, tmp_path):
    names = "MineHyper mymethod net split no_model second no_score FaintHyper fainter behind both"
    own_file.write_text(FILE + "from fljax.algorithms.fedavg import fedavg as _fedavg\nboth = _fedavg + fainter\n")
    for word in ("./mine.py", "./mine.py:"):
        for setting in ("--algorithm", "--model", "--partition"):
            message = refused("run", *SMALL, setting, word)
            assert (
                f"{tmp_path}/mine.py is a file; write {tmp_path}/mine.py:name with one of its names: {names}" in message
            )
        assert f"./mine.py:name with one of its names: {names}" in refused("list", word).replace(f"{tmp_path}/", "./")
    assert "cannot read no.py: No such file" in refused("list", "./no.py")


def test_two_methods_of_one_name(fljax, own_file, refused, tmp_path):
    Path("other").mkdir()
    Path("other/mine.py").write_text(FILE.replace("half", "a third"))
    message = refused("run", *SMALL, "--algorithm", "./mine.py:mymethod", "./other/mine.py:mymethod")
    assert "mymethod is the name of two methods, and of their results; leave one out, or rename it" in message
    assert "fedavg is given twice; leave one out" in refused("run", *SMALL, "--algorithm", "fedavg", "fedavg")


def test_files_that_cannot_be_run_say_where_and_why(fljax, refused, tmp_path):
    Path("nul.py").write_text("a\0b")
    assert refused("list", "./nul.py:a").startswith(
        "fljax: nul.py: SyntaxError: source code string cannot contain null"
    )
    (tmp_path / "a.b").mkdir()
    Path("a.b/rel.py").write_text("\nfrom . import mine")
    message = refused("list", "./a.b/rel.py:a")
    assert "a.b/rel.py, line 2: ImportError: attempted relative import" in message
    assert "import files of the same folder by name alone" in message
    Path("h.py").write_text("import fljax\n\n@fljax.hyper\ndef f(): ...\n")
    assert "h.py, line 3: ValueError: @hyper stands above <function f" in refused("list", "./h.py:a")


def test_an_error_of_ones_own_in_a_round_says_where(fljax, refused, tmp_path):
    Path("mine.py").write_text(
        "from fljax.rounds import averaging, method\n\n\ndef broken(hyper, shared, received, weight):\n"
        "    raise ValueError('what a pity')\n\n\n@method\ndef mine(model, work):\n"
        "    return averaging(model, work, combine=broken)\n"
    )
    message = refused("run", *SMALL, "--partition", "iid", "--algorithm", "./mine.py:mine", "--folder", "x")
    assert message == f"fljax: {tmp_path}/mine.py, line 5: ValueError: what a pity\n"


@pytest.mark.slow
def test_a_sampling_that_is_ready(fljax, refused):
    Path("mine.py").write_text("from fljax.rounds import table\n\nweekly = table([[0, 1], [2]])\n")
    options = ("--partition", "iid", "--algorithm", "fedavg", "--sampling", "./mine.py:weekly")
    status, _, err = fljax("run", *SMALL, *options, "--folder", "x")
    assert (status, err) == (0, "")
    rounds = read_rounds(Path("x/fedavg"))
    np.testing.assert_array_equal(rounds["ids"], [[0, 1]])
    assert "participation=0.5 beside sampling=table" in refused("run", *SMALL, *options, "--participation", "0.5")
    assert fljax("list", "./mine.py:weekly")[0] == 0


RAREST = '''
import jax.numpy as jnp
from fljax.rounds import Sampling, SamplingMemory


def rarest(n: int = 1):
    """The clients that have come least often.

    Args:
        n: clients per round.
    """

    def draw(key, round, size, places, counts):
        return jnp.argsort(counts, stable=True)[:places], jnp.ones(places, bool)

    memory = SamplingMemory(lambda n_clients: jnp.zeros(n_clients, jnp.int32), update)
    return Sampling(draw, lambda n_clients: n, memory=memory)


def update(counts, seen):
    return seen.put(counts, counts[seen.ids] + 1)
'''


@pytest.mark.slow
def test_a_sampling_that_remembers(fljax, refused):
    Path("mine.py").write_text(RAREST)
    options = ("--partition", "iid", "--algorithm", "fedavg", "--sampling", "./mine.py:rarest", "--folder", "x")
    assert "--sampling.n INT" in fljax("list", "./mine.py:rarest")[1]
    for n_rounds in ("1", "3", "4"):
        status, _, err = fljax("run", *SMALL, *options, "--rounds", n_rounds)
        assert (status, err) == (0, "")
    np.testing.assert_array_equal(read_rounds(Path("x/fedavg"))["ids"], [[0], [1], [2], [0]])
    Path("mine.py").write_text(RAREST.replace("+ 1", "+ 2"))
    assert "x/fedavg" in refused("run", *SMALL, *options, "--rounds", "5")


WRONG = '''
import jax
import jax.numpy as jnp
import numpy as np

import fljax
from flax import linen as nn
from fljax.rounds import averaging, method


def changed(model, work, **parts):
    return averaging(model, work)._replace(exchange=None, **parts)


@method
def no_state(model, work):
    return changed(model, work, init=lambda key, hyper, data: model.init(key))


@method
def nothing(model, work):
    return changed(model, work, round=lambda key, hyper, state, cohort: None)


@method
def three(model, work):
    return changed(model, work, round=lambda key, hyper, state, cohort: (state, {}, 1))


@method
def no_table(model, work):
    return changed(model, work, deploy=lambda key, hyper, state, data: state.server)


@method
def one_row(model, work):
    def deploy(key, hyper, state, data):
        return fljax.ModelTable(jax.tree.map(lambda leaf: leaf[None], state.server), jnp.zeros(1, jnp.int32))

    return changed(model, work, deploy=deploy)


@method
def asks(model, work):
    def combine(hyper, shared, received, weight):
        return shared if hyper.lr > 1 else fljax.server.weighted_mean(received, weight)

    return averaging(model, work, combine=combine)


@method
def history(model, work):
    return averaging(model, work)


@method
def by_id(model, work):
    """One model for all, and a cluster that a client's id says."""
    plain = averaging(model, work)

    def round(key, hyper, state, cohort):
        state, metrics = plain.round(key, hyper, state, cohort)
        return state, metrics | {"label": cohort.ids % 2}

    return plain._replace(exchange=None, round=round)


class Unflattened(nn.Module):
    n_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.n_classes)(x.reshape(-1))


def pair(input_shape, n_classes):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(n_classes)(x.reshape(x.shape[0], -1))
            return x, x

    return fljax.from_linen(Net(), input_shape)


def normed(input_shape, n_classes):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(n_classes)(nn.BatchNorm(use_running_average=False)(x.reshape(x.shape[0], -1)))

    return fljax.from_linen(Net(), input_shape)


def functions(input_shape, n_classes):
    def apply(params, x):
        return x.reshape(x.shape[0], -1) @ params["w"]

    return fljax.from_functions(lambda key: {"w": jnp.zeros((3, n_classes))}, apply)


def images(input_shape, n_classes):
    return fljax.from_linen(nn.Dense(n_classes), input_shape)


def flat(input_shape, n_classes):
    return fljax.from_linen(Unflattened(n_classes), input_shape)


def parts(train, test, *, group):
    return fljax.build(train, np.array_split(np.arange(90), 3), (0.5, 0.0, 0.5), group=group)


def postal(train, test, *, seed: int = 0):
    return parts(train, test, group=np.array([10115, 80331, 10115]))


def named(train, test, *, seed: int = 0):
    return parts(train, test, group=["b", "a", "b"])


def unknown(train, test, *, seed: int = 0):
    return parts(train, test, group=np.full(3, -1))


def paler(key, x):
    return x / 2


pale = fljax.rounds.Brick("paler", "augment", paler, "images are paler")


@method
def paled(model, work):
    return (fljax.fedavg + pale)(model, work)
'''


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            ("--algorithm", "no_state"),
            "what init returned is of type dict, not a State; return fljax.State(server, clients)",
        ),
        (("--algorithm", "nothing"), "a round returned a NoneType; return a State and the metrics"),
        (("--algorithm", "three"), "a round returned 3 things; return a State and the metrics"),
        (("--algorithm", "no_table"), "what deploy returned is of type dict, not a ModelTable"),
        (
            ("--algorithm", "one_row"),
            "deploy returned a row of shape (1,) and type int32; return the row number of each of the 3 clients",
        ),
        (
            ("--algorithm", "asks"),
            "wrong.py, line 46: Python code such as if, int or float needs the value of a hyperparameter or array",
        ),
        (
            ("--algorithm", "history"),
            "a setting or a section of config.toml has the name history; give the method another",
        ),
        (("--algorithm", "paled"), "paler: value is called with (key, x, hyper), but paler takes (key, x)"),
        (("--model", "pair"), "for two examples it returns no array; return outputs (examples, classes) of floats"),
        (
            ("--model", "normed"),
            "errors.ModifyScopeVariableError) (wrong.py, line 90)",
        ),
        (("--model", "functions"), "wrong.py, line 97: TypeError: dot_general requires contracting dimensions"),
        (("--model", "images"), "for two examples it returns an array (2, 8, 8, 10) of float32; return outputs"),
        (("--model", "flat"), "Unflattened cannot be called with a batch of examples of shape (8, 8, 1)"),
        (("--partition", "unknown"), "group has -1 to -1; number the groups 0, 1, 2, ..., or leave it out"),
    ],
    ids=lambda choice: choice[1] if isinstance(choice, tuple) else "",
)
def test_what_a_users_function_returns_is_looked_at(fljax, refused, choice, message):
    Path("wrong.py").write_text(WRONG)
    setting, name = choice
    usual = {"--algorithm": ["fedavg"], "--partition": ["iid", "--n-clients", "3"]} | {setting: [f"./wrong.py:{name}"]}
    words = [word for option, values in usual.items() for word in (option, *values)]
    assert message in refused("run", *words, "--rounds", "1", "--epochs", "1", "--folder", "x")


def test_the_parts_of_a_word_are_names_and_objects_of_files():
    for word, parts, name in (
        ("fedavg+krum", ["fedavg", "krum"], "fedavg+krum"),
        ("fedavg+./c++/a.b.py:x+krum", ["fedavg", "./c++/a.b.py:x", "krum"], "fedavg+x+krum"),
        ("/c++/mine.py:x+../d/e.py:y", ["/c++/mine.py:x", "../d/e.py:y"], "x+y"),
        ("mine.py:x+mine.py:y", ["mine.py:x", "mine.py:y"], "x+y"),
        ("./mine.py+krum+", ["./mine.py", "krum", ""], "+krum+"),
        ("fedavg+./a:b/mine.py:x", ["fedavg", "./a:b/mine.py:x"], "fedavg+x"),
    ):
        assert (parts_of(word), short_name(word), "+".join(parts)) == (parts, name, word)
    assert files_of("fedavg+./c++/a.b.py:x+krum+../d/e.py:y") == [Path("c++/a.b.py"), Path("../d/e.py")]
    assert absolute("~/mine.py:x", Path("elsewhere")) == f"{Path.home().resolve()}/mine.py:x"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mymethod", "algorithm"),
        ("both", "algorithm"),
        ("fainter", "brick"),
        ("split", "partition"),
        ("net", "model"),
        ("second", "score"),
        ("of_three", "score"),
        ("drawn", "sampling"),
    ],
)
def test_the_kind_of_an_object_of_a_file_is_seen(tmp_path, name, kind):
    (tmp_path / "mine.py").write_text(f"{FILE}{KINDS}")
    assert kind_of_file(f"{tmp_path}/mine.py:{name}") == kind


KINDS = """
from fljax.algorithms.fedavg import fedavg as _fedavg

both = _fedavg + fainter


def of_three(outputs, y, size):
    return outputs[:, 0]


def drawn(participation: float = 1.0):
    return None
"""


def test_a_brick_of_ones_own_has_settings_wherever_a_name_has(fljax, own_file, tmp_path, monkeypatch):
    word, options = "fedavg+./mine.py:fainter+krum", ("--faint", "0.25")
    job = read_job(["--algorithm", word, *options])
    assert job.methods == {"fedavg+fainter+krum": f"fedavg+{tmp_path}/mine.py:fainter+krum"}
    assert job.settings["fedavg+fainter+krum"]["faint"] == 0.25
    methods = ("--algorithm", "fedavg", "./mine.py:mymethod")
    job = read_job([*methods, "--uplink", "./mine.py:fainter:0.75", "clip:2"])
    assert list(job.methods) == ["fedavg+fainter+clip_update", "mymethod+fainter+clip_update"]
    assert {job.settings[name]["faint"] for name in job.methods} == {0.75}
    sweep = read_sweep(["--algorithm", word, "--faint", "0.1", "1"])
    assert sweep.axes["faint"].words == ["0.1", "1"]

    Path("x.toml").write_text(f'algorithm = ["{word}"]\n["fedavg+fainter+krum"]\nfaint = 0.125\n')
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    job = read_job(["--config", "../x.toml"])
    assert job.run.algorithm == (f"fedavg+{tmp_path}/mine.py:fainter+krum",)
    assert job.settings["fedavg+fainter+krum"]["faint"] == 0.125
    assert "fedavg+fainter+krum" not in read_job(["--config", "../x.toml", "--algorithm", "ifca"]).settings

    assert "mine.py:fainter: updates times a factor" in fljax("list", "../mine.py:fainter")[1]
    assert "--fedavg+fainter.faint FLOAT" in fljax("list", "fedavg+../mine.py:fainter")[1]
    method = find("algorithm", job.run.algorithm[0])
    assert find("algorithm", job.run.algorithm[0]) is method  # so that its programs are compiled once
    assert (method.name, [brick.name for brick in method.bricks]) == ("fedavg+faint+krum", ["faint", "krum"])


def test_a_file_that_is_changed_within_a_second_is_read_anew(tmp_path, monkeypatch):
    """Its size does not change either, by which Python's bytecode on disk would count."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for i, rate in enumerate((0.1, 0.2)):
        path.write_text(f"import fljax\nhalf = fljax.rounds.uniform({rate})\n")
        os.utime(path, ns=(i, 10**18 + i))
        assert dict(find("sampling", f"{path}:half").about)["participation"] == rate


def test_what_code_of_ones_own_does_is_not_known_by_its_name(federation):
    """Nor what attackers and fast clients do by theirs, for it depends on the clients."""
    job = read_job([])
    texts = [program_text("fedavg", job.with_setting("score", scores), federation) for scores in ((), ("auc",))]
    assert texts[0] != texts[1]
    assert None not in texts
    own = {name: "./mine.py:own" for name in ("model", "sampling", "fedavg.optimizer")}
    for name, value in (own | {"score": ("auc", "./mine.py:own"), "attack": "alie", "clock": "wait"}).items():
        assert program_text("fedavg", job.with_setting(name, value), federation) is None, name


@pytest.mark.slow
def test_a_brick_of_ones_own_runs_and_a_changed_one_is_another_method(fljax, own_file, refused):
    method = "fedavg+./mine.py:fainter"
    options = ("--algorithm", method, "--faint", "0.25", "--partition", "iid", "--model", "logistic_regression")
    assert fljax("run", *SMALL, *options, "--folder", "x")[::2] == (0, "")
    job, remade = read_job(["--folder", "x"]), remake("x")
    run = remade.runs["fedavg+fainter"]
    assert program_text("fedavg+fainter", job, remade.federation) is None  # what it does is not known by its name
    assert run["hyper"].faint == 0.25
    own_file.write_text(FILE.replace("hyper.faint *", "hyper.faint /"))
    assert "holds a run with the same names but other code" in refused("run", "--folder", "x", "--rounds", "2")
    own_file.rename("moved.py")
    message = refused("run", "--folder", "x", "--rounds", "2")
    assert "No such file; if it has moved, give its new place: --algorithm METHOD+PATH:fainter" in message


@pytest.mark.slow
def test_a_brick_of_ones_own_is_swept_compared_and_planned(fljax, own_file):
    options = ("--partition", "iid", "--model", "logistic_regression")
    sweep = ("--algorithm", "fedavg+./mine.py:fainter", "--faint", "0.1", "1", "--folder", "s")
    assert fljax("sweep", *SMALL, *options, *sweep)[::2] == (0, "")
    assert fljax("sweep", "--folder", "s", "--resume")[::2] == (0, "")
    with Path("s/table.csv").open() as file:
        assert [row["faint"] for row in csv.DictReader(file)] == ["0.1", "1.0"]
    Path("mine.py").rename("gone.py")
    assert "2 points x 1 seeds" in repr(load_sweep("s"))  # a missing file does not keep its table from being read
    Path("gone.py").rename("mine.py")
    methods = ("--algorithm", "fedavg", "fedavg+./mine.py:fainter", "--seeds", "2", "--folder", "c")
    assert fljax("compare", *SMALL, *options, *methods)[::2] == (0, "")
    assert fljax("compare", "--folder", "c")[::2] == (0, "")
    assert fljax("run", "--config", "c/seed_0/config.toml", "--folder", "r")[::2] == (0, "")
    Path("mine.py").rename("moved.py")
    moved = ("run", "--folder", "r", "--rounds", "2", "--algorithm", "fedavg", "fedavg+./moved.py:fainter")
    assert fljax(*moved)[::2] == (0, "")
    assert len(load_run("r")["fedavg+fainter"].metrics["loss"]) == 2
    remade = remake("r")
    run, subjects = remade.runs["fedavg+fainter"], (remade.federation, remade.runs["fedavg"]["key"])
    states = [
        simulate(run["algorithm"], run["hyper"].replace(faint=faint), *subjects, 1)[0] for faint in (0.25, 0.5, 1)
    ]
    whole, _ = simulate(remade.runs["fedavg"]["algorithm"], remade.runs["fedavg"]["hyper"], *subjects, 1)
    for quarter, half, full, new in zip(
        *(jax.tree.leaves(state.server.own) for state in states), jax.tree.leaves(whole.server), strict=True
    ):
        np.testing.assert_allclose(full, new, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(full - half, 2 * (half - quarter), rtol=1e-4, atol=1e-6)
    assert "\nfedavg+fainter " in fljax("plan", *SMALL, *options, "--algorithm", "fedavg+./moved.py:fainter")[1]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "groups"), [("postal", [0, 1, 0]), ("named", [1, 0, 1])])
def test_groups_of_any_names_are_numbered(fljax, name, groups):
    """The clusters that a method tells of are those of the table, also where all clients hold one model."""
    Path("wrong.py").write_text(WRONG)
    options = ("--algorithm", "./wrong.py:by_id", "--partition", f"./wrong.py:{name}", "--rounds", "1", "--epochs", "1")
    status, _, err = fljax("run", *options, "--folder", "x")
    assert (status, err) == (0, "")
    with Path("x/clients.csv").open() as clients, Path("x/summary.csv").open() as summary:
        rows, (line,) = list(csv.DictReader(clients)), csv.DictReader(summary)
    assert [int(row["group"]) for row in rows] == groups
    assert [int(row["by_id cluster"]) for row in rows] == [0, 1, 0]
    assert float(line["ari"]) == 1


@pytest.mark.slow
def test_a_file_that_has_moved_is_asked_for_and_gone_on_with_where_it_is_now(fljax, own_file, refused):
    status, _, err = fljax("run", *ALL, *SMALL, "--folder", "x")
    assert (status, err) == (0, "")
    message = refused("run", "--folder", "x", "--rounds", "2", "--model", "mlp")
    assert "mine.py:net, not mlp; choose another --folder" in message
    Path("there").mkdir()
    own_file.rename("there/mine.py")
    new_options, resume = [word.replace("./mine.py", "./there/mine.py") for word in ALL], ("run", "--folder", "x")
    message = refused(*resume, "--rounds", "3", *new_options[2:])
    assert "mine.py: No such file; if it has moved, give its new place: --algorithm PATH:mymethod" in message
    status, out, err = fljax(*resume, "--rounds", "3", *new_options)
    assert (status, err) == (0, "")
    assert "3/3" in out


def test_what_a_score_of_ones_own_raises_is_said_with_its_place(refused):
    Path("mine.py").write_text("def wrong(outputs, y):\n    return outputs[y.missing]\n")
    message = refused("run", "--algorithm", "fedavg", "--score", "./mine.py:wrong", "--rounds", "1")
    assert re.search(r"mine\.py, line 2: AttributeError: .* no attribute missing", message)


OPTIMIZER = """
import optax

def mine(learning_rate):
    return optax.chain(optax.clip(0.01), optax.sgd(learning_rate))

def tall(learning_rate, how):
    return optax.sgd(learning_rate)

constant = 3
"""


@pytest.mark.slow
def test_an_optimizer_of_ones_own_or_of_optax(fljax, refused):
    """It is that of `Work.optimizer`; a folder is gone on with by its own alone."""
    Path("mine.py").write_text(OPTIMIZER)
    arguments = ("run", "--algorithm", "fedavg", *SMALL[2:], "--partition", "iid", "--folder", "x", "--rounds")
    assert fljax(*arguments, "1", "--optimizer", "./mine.py:mine")[::2] == (0, "")
    assert fljax("run", "--folder", "x", "--rounds", "2")[::2] == (0, "")
    word = tomllib.loads(Path("x/config.toml").read_text())["fedavg"]["optimizer"]
    assert word == f"{Path('mine.py').absolute()}:mine"  # found from everywhere
    job = read_job(["--folder", "x"])
    assert program_text("fedavg", job, remake("x").federation) is None  # what it does is not known by its name
    assert program_text("fedavg", job.with_setting("fedavg.optimizer", "adam"), remake("x").federation) is not None
    remade, losses = remake("x").runs["fedavg"], load_run("x")["fedavg"].metrics["loss"]
    work, model = remade["algorithm"].about.work, plain_model(job, remade["federation"])
    for optimizer, is_equal in ((lambda lr: optax.chain(optax.clip(0.01), optax.sgd(lr)), True), ("sgd", False)):
        algorithm = fedavg(model, work._replace(optimizer=optimizer))
        _, metrics = simulate(algorithm, remade["hyper"], remade["federation"], remade["key"], 2)
        assert np.allclose(metrics["loss"], losses, rtol=1e-4) is is_equal
    assert "x holds results with --fedavg.optimizer" in refused(*arguments, "3", "--optimizer", "optax.lion")
    assert fljax(*arguments[:-3], "--rounds", "1", "--optimizer", "optax.lion")[0] == 0
    for word, message in (
        ("optax.lyon", "--optimizer optax.lyon: optax has no optimiser 'lyon'; choose one such as optax.lion"),
        ("optax.identity", "optimizer identity cannot be called with a learning rate alone"),
        ("optax.sigmoid_binary_cross_entropy", "cannot be called with a learning rate alone"),
        ("optax.constant_schedule", "returns a function; give one that returns an optax transformation"),
        ("./mine.py:constant", "this is a int, not a function"),
        ("./mine.py:tall", "optimizer tall cannot be called with a learning rate alone: missing a required"),
        ("./mine.py", "mine.py:name with one of its names: mine tall"),
    ):
        assert message in refused(*arguments[:-3], "--rounds", "1", "--optimizer", word)
