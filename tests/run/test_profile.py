"""Where a round's time goes: the compiler's operations and the parts of a round that they are of."""

import jax
import pytest

import fljax
from fljax.models import logistic_regression
from fljax.run import profile as profile_module
from fljax.run.profile import PARTS, Operation, operations_of, profile

PROGRAM = """\
HloModule jit_run_chunk, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %a.1 = f32[4]{0} add(%p, %p), metadata={op_name="jit(run_chunk)/while/body/round/send/train/add"}
  ROOT %m.1 = f32[4]{0} multiply(%a.1, %p)
}

%step (q: (f32[4], s32[])) -> (f32[4], s32[]) {
  %q = (f32[4]{0}, s32[]) parameter(0)
  %kept = f32[4]{0} copy(%q), metadata={op_name="jit(run_chunk)/while/body/test/copy"}
  %plain = f32[4]{0} copy(%kept)
  %joined = f32[4]{0} fusion(%plain), kind=kLoop, calls=%fused
  ROOT %mean = (f32[4]{0}, s32[]) tuple(%joined), metadata={op_name="jit(f)/while/body/round/receive/test_loss/mean"}
}

ENTRY %main.7 (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %loop = (f32[4]{0}, s32[]) while(%x), body=%step
  ROOT %out = f32[4]{0} get-tuple-element(%loop), index=0
}
"""


def test_an_operation_is_of_the_innermost_part_that_it_is_made_in():
    operations = operations_of(PROGRAM)
    assert operations["a.1"] == Operation("add", "train")
    assert operations["kept"] == Operation("copy", "test")
    assert operations["mean"] == Operation("tuple", "receive")  # whose own name is no part's
    assert operations["joined"] == Operation("fusion", "train")  # as what it is made of
    assert operations["plain"].part in ("test", "receive")  # as what is beside it
    assert operations["loop"] == Operation("while", "rest")
    assert operations["x"].part == "rest"


@pytest.fixture(scope="module")
def measure_parts(federation):
    """``measure_parts(epochs)``: IFCA's parts with so many epochs of local training."""
    model = logistic_regression((4, 4, 1), 4)

    def seconds_of_parts(epochs):
        algorithm = fljax.ifca(model, fljax.Work(epochs, 8), n_clusters=2)
        return profile(algorithm, fljax.ifca.Hyper(), federation, jax.random.key(0), n_rounds=2)

    return seconds_of_parts


@pytest.mark.slow
def test_all_parts_have_seconds_and_longer_training_has_more(measure_parts):
    one_epoch, twenty_epochs = measure_parts(1), measure_parts(20)
    for seconds in (one_epoch, twenty_epochs):
        assert list(seconds) == [*PARTS, "rest"]
        assert all(seconds[name] > 0 for name in ("cohort", "send", "train", "receive", "test"))
    assert twenty_epochs["train"] > 4 * one_epoch["train"]
    assert twenty_epochs["train"] > 0.5 * sum(twenty_epochs.values())
    assert one_epoch["rest"] < 0.5 * sum(one_epoch.values())


@pytest.mark.slow
def test_a_device_that_reports_no_operations_is_an_error(averaging, federation, key, monkeypatch):
    monkeypatch.setattr(profile_module, "_events", lambda folder: iter([("of another program", 1.0)]))
    with pytest.raises(RuntimeError, match="does not report operations on cpu"):
        profile(averaging, fljax.fedavg.Hyper(), federation, key, compile="fast")


@pytest.mark.slow
def test_seconds_are_of_a_round_and_a_loop_is_what_is_in_it(averaging, federation, key, monkeypatch):
    operations, events = operations_of(PROGRAM), [("a.1", 1.0), ("loop", 10.0), ("kept", 3.0), ("a.1", 2.0)]
    monkeypatch.setattr(profile_module, "operations_of", lambda text: operations)
    monkeypatch.setattr(profile_module, "_events", lambda folder: iter(events))
    seconds = profile(averaging, fljax.fedavg.Hyper(), federation, key, n_rounds=2, compile="fast")
    assert seconds == dict.fromkeys([*PARTS, "rest"], 0.0) | {"train": 1.5, "test": 1.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_rounds": 0}, "n_rounds=0"),
        ({"hyper": fljax.fedavg.Hyper(lr=-1)}, "lr=-1"),
        ({"participation": 2.0}, "participation=2"),
        ({"compile": "best"}, "compile='best'"),
    ],
)
def test_bad_input_is_refused_as_by_simulate(averaging, federation, key, arguments, message):
    with pytest.raises(ValueError, match=message):
        profile(
            **{"algorithm": averaging, "hyper": fljax.fedavg.Hyper(), "federation": federation, "key": key} | arguments
        )
