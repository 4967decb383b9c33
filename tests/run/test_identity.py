"""What a folder knows of its run: models, constants and pixels that differ are told apart."""

import json
from functools import partial
from types import FunctionType

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, serialization

import fljax
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedprox import fedprox
from fljax.client import training_loss
from fljax.client.objectives import proximal
from fljax.data.padding import same_shapes
from fljax.data.synthetic import linear_groups
from fljax.devices.mesh import over_devices
from fljax.folder.checkpoint import seal
from fljax.folder.same_run import LATER, check_same_run
from fljax.models import logistic_regression, mlp, normalized
from fljax.models.task import Task
from fljax.rounds.clock.waiting import tiers, wait_for_all, with_deadline
from fljax.rounds.local import proximal_to_start
from fljax.rounds.named_samplings import uniform
from fljax.rounds.sampling import Sampling
from fljax.rounds.timing import Timing
from fljax.run.identity import _checksum, _pixels, _without_zeros, run_identity, static_choices, tells_all
from fljax.run.sweep import search
from fljax.run.train import train
from fljax.types import Model, Work
from tests.models.small import SMALL
from tests.slow import slow, slow_rows

pytestmark = pytest.mark.usefixtures("one_device")

WORK = Work(1, 8)
CLOCK = 9 * (1.0,)
"""Seconds of each client's round."""


@pytest.fixture
def identity(key, federation):
    """The identity of a run of FedAvg with a model, on a federation."""

    def identity_of(model, federation=federation, work=WORK, key=key, sampling=uniform(), **choices):  # noqa: B008 - cached
        algorithm, hyper = fedavg(model, work, **choices), fljax.fedavg.Hyper()
        state = jax.eval_shape(algorithm.init, key, hyper, federation.train)
        return run_identity(algorithm, state, hyper, federation, key, sampling.of(9), 1, None)

    return identity_of


def differing(a, b):
    assert json.loads(json.dumps(a)) == a
    return {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}


def test_younger_choices_of_the_work_are_told_if_chosen_as_older_runs_lack_them(identity):
    model = mlp((4, 4, 1), (6,), 4)
    dropped = identity(model, work=WORK._replace(drop_last=True))
    assert differing(identity(model), dropped) == {"work.drop_last"}
    counted = identity(model, work=WORK._replace(epochs=None, local_steps=3))
    assert differing(identity(model), counted) == {"work.epochs", "work.local_steps"}
    assert not {"work.drop_last", "work.local_steps"} & set(identity(model))


def test_equal_runs_have_one_identity(identity, federation):
    copied = jax.tree.map(lambda leaf: jnp.asarray(np.array(leaf)), federation)
    assert differing(identity(mlp((4, 4, 1), (6,), 4)), identity(mlp((4, 4, 1), (6,), 4), copied)) == set()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.float32])
def test_a_number_is_the_same_in_whatever_type_it_is_given(key, federation, dtype):
    algorithm = fedavg(mlp((4, 4, 1), (6,), 4), WORK)
    state = jax.eval_shape(algorithm.init, key, fljax.fedavg.Hyper(), federation.train)
    identity_of = lambda lr, dropout=None, every=1: run_identity(  # noqa: E731
        algorithm, state, fljax.fedavg.Hyper(lr=lr), federation, key, uniform().of(9), every, dropout
    )
    assert differing(identity_of(0.1, 0.1), identity_of(dtype(0.1), dtype(0.1))) == set()
    assert differing(identity_of(0.1), identity_of(dtype(0.1001))) == {"hyper.lr"}
    assert (
        differing(identity_of(0.1), identity_of(0.1, dtype(0.1)))
        == differing(identity_of(0.1, 0.2), identity_of(0.1, dtype(0.1)))
        == {"dropout"}
    )
    assert differing(identity_of(0.1), identity_of(0.1, every=2)) == {"evaluate_every"}


def test_identity_does_not_depend_on_padding(identity, federation, tmp_path):
    own_model = mlp((4, 4, 1), (6,), 4)._replace(loss=lambda z, y: 2 * CE(z, y))  # its rounds are traced
    pool = jax.tree.map(lambda array: jnp.pad(array, [(0, 5), *[(0, 0)] * (array.ndim - 1)]), federation.train.pool)
    index = jnp.pad(federation.train.index, ((0, 0), (0, 7)))
    wider = federation._replace(train=federation.train._replace(pool=pool, index=index), val=federation.test)
    unpadded = federation._replace(val=federation.test)
    padded = same_shapes([unpadded, wider])[0]
    assert padded.train.index.shape != unpadded.train.index.shape
    assert padded.train.pool.y.shape != unpadded.train.pool.y.shape
    identity_unpadded, identity_padded = identity(own_model, unpadded), identity(own_model, padded)
    assert json.dumps(identity_unpadded) == json.dumps(identity_padded)
    # Folders of before have the sums of what was padded, and are still gone on with; others are not.
    old_identity = identity_unpadded | {"data": _checksum(padded), "pixels": _pixels(padded)}
    assert {name for name in identity_unpadded if identity_unpadded[name] != old_identity[name]} == {"data", "pixels"}
    check_same_run(tmp_path, old_identity, identity_padded)
    with pytest.raises(ValueError, match="holds a run on other labels"):
        check_same_run(tmp_path, identity_unpadded | {"data": 1}, identity_padded)


def test_other_code_is_another_run_unless_several_versions_wrote_the_programs(tmp_path):
    """What one traces does not tell by a checksum whether another traces the same."""
    stored = {"key.impl": "threefry", "algorithm": "own", "program": 1}
    edited, this_version, other_version = stored | {"program": 2}, {"jax": "1"}, {"jax": "2"}
    with pytest.raises(ValueError, match="a run with the same names but other code"):
        check_same_run(tmp_path, stored, edited, [this_version, this_version])
    check_same_run(tmp_path, stored, edited, [this_version, other_version])
    with pytest.raises(ValueError, match="another version of fljax: only one of the two has 'program'"):
        check_same_run(tmp_path, {name: stored[name] for name in ("key.impl", "algorithm")}, stored, [this_version])
    check_same_run(tmp_path, {"algorithm": "own"}, stored, [this_version])  # from before there were checksums of code


def test_black_examples_of_class_0_are_padding_at_the_end_alone():
    x, y = np.array([[0], [2], [0], [3], [0], [0]], np.uint8), np.array([0, 1, 0, 0, 0, 0])
    trimmed = _without_zeros(x, y)
    np.testing.assert_array_equal(trimmed["x"], x[:4])
    np.testing.assert_array_equal(trimmed["y"], y[:4])


def test_models_differ_in_shape_or_in_constants(identity):
    narrow, wide, half = (
        identity(mlp((4, 4, 1), (n,), 4, dtype)) for n, dtype in ((6, "float32"), (32, "float32"), (6, "bfloat16"))
    )
    assert {"model.hidden", "state.server['fc1']['kernel']"} <= differing(narrow, wide)
    assert differing(narrow, half) == {"model.dtype"}


def test_a_users_own_model_is_known_by_its_constants(identity):
    def scaled(scale, table):
        network = mlp((4, 4, 1), (6,), 4)

        def apply(params, x, key):
            return network.apply(params, scale * x + table[:1, None, None, None], key)

        return Model(network.init, apply, network.layers)

    zeros, ones, programs = jnp.zeros(3), jnp.ones(3), {"program", "program.rest"}  # in training and in tests
    assert differing(identity(scaled(1.0, zeros)), identity(scaled(1.0, jnp.zeros(3)))) == set()
    assert differing(identity(scaled(1.0, zeros)), identity(scaled(2.0, zeros))) == programs
    assert differing(identity(scaled(1.0, zeros)), identity(scaled(1.0, ones))) == programs


def test_pixels_count_and_so_do_validation_and_public_data(identity, federation):
    model, train_split, pool = mlp((4, 4, 1), (6,), 4), federation.train, federation.train.pool
    one_pixel = train_split._replace(pool=pool._replace(x=pool.x.at[17, 2, 3, 0].add(0.5)))
    expected = identity(model, federation)
    for changed in (
        federation._replace(train=one_pixel),
        federation._replace(test=federation.test._replace(pool=one_pixel.pool)),
        federation._replace(val=train_split),
        federation._replace(public=pool),
    ):
        assert differing(expected, identity(model, changed)) == {"pixels"}
    with_validation = federation._replace(val=train_split._replace(pool=pool._replace(y=pool.y + 0)))
    other_labels = with_validation._replace(val=with_validation.val._replace(pool=pool._replace(y=pool.y.at[3].add(1))))
    assert differing(identity(model, with_validation), identity(model, other_labels)) == {"pixels"}


CE = optax.softmax_cross_entropy_with_integer_labels


def weighted(weights):
    return jax.jit(lambda logits, y: jnp.asarray(weights)[y] * CE(logits, y))  # which holds the array itself


def shrunk(factor):
    return Work(1, 8, optimizer=lambda lr: optax.sgd(factor * lr))


def pulled(mu):
    return Work(1, 8, terms=(lambda loss, hyper: proximal(loss, mu),))


class Net(nnx.Module):
    def __init__(self, factor, deviation, rngs):
        self.layer = nnx.Linear(16, 4, kernel_init=nnx.initializers.normal(deviation), rngs=rngs)
        self.factor = factor

    def __call__(self, x):
        return self.layer(self.factor * x.reshape(len(x), -1))


def net(factor, deviation=1.0):
    return fljax.from_nnx(lambda rngs: Net(factor, deviation, rngs), (4, 4, 1))


def silent(shift):
    def draw(key, round, size, n):
        return shift + jnp.arange(n, dtype=jnp.int32), jnp.ones(n, bool)

    return Sampling(draw, lambda n_clients: 4, about=())


def mixed(rate):
    def combine(hyper, shared, received, weight):
        return jax.tree.map(lambda new, old: rate * new.mean(0) + (1 - rate) * old, received, shared)

    return combine


@pytest.mark.parametrize(
    ("first_parts", "second_parts", "field"),
    [
        ({"loss": lambda z, y: CE(z, y)}, {"loss": lambda z, y: 2 * CE(z, y)}, "program"),
        ({}, {"loss": lambda z, y: CE(z, y)}, "loss"),
        (
            {"loss": weighted(np.ones(4, np.float32))},
            {"loss": weighted(np.arange(4, dtype=np.float32))},
            "program.rest",
        ),
        ({"work": shrunk(1.0)}, {"work": shrunk(0.5)}, "program"),
        ({}, {"work": pulled(0.1)}, "work.terms"),
        ({"model": net(1.0, 1.0)}, {"model": net(1.0, 2.0)}, "program.rest"),
        ({"sampling": silent(0)}, {"sampling": silent(1)}, "program"),
        ({"sampling": silent(0)}, {"sampling": silent(0)._replace(timing=Timing(9 * (1.0,)))}, "sampling.timing"),
        *slow_rows(  # other tests, or the cases above, say the same of quick ones
            ({"work": pulled(0.1)}, {"work": pulled(0.2)}, "program"),
            ({"work": Work(1, 8, optimizer=partial(shrunk(1.0).optimizer))}, {"work": shrunk(1.0)}, "work.optimizer"),
            ({"work": Work(1, 8, terms=(proximal_to_start,))}, {}, "work.terms"),
            ({"loss": weighted(jnp.ones(4))}, {"loss": weighted(jnp.arange(4.0))}, "program.rest"),
            ({"model": net(1.0)}, {"model": net(2.0)}, "program"),
            ({"sampling": wait_for_all(silent(0), CLOCK)}, {"sampling": wait_for_all(silent(1), CLOCK)}, "program"),
            ({"combine": mixed(0.5)}, {"combine": mixed(0.25)}, "program"),
        ),
    ],
)
def test_functions_that_a_name_does_not_tell_are_known_by_what_they_compute(identity, first_parts, second_parts, field):
    model = logistic_regression((4, 4, 1), 4)

    def identity_of(parts):
        loss = {"loss": parts["loss"]} if "loss" in parts else {}
        other_parts = {name: value for name, value in parts.items() if name != "loss"}
        return identity(**other_parts | {"model": parts.get("model", model)._replace(**loss)})

    first, second = identity_of(first_parts), identity_of(second_parts)
    assert field in differing(first, second)
    assert differing(first, identity_of(first_parts)) == differing(second, identity_of(second_parts)) == set()


OWN = """
import dataclasses
import jax
import fljax
from fljax.rounds import Brick, Combine, averaging, mean, interpolated
from fljax.rounds.named_samplings import uniform

@dataclasses.dataclass(frozen=True)
class Scaled:
    def __call__(self, hyper, memory, shared, received, weight):
        return jax.tree.map(lambda leaf: FACTOR * leaf, shared), memory

class Started:
    def __call__(self, hyper, shared):
        return ()

@fljax.method()
def mine(model, work):
    return averaging(model, work, combine=interpolated(mean, lambda hyper, weight: FACTOR))

def scaled(model):
    return model._replace(apply=lambda params, x, key: model.apply(params, FACTOR * x, key))

def drawn(sampling):
    draw = sampling.draw
    return sampling._replace(draw=lambda *given: jax.tree.map(lambda part: part[::ORDER], draw(*given)))

def stopped(algorithm):
    def round(key, hyper, state, cohort):
        new, metrics = algorithm.round(key, hyper, state, cohort)
        return jax.tree.map(lambda leaf: FACTOR * leaf, new), metrics
    return algorithm._replace(round=round, exchange=None)

way = interpolated(mean, lambda hyper, weight: FACTOR)
METHODS = {
    "method": mine,
    "brick": fljax.fedavg + Brick("mine", "combine", way, ""),
    "dataclass": fljax.fedavg + Brick("mine", "combine", Combine(Scaled(), Started(), name="mine"), ""),
}
"""


def edited(**values):
    """A user's file, of which an edit has changed a number."""
    module = {"__name__": "mine", **values}
    exec(OWN, module)
    return module


@pytest.mark.parametrize("part", ["method", "dataclass", "round", *slow("apply", "draw", "brick")])
def test_a_users_code_that_was_edited_is_another_run(key, federation, part):
    model = logistic_regression((4, 4, 1), 4)

    def identity_of(names):
        network = names["scaled"](model) if part == "apply" else model
        sampling = names["drawn"](uniform()) if part == "draw" else uniform()
        algorithm = names["METHODS"].get(part, fljax.fedavg)(network, WORK)
        algorithm = names["stopped"](algorithm) if part == "round" else algorithm
        hyper = fljax.fedavg.Hyper()
        state = jax.eval_shape(algorithm.init, key, hyper, federation.train)
        return run_identity(algorithm, state, hyper, federation, key, sampling.of(9), 1, None)

    original = identity_of(edited(FACTOR=0.5, ORDER=1))
    assert original == identity_of(edited(FACTOR=0.5, ORDER=1))  # the file is read again when a run goes on
    assert "program" in differing(original, identity_of(edited(FACTOR=0.05, ORDER=-1)))


def test_runs_that_are_described_in_full_are_not_traced(model):
    work = Work(1, 8, optimizer=partial(optax.sgd, momentum=0.9), terms=(proximal_to_start,))
    regression = fljax.regression(model, mean=0.5, deviation=2.0)
    own_loss = regression._replace(loss=Task("regression", lambda z, y: jnp.abs(z[:, 0] - y)))
    for network in (model, fljax.multi_label(model), regression, normalized(model, "centred")):
        assert tells_all(fedavg(network, work), uniform().of(9))
    assert not tells_all(fedavg(own_loss, work), uniform().of(9))


DEEP = "celeba_cnn", "fedbabu_cnn", "resnet18", "vgg16"
"""Networks of many layers, each of which is traced."""


@pytest.mark.parametrize("name", [*sorted(SMALL.keys() - set(DEEP)), *slow(*DEEP)])
def test_our_networks_are_described_in_full(name):
    shape, sizes = SMALL[name]
    network = fljax.MODELS[name](input_shape=shape, n_classes=4, **sizes)
    assert tells_all(fljax.standalone(network, WORK), uniform().of(9))  # which takes different networks too


@pytest.mark.parametrize("name", fljax.ALGORITHMS)
def test_our_methods_are_described_in_full(name):
    special_networks = {"fedbn": "resnet18", **dict.fromkeys(("fedsr", "fedsr_ft", "fedcr"), "variational_cnn")}
    network = special_networks.get(name, "cnn")
    assert tells_all(fljax.ALGORITHMS[name](fljax.MODELS[network]((16, 16, 3), 4), WORK), uniform().of(9))


def test_what_is_traced_is_the_same_on_any_number_of_devices_and_nothing_is_compiled(identity, model):
    own_loss = model._replace(loss=lambda z, y: 3 * CE(z, y))
    expected, compilations = identity(own_loss), []

    def listener(event, seconds, **options):
        compilations.extend([options] if "backend_compile" in event else [])

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        with over_devices():
            assert differing(expected, identity(own_loss)) == set()
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert "program" in expected
    assert compilations == []


@pytest.mark.slow
def test_a_run_with_a_loss_of_its_own_goes_on_bit_for_bit_and_not_with_another(key, federation, tmp_path, no_programs):
    model = fljax.MODELS["logistic_regression"]((4, 4, 1), n_classes=4)

    def train_scaled(scale, n_rounds, folder):
        algorithm = fedavg(model._replace(loss=lambda z, y: scale * CE(z, y)), WORK)
        return train(algorithm, fljax.fedavg.Hyper(), federation, key, n_rounds, folder=tmp_path / folder)

    train_scaled(1.0, 1, "stopped")
    resumed, expected = train_scaled(1.0, 2, "stopped"), train_scaled(1.0, 2, "whole")
    chex.assert_trees_all_equal((resumed.state, resumed.metrics), (expected.state, expected.metrics))
    with (
        no_programs(),
        pytest.raises(ValueError, match=r"holds a run with the same names but other code: .*; use another folder"),
    ):
        train_scaled(2.0, 3, "stopped")


@pytest.mark.slow
def test_clients_of_other_sizes_are_other_data_and_not_other_code(key, averaging, tmp_path, no_programs):
    def train_on(examples):
        federation = linear_groups(6, 2, examples=examples)
        train(averaging, fljax.fedavg.Hyper(), federation, key, 1, folder=tmp_path / "t")

    train_on(20)
    with no_programs(), pytest.raises(ValueError, match=r"holds a run (on|with) ") as error:
        train_on(30)
    assert "code" not in str(error.value)


def test_true_groups_and_triggered_examples_count(identity, federation, model):
    expected, (group, test) = identity(model, federation), (federation.group, federation.test)
    brighter = test._replace(pool=test.pool._replace(x=test.pool.x + 1))
    triggered = identity(model, federation._replace(triggered=test))
    assert differing(expected, identity(model, federation._replace(group=None))) == {"group"}
    assert differing(expected, identity(model, federation._replace(group=group[::-1]))) == {"group"}
    assert differing(expected, triggered) == {"triggered"}
    relabelled = test._replace(pool=test.pool._replace(y=test.pool.y[::-1]))
    for changed in (brighter, relabelled, test._replace(size=test.size.at[2].add(-1))):
        assert differing(triggered, identity(model, federation._replace(triggered=changed))) == {"triggered"}
    absent = federation._replace(there=jnp.arange(9) != 3)
    assert differing(expected, identity(model, absent)) == {"data"}


def test_keys_of_equal_numbers_differ_in_what_is_drawn_of_them(identity, model):
    keys = [jax.random.key(0, impl=impl) for impl in ("rbg", "unsafe_rbg")]
    assert differing(*(identity(model, key=key) for key in keys)) == {"key.impl"}


@pytest.mark.parametrize(
    ("name", "n_rounds"), [("group", 2), *slow_rows(("group", 1), ("triggered", 1), ("triggered", 2))]
)
def test_what_a_federation_gains_or_loses_is_named(key, federation, averaging, tmp_path, name, n_rounds):
    without_part = federation._replace(group=None)
    with_part = without_part._replace(**{name: {"group": federation.group, "triggered": federation.test}[name]})

    def train_on(federation, n_rounds, folder):
        train(averaging, fljax.fedavg.Hyper(), federation, key, n_rounds, folder=tmp_path / folder)

    train_on(without_part, 1, "gains")
    with pytest.raises(ValueError, match=rf"holds a run with {name}=None, not \d+; use another folder or None"):
        train_on(with_part, n_rounds, "gains")
    train_on(with_part, 1, "loses")
    with pytest.raises(ValueError, match=rf"holds a run with {name}=\d+, not None; use another folder"):
        train_on(without_part, n_rounds, "loses")


def test_a_folder_from_before_later_fields_is_resumed(key, federation, averaging, tmp_path):
    def train_for(n_rounds, folder, lr=0.1):
        return train(averaging, fljax.fedavg.Hyper(lr=lr), federation, key, n_rounds, folder=tmp_path / folder)

    train_for(1, "old")
    path = tmp_path / "old/checkpoints/last.msgpack"
    content = serialization.msgpack_restore(path.read_bytes())
    old_identity = {name: value for name, value in json.loads(content["identity"]).items() if name not in LATER}
    path.write_bytes(seal(serialization.msgpack_serialize(content | {"identity": json.dumps(old_identity)})))
    with pytest.raises(ValueError, match=r"holds a run with hyper.lr=0.1, not 0.2"):
        train_for(2, "old", lr=0.2)
    resumed, expected = train_for(2, "old"), train_for(2, "whole")
    chex.assert_trees_all_equal((resumed.state, resumed.metrics), (expected.state, expected.metrics))
    assert json.loads(serialization.msgpack_restore(path.read_bytes())["identity"]).keys() >= set(LATER[:4])


def test_a_folder_of_an_unnamed_sampling_from_before_clocks_is_resumed(identity, model, tmp_path):
    current = identity(model, sampling=silent(0))
    old_identity = {name: value for name, value in current.items() if name not in LATER}
    assert "sampling.timing" in current.keys() - old_identity.keys()
    check_same_run(tmp_path, old_identity, current)
    with pytest.raises(ValueError, match=r"holds a run with sampling.timing=None, not \["):
        check_same_run(tmp_path, current, identity(model, sampling=silent(0)._replace(timing=Timing(CLOCK))))


@pytest.mark.parametrize("make", [wait_for_all, lambda sampling, seconds: with_deadline(sampling, seconds, 2.0)])
def test_a_sampling_with_a_clock_is_described_in_full(model, make):
    assert tells_all(fedavg(model, WORK), make(uniform(), CLOCK).of(9))
    assert tells_all(fedavg(model, WORK), tiers(CLOCK, 3, 2).of(9))


def test_a_method_says_what_it_was_made_with(model, key, federation):
    algorithm = fedprox(model, Work(1, 8, at_once=3), weighting="uniform")
    choices = static_choices(algorithm)
    assert choices["algorithm"] == "fedprox"
    assert choices["choice.weighting"] == "uniform"
    assert choices["work.epochs"] == 1
    assert "work.at_once" not in choices  # clients side by side change no result
    assert repr(algorithm) == "fedprox(weighting='uniform')"
    assert repr(fljax.cfl(model, Work(1, 8), linkage="complete")).startswith("cfl(linkage='complete'")


def test_a_method_that_says_nothing_of_itself_is_known_by_what_it_computes(model, key, federation):
    def unnamed(rate):
        def halved(hyper, shared, received, weight):
            return jax.tree.map(lambda new, old: rate * new.mean(0) + (1 - rate) * old, received, shared)

        return fljax.averaging(model, fljax.trained_on(training_loss(model), Work(1, 8)), combine=halved)

    def identity_of(algorithm):
        state = jax.eval_shape(algorithm.init, key, fljax.LocalHyper(), federation.train)
        return run_identity(algorithm, state, fljax.LocalHyper(), federation, key, uniform().of(9), 1, None)

    assert differing(identity_of(unnamed(0.5)), identity_of(unnamed(0.5))) == set()
    assert differing(identity_of(unnamed(0.5)), identity_of(unnamed(0.25))) == {"program"}


@pytest.mark.slow
def test_another_model_or_other_pixels_in_the_folder_are_refused(key, federation, tmp_path):
    hypers, pool = fljax.fedavg.Hyper(lr=[0.1, 0.2]), federation.train.pool
    other_images = federation._replace(train=federation.train._replace(pool=pool._replace(x=pool.x[::-1])))

    def search_with(width, data=federation):
        return search(fedavg(mlp((4, 4, 1), (width,), 4), Work(1, 8)), hypers, data, key, 1, 1, folder=tmp_path / "s")

    def train_with(model, data=federation):
        train(fedavg(model, Work(1, 8)), fljax.fedavg.Hyper(), data, key, 1, folder=tmp_path / "t")

    search_with(6)
    with pytest.raises(ValueError, match=r"holds a run with model.hidden=\[6\], not \[32\]; use another folder"):
        search_with(32)
    with pytest.raises(ValueError, match=r"holds a run on other examples; use another folder, or restore the data"):
        search_with(6, other_images)
    train_with(mlp((4, 4, 1), (6,), 4))
    with pytest.raises(ValueError, match=r"holds a run on other examples; use another folder, or restore the data"):
        train_with(mlp((4, 4, 1), (6,), 4), other_images)
    with pytest.raises(ValueError, match=r"holds a run with model.dtype='float32', not 'bfloat16'"):
        train_with(mlp((4, 4, 1), (6,), 4, "bfloat16"))


def test_a_folder_of_an_older_version_is_refused_in_a_line(key, federation, averaging, tmp_path):
    train(averaging, fljax.fedavg.Hyper(), federation, key, 1, folder=tmp_path)
    path = tmp_path / "checkpoints" / "last.msgpack"
    content = serialization.msgpack_restore(path.read_bytes())
    old_identity = {name: value for name, value in json.loads(content["identity"]).items() if name != "pixels"}
    path.write_bytes(seal(serialization.msgpack_serialize(content | {"identity": json.dumps(old_identity)})))
    with pytest.raises(ValueError, match="or of another version of fljax: only one of the two has 'pixels'"):
        train(averaging, fljax.fedavg.Hyper(), federation, key, 1, folder=tmp_path)


@pytest.mark.slow
def test_a_run_whose_optimizer_is_a_partial_function_goes_on_and_not_with_other_arguments(
    key, model, federation, tmp_path
):
    def train_with(momentum, n_rounds, folder):
        sgd = FunctionType(optax.sgd.__code__, optax.sgd.__globals__, "sgd", optax.sgd.__defaults__)
        algorithm = fedavg(model, Work(1, 8, optimizer=partial(sgd, momentum=momentum)))  # elsewhere in memory
        return train(algorithm, fljax.fedavg.Hyper(), federation, key, n_rounds, folder=folder)

    train_with(0.5, 1, tmp_path / "stopped")
    resumed, expected = train_with(0.5, 2, tmp_path / "stopped"), train_with(0.5, 2, tmp_path / "whole")
    chex.assert_trees_all_equal((resumed.state, resumed.metrics), (expected.state, expected.metrics))
    with pytest.raises(ValueError, match=r"holds a run with work.optimizer='sgd\(momentum=0.5\)', not 'sgd\(mom"):
        train_with(0.9, 2, tmp_path / "stopped")


@pytest.mark.slow
def test_a_folder_says_which_number_a_method_has_got_or_lost_since(key, federation, tmp_path, no_programs):
    def train_with(n_rounds, *names):
        fields = {name: fljax.number(0.1, name, least=0) for name in names}
        hyper_class = type(
            "OwnHyper", (fljax.LocalHyper,), {"__annotations__": dict.fromkeys(names, fljax.Scalar), **fields}
        )
        own_method = fljax.method(fljax.hyper(hyper_class))(in_turns)
        algorithm = own_method(fljax.MODELS["logistic_regression"]((4, 4, 1), n_classes=4), WORK)
        return train(algorithm, own_method.Hyper(), federation, key, n_rounds, folder=tmp_path / "-".join(names[:1]))

    train_with(1, "mu")
    train_with(1, "tau", "nu")
    with (
        no_programs(),
        pytest.raises(ValueError, match=r"mu holds a run of a method that had no number 'nu', but this one has one; "),
    ):
        train_with(2, "mu", "nu")
    with (
        no_programs(),
        pytest.raises(ValueError, match=r"tau holds a run of a method that had a number 'nu', but this one has none"),
    ):
        train_with(2, "tau")


def test_another_method_choice_or_network_is_named_and_not_by_the_shapes_of_its_state(
    key, federation, model, tmp_path, no_programs
):
    def train_one_round(algorithm, hyper_class=fljax.fedper.Hyper):
        return train(algorithm, hyper_class(), federation, key, 1, folder=tmp_path)

    train_one_round(fljax.fedper(model, WORK))
    wider_model = mlp((4, 4, 1), (9,), 4)
    for other_algorithm, message in (
        (
            fljax.fedper(model, WORK, n_personal=2),
            r"holds a run with choice.n_personal=1, not 2; use another folder or 1",
        ),
        (fljax.fedper(wider_model, WORK), r"holds a run with model.hidden=\[8\], not \[9\]; use"),
    ):
        with no_programs(), pytest.raises(ValueError, match=message):
            train_one_round(other_algorithm)
    with no_programs(), pytest.raises(ValueError, match="holds a run with algorithm='fedper', not 'fedavg'; use"):
        train_one_round(fedavg(model, WORK), fljax.fedavg.Hyper)


def in_turns(model, work):
    """InTurns: FedAvg by another name."""
    return fljax.averaging(model, work)
