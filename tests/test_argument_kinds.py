"""Public functions refuse arguments of another type than the library's, or that are no functions, by name."""

import inspect
import re
from functools import partial

import pytest

import fljax
from fljax import attacks, client, drift, rounds
from fljax.argument_kinds import OF_FUNCTIONS, Allowed, allowed_of, check_allowed
from fljax.rounds import Brick, Combine, Rule, Sampling, SamplingMemory, Sharing, uplink
from fljax.rounds.uplink import Transform

OF_RUNS = ("deployed", "evaluate_new_clients", "new_client_models", "profile", "simulate", "sweep", "train")
"""They check their subjects together, once all are given: see `run/test_subjects.py`."""
OF_POOLS = ("build", "predictions", "confusion_matrices", "evaluate")
"""Their arguments are checked in the function: see `run/test_subjects.py`."""
OF_NETWORKS = ("from_functions", "from_nnx")
"""They check their functions, which may be classes, by calling them: see `models/test_own_networks.py`."""


def public_functions():
    names = {
        f"fljax.{name}": getattr(fljax, name) for name in dir(fljax) if name not in (*OF_RUNS, *OF_POOLS, *OF_NETWORKS)
    }
    for module in (attacks, client, drift, rounds, rounds.clock, uplink):
        names |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    return {name: one for name, one in names.items() if inspect.isfunction(one)}


ARGUMENTS = [(name, argument) for name, one in public_functions().items() for argument in allowed_of(one)]


def none_of(allowed: Allowed) -> list:
    """Things of other types: a number, None, a text, and where a function is allowed a method, a class and a brick."""
    things = [5, "x", *([] if allowed.or_none else [None])]
    return [*things, fljax.fedavg, dict, KRUM] if allowed.is_function else things


def short_mean(received, weight: float = 1.0):
    """A function of too few arguments for the slot `combine`."""
    return received


KRUM = Brick("krum", "combine", fljax.rounds.krum, "")


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_every_public_function_refuses_other_types_by_name(name, argument):
    function = public_functions()[name]
    allowed = allowed_of(function)[argument]
    what = " or a ".join([*(kind.__name__ for kind in allowed.kinds), *["function"] * allowed.is_function])
    for wrong in none_of(allowed):
        with pytest.raises(ValueError, match=rf"^{argument} is {re.escape(repr(wrong))}, not an? {what}; \w") as error:
            function(**{argument: wrong})
        assert ("fljax.fedavg + brick" in str(error.value)) is (wrong is KRUM)


def test_every_slot_of_a_skeleton_is_checked():
    """But for the words of ``weighting``, which are `check_choices`'s."""
    for skeleton in (fljax.averaging, fljax.clustered, fljax.rounds.one_shot_clustering, fljax.rounds.two_models):
        slots = set(inspect.signature(skeleton).parameters) - {"weighting", "n_clusters"}
        if skeleton is fljax.rounds.two_models:
            slots -= {"deployed"}
        assert slots == set(allowed_of(skeleton))
    with pytest.raises(ValueError, match=r"^weighting='siz' is unknown; choose one of 'size', 'uniform'$"):
        fljax.averaging(weighting="siz")
    with pytest.raises(ValueError, match=r"^n_clusters=0 is not positive; choose n_clusters >= 1, or None$"):
        fljax.rounds.one_shot_clustering(n_clusters=0)


@pytest.mark.parametrize(
    ("slot", "wrong", "message"),
    [
        (
            "local",
            "x",
            "local is 'x', not a Work or a function; give one, as fljax.Work(epochs=1, batch_size=32), or (",
        ),
        ("begin", 3, "begin is 3, not a function; give (key) -> params"),
        ("begin", lambda: {}, "begin is called with (key), but <lambda> takes ()"),
        ("metrics", partial(pow, 2, 3), "metrics is called with (state, cohort), but it takes (mod=None)"),
        ("combine", short_mean, "combine is called with (hyper, shared, received, weight), but short_mean takes (rec"),
        (
            "combine",
            KRUM,
            "combine is krum, not a Combine or a function; a brick is added to a method, as fljax.fedav",
        ),
        ("sharing", Sharing("head", None), "sharing.split is 'head', not a function; give a function"),
        (
            "combine",
            Combine(3),
            "combine.apply is 3, not a function; give (hyper, memory, shared, received, weight) -> ",
        ),
        (
            "combine",
            Combine(max, goal=max),
            "combine.goal is <built-in function max>, not a Combine; give one of flj",
        ),
    ],
)
def test_a_slot_says_what_it_takes(slot, wrong, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        fljax.averaging(**{slot: wrong})


def test_the_functions_of_a_rule_are_checked():
    with pytest.raises(ValueError, match=r"^rule.begin is 3, not a function; give \(key, hyper, data\) -> Clusters$"):
        fljax.clustered(rule=Rule(3))
    with pytest.raises(ValueError, match=r"^rule.after is None, not a function; give \(key, hyper, clusters, sent"):
        fljax.clustered(rule=Rule(lambda key, hyper, data: None, after=None))
    kinds = (Combine, Rule, Sampling, SamplingMemory, Sharing, Transform)
    assert {kind.__name__ for kind in kinds} == set(OF_FUNCTIONS)


def test_the_functions_of_a_memory_are_checked():
    whole = SamplingMemory(len, lambda memory, seen: memory)
    for memory, message in (
        (whole._replace(init=3), "sampling.memory.init is 3, not a function; give (n_clients) -> memory"),
        (whole._replace(update=lambda memory: memory), "sampling.memory.update is called with (memory, seen), but <la"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            rounds.stragglers(rounds.uniform()._replace(memory=memory), 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: uplink.chained(["clip"]), "link 0 is 'clip', not a Transform or a function; give fljax.rounds.uplink"),
        (lambda: uplink.chained(uplink.sign), "links is one Transform, not a list; give a list of"),
        (lambda: rounds.stragglers(Sampling(5, len), 0.5), "sampling.draw is 5, not a function; give a function"),
        (lambda: rounds.by_optimizer(rounds.mean, "adem"), "server_optimizer='adem' is unknown; choose one of"),
        (lambda: rounds.tuned(ft_epochs="1"), "ft_epochs='1' is not a whole number; choose ft_epochs >= 0"),
        (
            lambda: rounds.one_shot_clustering(find=len),
            "find is called with (key, hyper, updates, has_sent), but len",
        ),
        (lambda: KRUM + KRUM, "krum + krum: name the method first, as fljax.fedavg + krum"),
        (
            lambda: fljax.fedavg + rounds.krum,
            "brick is <function krum>, not a Brick; give one, as fljax.rounds.Brick(",
        ),
    ],
)
def test_parts_that_are_none_are_refused_where_they_are_given(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()


def test_a_function_of_any_number_of_arguments_is_not_counted():
    check_allowed(
        "local", lambda hyper, start, cohort: None, Allowed((), True, form="(hyper, start, cohort, *rows) -> x")
    )


def test_by_place_too():
    with pytest.raises(ValueError, match=r"^model is 'mlp', not a Model; make one by"):
        fljax.training_loss("mlp")
    with pytest.raises(ValueError, match=r"^algorithm is <method fedavg>, not an Algorithm; call it: fljax\.fedavg"):
        attacks.attacked(fljax.fedavg, None, None)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'model'"):
        fljax.training_loss()
    assert len(ARGUMENTS) > 70
