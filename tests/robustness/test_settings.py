"""Command lines and TOML files made at random from the schema itself: refused in one line, or a job that can run.

Every case goes through the command's own entry point and has a random generator of its own, so that ``FLJAX_FIRST=1234
FLJAX_CASES=1`` is case 1234 again. Those that are let through have been traced whole (with ``FLJAX_TRACED=10`` one in
ten of them), and one in `TRAINED` is also trained. The slow cases come in pieces of minutes: ``-k "toml and piece3"``.
"""

import contextlib
import io
import os
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from fljax.cli import main
from fljax.cli import run as commands
from tests.robustness.inputs import command_line, toml
from tests.robustness.tally import Tally, cases

QUICK, PIECE, PIECES = 12, 250, 10
TRAINED = 40
MANY_ROUNDS = 1000
"""Of which a run's memory may depend on their number."""
SECONDS, PATIENCE = 60, 600
"""Of the processor, and of the clock, after which a case counts as hanging: other work may share the machine."""


class GotThrough(Exception):
    """Everything was checked, and training would begin."""


class HangsError(Exception):
    """The case took too long."""


def shapes_of(run):
    """All that the check of a run depends on but its program's own text."""
    leaves, structure = jax.tree.flatten((run["hyper"], run["federation"]))
    kinds = [(np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves]
    return str(structure), str(kinds), str(run["sampling"]), run["dropout"] is None


def once(check, seen):
    """``check``, which says nothing new of a program that has passed it before, by the text that promises so."""

    every, count = int(os.environ.get("FLJAX_TRACED", 1)), []

    def instead(**run):
        count.append(1)
        if len(count) % every:
            return
        known = None if run["program"] is None or run["n_rounds"] > MANY_ROUNDS else (run["program"], *shapes_of(run))
        if known is None or known not in seen:
            check(**run)
            seen.add(known)

    return instead


def some(train, count):
    """``train`` of one call in `TRAINED`."""

    def instead(*arguments, **options):
        count.append(1)
        if len(count) % TRAINED:
            raise GotThrough
        return train(*arguments, **options)

    return instead


@pytest.fixture(scope="module")
def checked():
    """What programs were checked, by all tests here."""
    return set()


@pytest.fixture
def place(tmp_path, monkeypatch, checked):
    """A folder to run in, whose file ``victim`` nobody may change; few cases are trained."""
    from fljax.cli import execute, plan, search
    from fljax.run import arguments

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(commands, "cache_compilations", lambda: None)
    Path("victim").write_text("unchanged")
    count, check = [], once(arguments.check_ahead, checked)
    monkeypatch.setattr(execute, "train", some(execute.train, count))
    monkeypatch.setattr(search, "search", some(search.search, count))
    monkeypatch.setattr(execute, "check_ahead", check)
    monkeypatch.setattr(arguments, "check_ahead", check)
    monkeypatch.setattr(plan, "plan_one", lambda *_: (_ for _ in ()).throw(GotThrough()))
    return tmp_path


def outcome(arguments):
    """0 where the command ends well or would begin to train.

    Raises:
        ValueError: with what is on stderr, where it ends with status 2.
    """

    def late(*_):
        raise HangsError(f"more than {SECONDS} s of the processor or {PATIENCE} s")

    err = io.StringIO()
    limits = ((signal.ITIMER_PROF, signal.SIGPROF, SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, PATIENCE))
    before = [signal.signal(heard, late) for _, heard, _ in limits]
    for timer, _, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            status = main(arguments)
    except GotThrough:
        return 0
    finally:
        for (timer, heard, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(heard, handler)
    if status == 2:
        raise ValueError(err.getvalue().removesuffix("\n"))
    return status


def arguments_of(made):
    """(arguments, what to show of them) of a command line, or of the bytes of a TOML file."""
    if isinstance(made, bytes):
        Path("job.toml").write_bytes(made)
        return ["run", "--config", "job.toml", "--folder", "results"], made
    return made, made


def campaign(make, numbers, name, capsys):
    """Tries the cases of these numbers."""
    tally, own = Tally(name), sum(make.__name__.encode())
    for i in numbers:
        arguments, shown = arguments_of(make(np.random.default_rng([own, i])))
        shutil.rmtree("results", ignore_errors=True)
        what = f"{make.__name__} {i} {shown!r}"[:3000]
        tally.attempt(what, lambda given=arguments: outcome(given), lambda status: status == 0, "fljax: ")
    assert Path("victim").read_text() == "unchanged"
    tally.close(capsys)


@pytest.mark.parametrize("make", [command_line, toml])
@pytest.mark.filterwarnings("ignore")
def test_settings_at_random(place, capsys, make):
    campaign(make, range(QUICK), make.__name__, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("make", [command_line, toml])
@pytest.mark.parametrize("piece", [f"piece{i}" for i in range(PIECES)])
@pytest.mark.filterwarnings("ignore")
def test_settings_at_random_at_length(place, capsys, make, piece):
    first = int(os.environ.get("FLJAX_FIRST") or int(piece.removeprefix("piece")) * PIECE)
    campaign(make, range(first, first + cases(PIECE)), f"{make.__name__} from {first}", capsys)
