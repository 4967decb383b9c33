"""Numbers as data: fields say their range once, and every way in says the same sentence."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.algorithms import ALGORITHMS
from fljax.data.synthetic import linear_groups
from fljax.models import mlp
from fljax.numbers import LocalHyper, Scalar, as_dict, check_numbers, hyper, joined, number, numbers_of, replace
from fljax.run.plan import plan
from fljax.run.sweep import search
from fljax.types import Work


@hyper
class Numbers(LocalHyper):
    """Numbers of nothing."""

    mu: Scalar = number(0.1, "weight", least=0)
    cap: Scalar | None = number(2.0, "cap; None: none", above=0, below=10)
    warmup: Scalar = number(3.0, "rounds; inf: for ever", least=1, infinite=True)


def test_a_hyper_is_a_pytree_of_its_numbers_without_none():
    numbers = Numbers(mu=0.5, cap=None)
    assert jax.tree.leaves(numbers) == [0.05, 0.5, 3.0]
    doubled = jax.tree.map(lambda value: 2 * value, numbers)
    assert isinstance(doubled, Numbers)
    assert (doubled.lr, doubled.mu, doubled.cap) == (0.1, 1.0, None)
    assert jax.jit(lambda h: h.lr + h.mu)(numbers) == pytest.approx(0.55)
    products = jax.vmap(lambda h: h.mu * h.lr)(replace(numbers, lr=jnp.ones(2), mu=jnp.arange(2.0), warmup=jnp.ones(2)))
    np.testing.assert_array_equal(products, [0.0, 1.0])


def test_classes_of_as_many_numbers_are_of_different_structures():
    """Otherwise a jitted function takes one for another, now and then (in JAX's cache, equal structures are one)."""
    one, other = (hyper(type(name, (LocalHyper,), {})) for name in ("One", "Other"))
    assert jax.tree.structure(one()) == jax.tree.structure(one(lr=2))
    assert jax.tree.structure(one()) != jax.tree.structure(other())
    (path, _), *_ = jax.tree_util.tree_leaves_with_path(one())
    assert jax.tree_util.keystr(path) == ".lr"


def test_fields_are_inherited_named_and_documented():
    assert list(numbers_of(Numbers)) == ["lr", "lr_decay", "momentum", "weight_decay", "mu", "cap", "warmup"]
    assert "    mu: weight, >= 0." in Numbers.__doc__
    assert "    momentum: momentum of the clients' SGD; None: none, in [0, 1)." in Numbers.__doc__
    with pytest.raises(TypeError):
        Numbers(0.1)  # by name only: fields may be added
    with pytest.raises(ValueError, match="no field 'nu'; choose one of lr, lr_decay"):
        replace(Numbers(), nu=1)
    with pytest.raises(ValueError, match=r"^Numbers has no field 'nu'; choose one of lr, lr_decay"):
        Numbers(nu=1)
    with pytest.raises(
        ValueError, match=r"^LocalHyper has no field 'learning_rate'; choose one of lr, lr_decay, momentum, w"
    ):
        fljax.fedavg.Hyper(learning_rate=0.1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mu": -1}, r"mu=-1 is out of its range; choose mu >= 0 \(weight\)"),
        ({"mu": float("nan")}, "mu=nan is not a number; choose mu >= 0"),
        ({"mu": float("inf")}, "mu=inf is out of its range; choose a finite number, mu >= 0"),
        ({"mu": None}, "mu=None is not a number"),
        ({"mu": "much"}, "mu='much' is not a number"),
        ({"mu": "0.5"}, "mu='0.5' is not a number; give a number"),
        ({"mu": b"1"}, "mu=b'1' is not a number"),
        ({"mu": np.array("1")}, "mu=.* is not a number"),
        ({"mu": True}, "mu=True is not a number"),
        ({"mu": np.array(True)}, "mu=.* is not a number"),
        ({"mu": np.datetime64("2020-01-01")}, "mu=.* is not a number"),
        ({"mu": 10**400}, "mu is too large for float32; choose at most 3.4e[+]38"),
        ({"mu": [1, 2]}, r"mu=\[1, 2\] is not one number; give one, or try several with fljax.sweep"),
        ({"mu": np.ones(2)}, "is not one number"),
        ({"mu": np.arange(900.0).reshape(30, 30)}, "mu of type ndarray is not one number"),
        ({"lr": 0}, "lr=0 is out of its range; choose lr > 0"),
        ({"lr": 1e39}, "lr=1e[+]39 is too large for float32"),
        ({"lr": 1e-50}, "lr=1e-50 is 0 in float32; choose lr > 0"),
        ({"momentum": 1 - 1e-12}, r"momentum=0\.999999999999 is 1 in float32; choose momentum in \[0, 1\)"),
        ({"momentum": 1}, r"momentum=1 is out of its range; choose momentum in \[0, 1\), or None"),
        ({"lr_decay": 0}, r"lr_decay=0 is out of its range; choose lr_decay in \(0, 1\], or None"),
        ({"cap": 10}, r"cap=10 is out of its range; choose cap in \(0, 10\), or None"),
        ({"warmup": 0.5}, "warmup=0.5 is out of its range; choose warmup >= 1"),
    ],
)
def test_a_number_out_of_its_range_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        check_numbers(Numbers(**values))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"cap": None},
        {"warmup": float("inf")},
        {"mu": np.float64(3)},
        {"mu": jnp.float32(0)},
        {"lr": 1},
        {"mu": 1e-50},
        {"lr": jnp.bfloat16(1)},
    ],
)
def test_numbers_in_their_range_pass(values):
    check_numbers(Numbers(**values))


def test_tracers_and_shapes_pass_and_stacks_are_checked_through():
    jax.jit(lambda h: check_numbers(h) or h.mu)(Numbers(mu=-1))
    check_numbers(jax.eval_shape(lambda h: h, Numbers()))
    check_numbers(Numbers(mu=np.array([0.0, 1.0])), stacked=True)
    with pytest.raises(ValueError, match="mu=-2 is out of its range"):
        check_numbers(Numbers(mu=np.array([0.0, -2.0])), stacked=True)


@hyper
class Ordered:
    high: Scalar = number(2.0, "upper end", least=0, not_below="low")
    low: Scalar | None = number(1.0, "lower end; None: none", least=0)


def test_a_number_that_may_not_be_below_another():
    assert Ordered.__doc__.startswith("Hyperparameters of Ordered.\n\nFields:\n")
    assert "    high: upper end, >= low." in Ordered.__doc__
    for numbers in (Ordered(), Ordered(high=1), Ordered(high=0, low=None)):
        check_numbers(numbers)
    jax.jit(lambda h: check_numbers(h) or h.low)(Ordered(high=0))
    check_numbers(Ordered(high=np.array([1.0, 3.0]), low=np.array([1.0, 2.0])), stacked=True)
    with pytest.raises(ValueError, match=r"^high=0\.5 is less than low=1; choose high >= low \(upper end\)$"):
        check_numbers(Ordered(high=0.5))
    with pytest.raises(ValueError, match=r"^high=3 is less than low=4"):
        check_numbers(Ordered(high=np.array([1.0, 3.0]), low=np.array([0.0, 4.0])), stacked=True)
    with pytest.raises(ValueError, match=r"^high=-1 is out of its range; choose high >= low"):
        check_numbers(Ordered(high=-1))


def test_other_things_are_no_numbers():
    for value in ({"lr": 0.1}, None, Numbers, 3):
        with pytest.raises(ValueError, match="is not a Hyper; give hyperparameters"):
            check_numbers(value)


def test_classes_are_joined_once_and_not_over_each_other():
    @hyper
    class More:
        """More."""

        tau: Scalar = number(1.0, "tau", above=0)

    joined_class = joined(Numbers, More)
    assert list(numbers_of(joined_class)) == [*numbers_of(Numbers), "tau"]
    assert joined_class is joined(Numbers, More)
    assert as_dict(joined_class())["tau"] == 1.0
    with pytest.raises(ValueError, match="both have a hyperparameter 'lr'"):
        joined(Numbers, LocalHyper)


@pytest.mark.parametrize("name", ["ditto", "fedopt", "fedavg+krum", "fedprox+clip_update+top_k+adam"])
def test_numbers_come_back_from_a_pickle_and_from_a_copy(name):
    hyper_class = fljax.compose(name).Hyper
    numbers = hyper_class(lr=jnp.float32(0.3))
    for copied in (pickle.loads(pickle.dumps(numbers)), copy.deepcopy(numbers)):
        assert type(copied) is hyper_class
        assert as_dict(copied) == as_dict(numbers)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_methods_own_defaults_are_in_their_ranges(name):
    check_numbers(ALGORITHMS[name].Hyper())
    assert all(field.meaning for field in numbers_of(ALGORITHMS[name].Hyper).values())


def test_every_way_into_a_run_says_the_same_sentence(key, tmp_path):
    federation, model = linear_groups(4, 2, examples=8), mlp((4, 4, 1), (3,), 4)
    algorithm, bad_numbers = fljax.fedprox(model, Work(1, 8)), fljax.fedprox.Hyper(mu=-1)
    state = jax.eval_shape(algorithm.init, key, fljax.fedprox.Hyper(), federation.train)
    calls = [
        lambda: fljax.simulate(algorithm, bad_numbers, federation, key, 1),
        lambda: fljax.train(algorithm, bad_numbers, federation, key, 1),
        lambda: fljax.sweep(algorithm, fljax.fedprox.Hyper(mu=[0.1, -1]), federation, key, 1, 1),
        lambda: search(algorithm, fljax.fedprox.Hyper(mu=[0.1, -1]), federation, key, 1, 1),
        lambda: fljax.evaluate_new_clients(algorithm, bad_numbers, state, federation, key),
        lambda: plan(lambda work: fljax.fedprox(model, work), Work(1, 8), model, bad_numbers, federation, key),
    ]
    sentence = r"^mu=-1 is out of its range; choose mu >= 0 \(proximal weight; 0 is FedAvg"
    for call in calls:
        with pytest.raises(ValueError, match=sentence):
            call()


def test_what_cannot_be_a_class_of_numbers():
    with pytest.raises(
        ValueError, match=r"^Vague.a has neither meaning nor range; write a: fljax.Scalar = fljax.number"
    ):

        @hyper
        class Vague:
            a: float = 1.0

    with pytest.raises(
        ValueError, match=r"^@hyper stands above <function .*; it takes a class whose fields are made by"
    ):
        hyper(lambda: None)


def test_a_count_has_no_fraction():
    krum = fljax.compose("fedavg+multi_krum")
    for field in ("n_attackers", "n_selected"):
        for value in (1.5, jnp.float32(1.5), np.array([1, 1.5, 2])):
            numbers = krum.Hyper(**{field: value})
            with pytest.raises(ValueError, match=f"{field}=1.5 is not a whole number; choose {field} >= "):
                check_numbers(numbers, stacked=np.ndim(value) > 0)
        check_numbers(krum.Hyper(**{field: 2.0}))
        check_numbers(krum.Hyper(**{field: np.array([1.0, 3.0])}), stacked=True)
