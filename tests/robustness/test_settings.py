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


def checked_once(check, passed):
    """``check``, which says nothing new of a program that has passed it before, by the text that promises so."""

    period, calls = int(os.environ.get("FLJAX_TRACED", 1)), []

    def check_if_new(**run):
        calls.append(1)
        if len(calls) % period:
            return
        text_and_shapes = (
            None if run["program"] is None or run["n_rounds"] > MANY_ROUNDS else (run["program"], *shapes_of(run))
        )
        if text_and_shapes is None or text_and_shapes not in passed:
            check(**run)
            passed.add(text_and_shapes)

    return check_if_new


def run_some(train, count):
    """``train`` of one call in `TRAINED`."""

    def instead(*arguments, **options):
        count.append(1)
        if len(count) % TRAINED:
            raise GotThrough
        return train(*arguments, **options)

    return instead


@pytest.fixture(scope="module")
def passed_programs():
    """What programs were checked, by all tests here."""
    return set()


@pytest.fixture
def folder(tmp_path, monkeypatch, passed_programs):
    """A folder to run in, whose file ``victim`` nobody may change; few cases are trained."""
    from fljax.cli import execute, plan, search
    from fljax.run import arguments

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(commands, "cache_compilations", lambda: None)
    Path("victim").write_text("unchanged")
    calls, check = [], checked_once(arguments.check_ahead, passed_programs)
    monkeypatch.setattr(execute, "train", run_some(execute.train, calls))
    monkeypatch.setattr(search, "search", run_some(search.search, calls))
    monkeypatch.setattr(execute, "check_ahead", check)
    monkeypatch.setattr(arguments, "check_ahead", check)
    monkeypatch.setattr(plan, "plan_one", lambda *_: (_ for _ in ()).throw(GotThrough()))
    return tmp_path


def outcome(arguments):
    """0 where the command ends well or would begin to train.

    Raises:
        ValueError: with what is on stderr, where it ends with status 2.
    """

    def raise_late(*_):
        raise HangsError(f"more than {SECONDS} s of the processor or {PATIENCE} s")

    err = io.StringIO()
    limits = ((signal.ITIMER_PROF, signal.SIGPROF, SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, PATIENCE))
    handlers = [signal.signal(signal_number, raise_late) for _, signal_number, _ in limits]
    for timer, _, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            status = main(arguments)
    except GotThrough:
        return 0
    finally:
        for (timer, signal_number, _), handler in zip(limits, handlers, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(signal_number, handler)
    if status == 2:
        raise ValueError(err.getvalue().removesuffix("\n"))
    return status


def arguments_of(case):
    """(arguments, what to show of them) of a command line, or of the bytes of a TOML file."""
    if isinstance(case, bytes):
        Path("job.toml").write_bytes(case)
        return ["run", "--config", "job.toml", "--folder", "results"], case
    return case, case


def campaign(make, numbers, name, capsys):
    """Tries the cases of these numbers."""
    tally, seed = Tally(name), sum(make.__name__.encode())
    for i in numbers:
        arguments, text = arguments_of(make(np.random.default_rng([seed, i])))
        shutil.rmtree("results", ignore_errors=True)
        attempt = f"{make.__name__} {i} {text!r}"[:3000]
        tally.attempt(attempt, lambda words=arguments: outcome(words), lambda status: status == 0, "fljax: ")
    assert Path("victim").read_text() == "unchanged"
    tally.close(capsys)


@pytest.mark.parametrize("make", [command_line, toml])
@pytest.mark.filterwarnings("ignore")
def test_settings_at_random(folder, capsys, make):
    campaign(make, range(QUICK), make.__name__, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("make", [command_line, toml])
@pytest.mark.parametrize("piece", [f"piece{i}" for i in range(PIECES)])
@pytest.mark.filterwarnings("ignore")
def test_settings_at_random_at_length(folder, capsys, make, piece):
    first = int(os.environ.get("FLJAX_FIRST") or int(piece.removeprefix("piece")) * PIECE)
    campaign(make, range(first, first + cases(PIECE)), f"{make.__name__} from {first}", capsys)
