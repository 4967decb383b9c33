"""Public functions refuse arguments of another type than the library's by name."""

import inspect

import pytest

import fljax
from fljax import attacks, client, drift, rounds
from fljax.argument_kinds import kinds_of

OF_RUNS = ("deployed", "evaluate_new_clients", "new_client_models", "profile", "simulate", "sweep", "train")
"""They check their subjects together, once all are given: see `run/test_subjects.py`."""
OF_POOLS = ("build", "predictions", "confusion_matrices", "evaluate")
"""Their arguments are checked in the function: see `run/test_subjects.py`."""


def public_functions():
    names = {f"fljax.{name}": getattr(fljax, name) for name in dir(fljax) if name not in (*OF_RUNS, *OF_POOLS)}
    for module in (attacks, client, drift, rounds):
        names |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    return {name: one for name, one in names.items() if inspect.isfunction(one)}


ARGUMENTS = [(name, argument) for name, one in public_functions().items() for argument in kinds_of(one)]


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_every_public_function_refuses_other_types_by_name(name, argument):
    function = public_functions()[name]
    kind, or_none = kinds_of(function)[argument]
    for wrong in (5, *(() if or_none else (None,))):
        with pytest.raises(ValueError, match=rf"^{argument} is {wrong}, not an? {kind.__name__}; (give|make) "):
            function(**{argument: wrong})


def test_by_place_too():
    with pytest.raises(ValueError, match=r"^model is 'mlp', not a Model; make one by"):
        fljax.training_loss("mlp")
    with pytest.raises(ValueError, match=r"^algorithm is <method fedavg>, not an Algorithm; call it: fljax\.fedavg"):
        attacks.attacked(fljax.fedavg, None, None)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'model'"):
        fljax.training_loss()
    assert len(ARGUMENTS) > 40
