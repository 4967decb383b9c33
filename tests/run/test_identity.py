"""What a folder knows of its run: models, constants and pixels that differ are told apart."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, serialization
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

import fljax
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedprox import fedprox
from fljax.client import training_loss
from fljax.models import mlp
from fljax.rounds.sampling import fixed, uniform
from fljax.run.checkpoint import seal
from fljax.run.identity import CLASSES, run_identity, static_choices
from fljax.run.sweep import search
from fljax.run.train import train
from fljax.types import Model, Work


@pytest.fixture
def identity(key, federation):
    """The identity of a run of FedAvg with a model, on a federation."""

    def of(model, federation=federation):
        algorithm, hyper = fedavg(model, Work(1, 8)), fljax.fedavg.Hyper()
        state = jax.eval_shape(algorithm.init, key, hyper, federation.train)
        return run_identity(algorithm, state, hyper, federation, key, uniform().of(9), 1, None)

    return of


def differing(a, b):
    assert json.loads(json.dumps(a)) == a
    return {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}


def test_it_is_the_same_for_the_same_run(identity, federation):
    again = jax.tree.map(lambda leaf: jnp.asarray(np.array(leaf)), federation)
    assert differing(identity(mlp((4, 4, 1), (6,), 4)), identity(mlp((4, 4, 1), (6,), 4), again)) == set()


def test_models_differ_in_shape_or_in_constants(identity):
    narrow, wide, half = (
        identity(mlp((4, 4, 1), (n,), 4, dtype)) for n, dtype in ((6, "float32"), (32, "float32"), (6, "bfloat16"))
    )
    assert {"model.hidden", "state.server['fc1']['kernel']"} <= differing(narrow, wide)
    assert differing(narrow, half) == {"model.dtype"}


def test_a_users_own_model_is_known_by_its_constants(identity):
    def scaled(scale, table):
        plain = mlp((4, 4, 1), (6,), 4)

        def apply(params, x, key):
            return plain.apply(params, scale * x + table[:1, None, None, None], key)

        return Model(plain.init, apply, plain.layers)

    zeros, ones = jnp.zeros(3), jnp.ones(3)
    assert differing(identity(scaled(1.0, zeros)), identity(scaled(1.0, jnp.zeros(3)))) == set()
    assert differing(identity(scaled(1.0, zeros)), identity(scaled(2.0, zeros))) == {"program"}
    assert differing(identity(scaled(1.0, zeros)), identity(scaled(1.0, ones))) == {"program"}


def test_pixels_count_and_so_do_validation_and_public_data(identity, federation):
    model, train_split, pool = mlp((4, 4, 1), (6,), 4), federation.train, federation.train.pool
    one_pixel = train_split._replace(pool=pool._replace(x=pool.x.at[17, 2, 3, 0].add(0.5)))
    plain = identity(model, federation)
    for other in (
        federation._replace(train=one_pixel),
        federation._replace(test=federation.test._replace(pool=one_pixel.pool)),
        federation._replace(val=train_split),
        federation._replace(public=pool),
    ):
        assert differing(plain, identity(model, other)) == {"pixels"}


def with_loss(factor):
    return mlp((4, 4, 1), (6,), 4)._replace(loss=lambda outputs, y: factor * cross_entropy(outputs, y))


def with_optimizer(make):
    return Work(1, 8, optimizer=make)


def regressing(mean):
    plain = mlp((4, 4, 1), (6,), 1)
    return fljax.regression(plain, mean=jnp.full(1, mean), deviation=jnp.ones(1))


class Dense(nnx.Module):
    def __init__(self, scale, rngs):
        self.first, self.scale = nnx.Linear(16, 4, rngs=rngs), scale

    def __call__(self, x):
        return self.scale * self.first(x.reshape(x.shape[0], -1))


def dense(rngs, scale):
    return Dense(scale, rngs)


@pytest.mark.parametrize(
    ("make", "values", "names"),
    [
        (lambda factor: {"model": with_loss(factor)}, (1.0, 2.0), {"program"}),
        (lambda factor: {"work": with_optimizer(lambda lr: optax.sgd(factor * lr))}, (1.0, 2.0), {"program"}),
        (lambda b1: {"work": with_optimizer(partial(optax.adam, b1=b1))}, (0.8, 0.7), {"work.optimizer"}),
        (lambda mean: {"model": regressing(mean)}, (0.0, 1.0), {"program"}),
        (
            lambda scale: {"model": fljax.from_nnx(partial(dense, scale=scale), (4, 4, 1))},
            (1.0, 2.0),
            {"model.made_by"},
        ),
        (lambda n: {"model": fljax.from_nnx(lambda rngs: Dense(n, rngs), (4, 4, 1))}, (1.0, 2.0), {"program"}),
        (lambda impl: {"key": jax.random.key(0, impl=impl)}, ("rbg", "unsafe_rbg"), {"key_impl"}),
        (lambda group: {"group": group}, (None, np.arange(9) % 2), {"data"}),
        (lambda group: {"group": group}, (np.arange(9) % 3, np.arange(9) % 2), {"data"}),
        (lambda of: {"triggered": of}, (True, False), {"data"}),
        (lambda ids: {"sampling": fixed(ids)._replace(about=())}, ((0, 1), (0, 2)), {"program"}),
    ],
)
def test_what_has_no_name_of_its_own_is_told_apart(key, federation, make, values, names):
    def identity(model=None, work=None, key=key, group=None, triggered=False, sampling=None):
        algorithm = fedavg(model or mlp((4, 4, 1), (6,), 4), work or Work(1, 8))
        seen = federation._replace(group=group, triggered=federation.test if triggered else None)
        hyper, draw = fljax.fedavg.Hyper(), (sampling or uniform()).of(9)
        if algorithm.loss is not CLASSES and dict(algorithm.about.model).get("task") == "regression":
            seen = regressed(seen)
        state = jax.eval_shape(algorithm.init, key, hyper, seen.train)
        return run_identity(algorithm, state, hyper, seen, key, draw, 1, None)

    one, other = (identity(**make(value)) for value in values)
    assert differing(one, other) == names
    assert differing(one, identity(**make(values[0]))) == set()


def regressed(federation):
    def targets(data):
        return data._replace(pool=data.pool._replace(y=data.pool.y.astype(jnp.float32)))

    return federation._replace(train=targets(federation.train), test=targets(federation.test))


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

    def identity(algorithm):
        state = jax.eval_shape(algorithm.init, key, fljax.LocalHyper(), federation.train)
        return run_identity(algorithm, state, fljax.LocalHyper(), federation, key, uniform().of(9), 1, None)

    assert differing(identity(unnamed(0.5)), identity(unnamed(0.5))) == set()
    assert differing(identity(unnamed(0.5)), identity(unnamed(0.25))) == {"program"}


@pytest.mark.slow
def test_another_model_or_other_pixels_in_the_folder_are_refused(key, federation, tmp_path):
    hypers, pool = fljax.fedavg.Hyper(lr=[0.1, 0.2]), federation.train.pool
    other_images = federation._replace(train=federation.train._replace(pool=pool._replace(x=pool.x[::-1])))

    def searched(width, data=federation):
        return search(fedavg(mlp((4, 4, 1), (width,), 4), Work(1, 8)), hypers, data, key, 1, 1, folder=tmp_path / "s")

    def trained(model, data=federation):
        train(fedavg(model, Work(1, 8)), fljax.fedavg.Hyper(), data, key, 1, folder=tmp_path / "t")

    searched(6)
    with pytest.raises(ValueError, match=r"holds a run with model.hidden=\[6\], not \[32\]; use another folder"):
        searched(32)
    with pytest.raises(ValueError, match=r"holds a run with pixels="):
        searched(6, other_images)
    trained(mlp((4, 4, 1), (6,), 4))
    with pytest.raises(ValueError, match=r"holds a run with pixels="):
        trained(mlp((4, 4, 1), (6,), 4), other_images)
    with pytest.raises(ValueError, match=r"holds a run with model.dtype='float32', not 'bfloat16'"):
        trained(mlp((4, 4, 1), (6,), 4, "bfloat16"))


def test_a_folder_of_an_older_version_is_refused_in_a_line(key, federation, averaging, tmp_path):
    train(averaging, fljax.fedavg.Hyper(), federation, key, 1, folder=tmp_path)
    path = tmp_path / "checkpoints" / "last.msgpack"
    content = serialization.msgpack_restore(path.read_bytes())
    known = {name: value for name, value in json.loads(content["identity"]).items() if name != "pixels"}
    path.write_bytes(seal(serialization.msgpack_serialize(content | {"identity": json.dumps(known)})))
    with pytest.raises(ValueError, match="or of another version of fljax: 'pixels' is known of one of the two only"):
        train(averaging, fljax.fedavg.Hyper(), federation, key, 1, folder=tmp_path)
