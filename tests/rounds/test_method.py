"""Methods know themselves; bricks go into the slots that a method has, and into no other."""

from functools import partial

import jax
import numpy as np
import optax
import pytest

import fljax
from fljax.algorithms import ALGORITHMS, by_kind
from fljax.catalogue.parameters import description
from fljax.data.synthetic import linear_groups
from fljax.models import mlp
from fljax.numbers import numbers_of
from fljax.rounds.bricks import BRICKS
from fljax.rounds.documented import USUAL, documented
from fljax.types import Work
from tests.algorithms.round_by_round import simulate
from tests.slow import slow

MODEL, WORK = mlp((4, 4, 1), (6,), 4), Work(1, 8)


def test_every_file_is_a_method_with_a_title_a_summary_and_a_paper():
    assert len(ALGORITHMS) >= 37
    for name, method in ALGORITHMS.items():
        assert method.name == name
        assert method.title
        assert method.summary
        assert method.paper
        assert "method" in repr(method)
    assert list(by_kind()) != list(ALGORITHMS)
    assert set(by_kind()) == set(ALGORITHMS)


def test_every_choice_is_described():
    for name, method in fljax.ALGORITHMS.items():
        missing = [choice for choice in method.static if not description(method.__doc__, choice)]
        assert not missing, f"{name}: {missing}"


def test_usual_arguments_are_described_where_the_function_does_not():
    def documented_function(model, work, depth, *, combine=None, weighting="size", loud=False):
        """Mine.

        Args:
            depth: of what,
                in two lines.
            weighting: mine.

        Raises:
            ValueError: never.
        """

    assert documented(documented_function) == (
        "Mine.\n\nArgs:\n    model: the network.\n    work: local work in a round.\n    depth: of what,\n"
        f"        in two lines.\n    combine: {USUAL['combine']}\n    weighting: mine.\n\n"
        "Raises:\n    ValueError: never."
    )


def test_a_function_without_a_docstring_is_called_by_its_name():
    @fljax.method
    def plain(model, work):
        return fljax.fedavg.factory(model, work)

    assert (plain.title, plain.summary) == ("plain", "")


def test_equal_choices_make_the_same_algorithm():
    algorithm = fljax.fedper(MODEL, WORK)
    assert algorithm is fljax.fedper(MODEL, WORK, n_personal=1, weighting="size")
    assert algorithm is not fljax.fedper(MODEL, WORK, n_personal=2)
    assert hash(algorithm) == hash(fljax.fedper(MODEL, WORK))


def test_an_unknown_choice_is_refused_with_those_there_are():
    with pytest.raises(
        ValueError, match="ifca has no static choice 'n_cluster'; its static choices: n_clusters, weighting, "
    ):
        fljax.ifca(MODEL, WORK, n_cluster=3)


def test_numbers_of_numpy_are_whole_numbers_too():
    assert fljax.fedavg(MODEL, Work(np.int64(1), 8)) is fljax.fedavg(MODEL, Work(1, 8))


def test_an_algorithm_says_what_it_was_made_with():
    algorithm = fljax.fedper(MODEL, WORK, weighting="uniform")
    assert repr(algorithm) == "fedper(n_personal=1, weighting='uniform')"
    assert algorithm.about.work == WORK
    assert dict(algorithm.about.model) | {"hidden": (6,), "n_classes": 4} == dict(algorithm.about.model)
    assert repr(fljax.fedavg(MODEL, WORK, combine=fljax.rounds.krum)) == "fedavg(weighting='size', combine='krum')"
    assert repr(fljax.compose("fedavg+krum")(MODEL, WORK)) == "fedavg+krum(weighting='size')"


def test_bricks_compose_by_name_and_by_plus():
    by_name = fljax.compose("fedavg+median+adam")
    assert by_name.title == "FedAvg + median + adam"
    assert {"server_lr", "beta1", "beta2", "tau"} < set(numbers_of(by_name.Hyper))
    assert by_name.Hyper(server_lr=0.5).server_lr == 0.5
    by_plus = fljax.fedavg + BRICKS["median"] + BRICKS["adam"]
    assert by_plus.name == by_name.name
    assert by_plus.Hyper is by_name.Hyper
    of_method = fljax.compose(fljax.fedavg, "median + adam")
    assert of_method is fljax.compose(fljax.fedavg, "median", "adam")  # and so its algorithms are compiled once
    assert (of_method.name, of_method.Hyper) == (by_name.name, by_name.Hyper)
    assert fljax.compose("fedavg+momentum").Hyper().server_lr == 1.0  # without memory it is the mean


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedprx", "no algorithm 'fedprx'; the nearest is 'fedprox'; choose one of adacfl"),
        ("fedprox+adm", "no brick 'adm'; the nearest is 'adam'; bricks that fit fedprox: prox, dp_sgd"),
        ("fedprox+", "no brick ''"),
        (
            "./mine.py:timid+sam",
            r"; to name a method of your own or of a package, pass .*: fljax.compose\(mine, 'prox'\)$",
        ),
        (3, "method is 3, not a str; give a name, such as 'fedprox[+]median', or a method of"),
        ("fedprox+prox", r"^fedprox\+prox: fedprox and prox both have a hyperparameter 'mu'; use one of them$"),
        ("fedavg+prox+prox", r"^fedavg\+prox\+prox: prox and prox both have a hyperparameter 'mu'"),
        (
            "fedavg+dp_sgd+client_dp",
            r"^fedavg\+dp_sgd\+client_dp: dp_sgd and client_dp both have a hyperparameter 'delta'",
        ),
        ("fedavg+adam+median", "median would replace adam; write median first"),
        ("fedavg+krum+median", r"median would replace krum; leave one out$"),
        ("standalone+krum", "has no slot 'combine' for krum; its slots: loss"),
        ("standalone+adam", "has no slot 'server' for adam"),
        ("fedsgd+prox", "has no slot 'loss' for prox; its slots: uplink, downlink, combine, server"),
    ],
)
def test_what_does_not_fit_says_so(name, message):
    with pytest.raises(ValueError, match=message):
        fljax.compose(name)


def test_a_method_of_the_user_learns_how_it_gets_a_slot():
    @fljax.method
    def closed(model, work):
        return fljax.rounds.averaging(model, work)

    with pytest.raises(
        ValueError, match=r"slots: loss, augment, schedule, algorithm; .* gets it by an argument combine=mean, which it"
    ):
        fljax.compose(closed, "krum")
    with pytest.raises(ValueError, match=r"no slot 'loss' for prox; its slots: [^;]*$"):
        fljax.compose("fedsgd+prox")


def test_choices_are_checked_where_they_are_given():
    with pytest.raises(ValueError, match="weighting='n' is unknown; choose one of 'size', 'uniform'"):
        fljax.fedavg(MODEL, WORK, weighting="n")
    with pytest.raises(ValueError, match="which is mutable; give a tuple"):
        fljax.layercfl(MODEL, WORK, layers=["fc1"])
    with pytest.raises(
        ValueError, match="fedavg has no static choice 'wheighting'; its static choices: weighting, combine"
    ):
        fljax.fedavg(MODEL, WORK, wheighting="size")


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_slot_of_a_method_takes_its_bricks(name):
    method = ALGORITHMS[name]
    for brick in BRICKS.values():
        has_its_numbers = brick.Hyper is not None and numbers_of(brick.Hyper).keys() & numbers_of(method.Hyper).keys()
        if brick.slot in method.slots and not has_its_numbers:
            assert (method + brick).name == f"{name}+{brick.name}"
        else:
            with pytest.raises(ValueError, match=r"no slot|both have"):
                method + brick


@pytest.mark.slow
def test_a_users_function_becomes_a_method_with_its_first_line_as_title():
    @fljax.method(paper="nobody, 2026", kind="personalised")
    def mine(model, work, *, twice: bool = False):
        """Mine: what I think."""
        return fljax.averaging(model, work)

    assert (mine.name, mine.title, mine.summary) == ("mine", "Mine", "what I think")
    algorithm = mine(MODEL, WORK, twice=True)
    assert repr(algorithm) == "mine(twice=True)"
    assert mine.Hyper is fljax.LocalHyper
    federation = fljax.data.synthetic.linear_groups(4, 2, examples=12)
    actual = simulate(algorithm, mine.Hyper(lr=0.1), federation, jax.random.key(0), 2)[1]
    expected = simulate(fljax.fedavg(MODEL, WORK), fljax.fedavg.Hyper(lr=0.1), federation, jax.random.key(0), 2)[1]
    np.testing.assert_array_equal(actual["client_loss"], expected["client_loss"])


def test_a_decorator_without_parentheses():
    @fljax.method
    def mine(model, work):
        """Mine: what I think."""
        return fljax.averaging(model, work)

    assert (mine.name, mine.Hyper, mine.kind, mine.summary) == ("mine", fljax.LocalHyper, "one model", "what I think")


def test_numbers_that_are_no_class_of_numbers():
    class Undecorated(fljax.LocalHyper):
        mu: fljax.Scalar = fljax.number(0.1, "weight")

    for Hyper in (dict, 3, fljax.LocalHyper(), Undecorated):
        with pytest.raises(ValueError, match=r"is not a class of hyperparameters; write @fljax.hyper above it$"):
            fljax.method(Hyper)


def test_one_name_for_two_things():
    @fljax.hyper
    class KHyper(fljax.LocalHyper):
        """Numbers."""

        k: fljax.Scalar = fljax.number(1.0, "k")

    @fljax.hyper
    class EpochsHyper(fljax.LocalHyper):
        """Numbers."""

        epochs: fljax.Scalar = fljax.number(1.0, "epochs")

    def of_k(model, work, *, k: int = 1): ...

    def of_epochs(model, work, *, epochs: int = 1): ...

    def plain(model, work): ...

    for Hyper, factory, message in (
        (KHyper, of_k, "^of_k: 'k' is both a static choice and a hyperparameter; give one another name$"),
        (fljax.LocalHyper, of_epochs, "^of_epochs: 'epochs' is both a static choice and a field of Work"),
        (EpochsHyper, plain, "^plain: 'epochs' is both a hyperparameter and a field of Work"),
    ):
        with pytest.raises(ValueError, match=message):
            fljax.method(Hyper)(factory)


def test_choices_that_are_equal_and_not_the_same():
    @fljax.method
    def mine(model, work, *, k=1):
        return fljax.averaging(model, work)

    algorithms = [mine(MODEL, WORK, k=k) for k in (1, True, 1.0, (1, 0), (True, False), 1)]
    assert [algorithm is algorithms[0] for algorithm in algorithms] == [True, False, False, False, False, True]
    assert [algorithm.about.choices for algorithm in algorithms[:3]] == [(("k", 1),), (("k", True),), (("k", 1.0),)]
    assert [str(algorithm) for algorithm in algorithms[3:5]] == ["mine(k=(1, 0))", "mine(k=(True, False))"]
    for value in (np.ones(2), {}, jax.numpy.ones(2)):
        with pytest.raises(ValueError, match=rf"^mine: k is of type {type(value).__name__}, which is mutable; give a"):
            mine(MODEL, WORK, k=value)


def test_other_things_in_the_place_of_a_model_work_algorithm_or_brick():
    @fljax.method
    def forgetful(model, work):
        fljax.averaging(model, work)

    for make, message in (
        (lambda: fljax.fedavg("mlp", WORK), "^model is 'mlp', not a Model; make one by fljax.MODELS"),
        (lambda: fljax.fedavg(MODEL, 3), r"^work is 3, not a Work; give one, as fljax\.Work\(epochs=1"),
        (lambda: forgetful(MODEL, WORK), "^what the function of forgetful returns is None, not an Algorithm; return"),
        (lambda: fljax.fedavg + "prox", r"^brick is 'prox', not a Brick; give one, or write fljax.compose\('fedavg"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize("work", [Work(0, 4), Work("1", 4), Work(1, 2.5)])
def test_work_is_looked_at_when_a_method_is_made(work):
    with pytest.raises(ValueError, match="is not a positive whole number"):
        fljax.fedavg(fljax.MODELS["logistic_regression"]((4,), 2), work)


@pytest.mark.parametrize("name", ["fedavg+clip_gradient", *slow("fedavg+clip_gradient+sam", "ditto+clip_gradient")])
def test_clipped_gradients_are_those_of_optax(name):
    federation, key = linear_groups(4, 2, examples=10), jax.random.key(0)
    method, unclipped_method = fljax.compose(name), fljax.compose(name.replace("+clip_gradient", ""))

    def clipped_sgd(lr):
        return optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(lr))

    def run(method, work, **numbers):
        return simulate(method(MODEL, work), method.Hyper(lr=0.1, **numbers), federation, key, 2)[0]

    clipped_state = run(method, WORK, max_norm=0.05)
    jax.tree.map(
        partial(np.testing.assert_allclose, atol=1e-6),
        clipped_state,
        run(unclipped_method, WORK._replace(optimizer=clipped_sgd)),
    )
    unclipped_state, state_of_large_norm = run(unclipped_method, WORK), run(method, WORK, max_norm=1e6)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), state_of_large_norm, unclipped_state)
    assert not np.allclose(*(jax.tree.leaves(state)[0] for state in (clipped_state, unclipped_state)), atol=1e-3)


@pytest.mark.parametrize("name", ["fedavg", "feddbe"])  # the second has a `predict` of its own
def test_predictions_of_pixels_are_those_of_a_batch_of_them(key, name):
    """A run scales pixels as it makes a batch; 0 to 255 into `predict` were outputs 255 times too large."""
    train = linear_groups(4, 2, n_classes=3, side=2).train
    algorithm = ALGORITHMS[name](mlp((2, 2, 1), (4,), 3), Work(1, 8))
    hyper = ALGORITHMS[name].Hyper()
    models = algorithm.deploy(key, hyper, algorithm.init(key, hyper, train), train)
    params = fljax.client_model(models, 1)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 2, 2, 1)).astype(np.uint8)
    expected = algorithm.predict(params, np.asarray(pixels / 255, np.float32))
    np.testing.assert_allclose(algorithm.predict(params, pixels), expected, rtol=1e-6)
