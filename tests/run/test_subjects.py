"""What a run is given: a method, clients, a key, who takes part; something else is refused by its name."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import fljax
from fljax.data.synthetic import linear_groups
from fljax.models import transformer
from fljax.rounds import table
from fljax.run.logging import LogProgress
from fljax.run.sweep import draw, log_uniform, on_validation, search, uniform
from tests.slow import slow

pytestmark = pytest.mark.usefixtures("one_device")

LINEAR = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
IFCA = partial(fljax.ifca, LINEAR)
HYPER = fljax.fedavg.Hyper(lr=0.1)


@pytest.mark.parametrize("run", [fljax.simulate, fljax.train, fljax.sweep])
def test_bad_arguments_are_refused_by_name(run, averaging, federation, key):
    arguments = {"algorithm": averaging, "hyper": HYPER, "federation": federation, "key": key, "n_rounds": 1}
    changes = [
        (
            {"algorithm": fljax.fedavg},
            r"algorithm is <method fedavg>, not an Algorithm; call it: fljax.fedavg\(model, ",
        ),
        ({"algorithm": "fedavg"}, "algorithm is 'fedavg', not an Algorithm; make one with a method"),
        (
            {"federation": (1, 2)},
            r"federation is \(1, 2\), not a Federation; make one with fljax.PARTITIONS, .*own_data\(...\).fed",
        ),
        (
            {"algorithm": fljax.fedavg(fljax.MODELS["logistic_regression"]((28, 28, 1), 10), fljax.Work(1, 8))},
            r"the network takes examples of shape \(28, 28, 1\), but the clients' have shape \(4, 4, 1\); make it with",
        ),
        (
            {"algorithm": fljax.fedavg(LINEAR._replace(loss="ce"), fljax.Work(1, 8))},
            r"loss='ce' of the model is not a function; give one \(logits, labels\) -> \(batch,\), such as optax",
        ),
        (
            {"algorithm": fljax.fedavg(LINEAR._replace(loss=optax.softmax_cross_entropy), fljax.Work(1, 8))},
            r"the model's loss cannot be called with outputs \(batch, 4\) and labels \(batch,\) of int32: ",
        ),
        *(
            (
                {"federation": federation._replace(there=there)},
                rf"^there of the federation is {given}; give a bool array,",
            )
            for there, given in (
                (np.ones(3, bool), r"bool\[3\]"),
                (np.ones(9), r"float64\[9\]"),
                (np.bool_(True), r"bool\[\]"),
                ([True] * 9, "of type list"),
            )
        ),
        ({"key": 0}, r"key=0 is not a random key; give jax.random.key\(0\)"),
        ({"key": jax.random.split(key, 2)}, r"is not a random key; give"),
        ({"key": np.zeros(3, np.uint32)}, r"is not a random key; give"),
        ({"n_rounds": 2**40}, "^n_rounds=1099511627776 is too large; choose n_rounds <= 2147483647$"),
        ({"dropout": np.array("0.5")}, "^dropout=array.* is not a number; give a number$"),
        ({"participation": "0.5"}, "participation='0.5' is not a number; give a number"),
        ({"participation": None}, "participation=None is not a number"),
        ({"participation": True}, "participation=True is not a number"),
        ({"participation": [0.5]}, "participation=.* is not a number"),
        ({"dropout": "0.5"}, "dropout='0.5' is not a number; give a number"),
        ({"sampling": "uniform"}, r"sampling is 'uniform', not a Sampling; make one by fljax.rounds: uniform\(0.5\)"),
    ]
    for change, message in changes:
        changed = arguments | change
        if run is fljax.sweep:
            changed |= {"hypers": changed.pop("hyper"), "n_seeds": 1}
        with pytest.raises(ValueError, match=message):
            run(**changed)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda a: fljax.train(*a, 1, folder=1.5),
            "^folder is of type float, not a path; give a text or a pathlib.Path",
        ),
        (lambda a: fljax.train(*a, 1, devices=1), "^devices=1 are not devices; give some of jax.devices"),
        (lambda a: fljax.train(*a, 1, compiled_ahead="a"), "^compiled_ahead='a' is not a number"),
        (lambda a: fljax.sweep(*a, 1, 1, memory="1"), "^memory='1' is not a number"),
        (lambda a: fljax.sweep(*a, 1, 1, memory=np.inf), "^memory=inf is not a number of bytes; choose"),
        (lambda a: fljax.sweep(a[0], fljax.fedavg.Hyper, *a[2:], 1, 1), "^hypers=<class .*> is not a Hyper; give one"),
        (lambda a: fljax.choose_k(1, *a[1:]), "^make is 1, not a function; give K -> method$"),
        (
            lambda a: fljax.choose_k(IFCA, a[1], None, a[3]),
            "^federation is None, not a Federation",
        ),
        (lambda a: fljax.choose_k(IFCA, *a[1:3], 0), "^key=0 is not a random key"),
        (lambda a: fljax.hold_out_clients(None, 0.5), "^federation is None, not a Federation"),
        (lambda a: fljax.fedavg(LINEAR, fljax.Work(1, 8, terms="a")), "^terms='a' of work is not a tuple of functions"),
        (
            lambda a: fljax.fedavg(LINEAR, fljax.Work(1, 2**31)),
            "^batch_size=2147483648 is too large; choose batch_size <=",
        ),
        (lambda a: fljax.client_model(None, 0), "^models is None, not a ModelTable; give those of fljax.deployed"),
        (lambda a: fljax.save_models("models.npz", None), "^models is None, not a ModelTable"),
        (lambda a: fljax.load_run(None), "^folder is of type NoneType, not a path"),
        (lambda a: fljax.remake(1), "^folder is of type int, not a path"),
        (lambda a: fljax.read_own(None), "^path is of type NoneType, not a path"),
        (lambda a: fljax.load(None), "^name=None is not the name of a data set"),
        (lambda a: fljax.regression("mlp"), "^model is 'mlp', not a Model; make one by fljax.MODELS"),
        (lambda a: fljax.multi_label(None), "^model is None, not a Model"),
        (lambda a: fljax.validated(None), "^model is None, not a Model"),
        (lambda a: on_validation(None), "^federation is None, not a Federation"),
        (lambda a: search(*a, 1, 1, on_rounds=3), "^on_rounds=3 is not a function; give on_rounds"),
        (lambda a: draw(0, HYPER, 2, lr=uniform(0, 1)), "^key=0 is not a random key"),
        (lambda a: log_uniform("1", 2), "^low='1' is not a number"),
        (lambda a: fljax.compare_runs(3), "^folders is of type int, not a path"),
        (
            lambda a: fljax.reach({"loss": [0.1]}, 0.5, n_clients=9, measure=["loss"]),
            r"^measure=\['loss'\] is not a metric",
        ),
        (lambda a: fljax.own_data([[1.0], [2.0]], [0, 1]).halves("a"), "^test_fraction='a' is not a number"),
        (lambda a: fljax.own_data([[1.0], [2.0]], [0, 1]).halves(seed=0.5), r"^seed=0\.5 is not a whole number"),
        (lambda a: fljax.from_frame({}, fljax.Columns(3)), "^columns: label=3 are not names of columns; give a tuple"),
        (lambda a: fljax.from_frame({}, fljax.Columns("a", 3)), "^columns: client=3 is not the name of a column; give"),
        (lambda a: fljax.reach(None, 0.5, n_clients=9), "^metrics is None, not a Mapping"),
        (lambda a: fljax.federation_from_clients(5), "^clients=5 has no clients; give a pair"),
        (lambda a: fljax.build(a[2].train.pool, None), "^owned=None is not a sequence; give the rows of each client"),
        (lambda a: fljax.build(a[2].train.pool, [[0, 1]], public=5), "^public is of type int, not Examples"),
    ],
)
def test_arguments_of_other_types_are_refused_by_name(call, message, averaging, federation, key):
    with pytest.raises(ValueError, match=message):
        call((averaging, HYPER, federation, key))


def test_what_is_no_function_cannot_predict(averaging, federation, key):
    models = fljax.ModelTable(LINEAR.init(key), jnp.zeros(9, jnp.int32))
    models = models._replace(params=jax.tree.map(lambda leaf: leaf[None], models.params))
    for call in (fljax.predictions, fljax.evaluate):
        with pytest.raises(ValueError, match=r"^predict=\[3\] is not a function; give \(params, x\) -> outputs"):
            call([3], models, federation.test)
    with pytest.raises(ValueError, match=r"^predict=None is not a function"):
        fljax.confusion_matrices(None, models, federation.test, 4)
    with pytest.raises(ValueError, match=r"^loss=None is not a function"):
        fljax.evaluate(averaging.predict, models, federation.test, None)


def test_data_is_shown_by_its_types_and_shapes(federation):
    n, (n_clients, capacity) = len(federation.train.pool.y), federation.train.index.shape
    pool = f"Examples(x=float32[{n},4,4,1], y=int32[{n}])"
    train = f"ClientData(pool={pool}, index=int32[{n_clients},{capacity}], size=int32[{n_clients}])"
    assert repr(federation._replace(val=None, test=federation.train)) == (
        f"Federation(train={train}, test={train}, group=int32[9])"
    )
    shapes = jax.eval_shape(lambda data: data, federation.train)
    assert repr(shapes) == train
    assert repr(federation.train._replace(size=3)).endswith("size=3)")


def test_long_values_are_named_by_their_type(averaging, federation, key):
    arguments = {"algorithm": averaging, "hyper": HYPER, "federation": federation, "key": key, "n_rounds": 1}
    for change, message in (
        ({"hyper": federation, "federation": HYPER}, "hyper of type Federation is not a Hyper; give hyperparameters"),
        ({"n_rounds": federation}, "n_rounds of type Federation is not a whole number; give one"),
        ({"key": federation}, "key of type Federation is not a random key; give"),
        ({"dropout": federation}, "dropout of type Federation is not a number; give a number"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            fljax.simulate(**arguments | change)
        assert len(str(error.value)) < 150


def test_several_hypers_are_stacked_first(averaging, federation, key):
    for run in (fljax.simulate, lambda *arguments: fljax.sweep(*arguments, 1)):
        with pytest.raises(
            ValueError, match=r"hyper is a list of 2 Hypers; .* fljax.run.sweep.stack\(\[...\]\) of them"
        ):
            run(averaging, [HYPER, HYPER], federation, key, 1)


@pytest.mark.slow
def test_keys_of_both_forms_are_one(averaging, federation):
    runs = [
        fljax.simulate(averaging, HYPER, federation, make_key(3), 1)[1]
        for make_key in (jax.random.key, jax.random.PRNGKey)
    ]
    np.testing.assert_array_equal(runs[0]["client_loss"], runs[1]["client_loss"])


def test_a_row_of_a_table_that_is_none():
    with pytest.raises(
        ValueError, match=r"^rows: 0 is not a row; give a sequence of ids for each round, such as \[\[0, 1\], \[2"
    ):
        table([0, 1])


def test_numbers_that_the_methods_own_class_should_have(averaging, key):
    @fljax.hyper
    class Bare:
        """Numbers."""

        a: fljax.Scalar = fljax.number(1.0, "a")

    with pytest.raises(
        ValueError, match=r"^hyper=Bare\(a\) has no field 'lr_of'.* let it inherit from fljax.LocalHyper"
    ):
        fljax.simulate(averaging, Bare(), linear_groups(2, 1, examples=8), key, 1)


def clients_of(shape=(4,), classes=3, dtype=np.int32, n=3):
    x, y = np.zeros((6 * n, *shape), np.float32), np.arange(6 * n).astype(dtype) % classes
    return fljax.federation_from_arrays(x, y, np.repeat(np.arange(n), 6))


@pytest.fixture(scope="module")
def begun_ditto():
    """A method, its numbers, and a state of it."""
    model, work = fljax.MODELS["logistic_regression"]((4,), 3), fljax.Work(1, 8)
    algorithm, hyper = fljax.ditto(model, work), fljax.ditto.Hyper(lr=0.1)
    return algorithm, hyper, algorithm.init(jax.random.key(0), hyper, clients_of().train)


@pytest.mark.parametrize("function", [*slow(fljax.evaluate_new_clients), fljax.deployed])
def test_clients_after_a_run_are_checked_as_for_a_run(begun_ditto, function, key):
    algorithm, hyper, state = begun_ditto
    changes = [
        ({"federation": clients_of(classes=5)}, "there is a label 4, but the network has 3 outputs; give it 5 or more"),
        (
            {"federation": clients_of((5,))},
            r"the network takes examples of shape \(4,\), but the clients' have shape \(5,\)",
        ),
        ({"federation": clients_of(dtype=np.float32)}, "labels are float32 of shape .*; give whole numbers"),
        ({"federation": (1, 2)}, r"federation is \(1, 2\), not a Federation"),
        ({"key": 0}, "key=0 is not a random key"),
        ({"state": fljax.State(state.server, ())}, "^state is of another method.*; give the state of a run of ditto$"),
        ({"state": tuple(state)}, r"^state is of type tuple, not a State; give .* fljax.train\(...\).state$"),
        ({"hyper": fljax.ifca.Hyper()}, "has '.*', which ditto does not read"),
    ]
    if function is fljax.deployed:
        other_state = algorithm.init(key, hyper, clients_of(n=5).train)
        changes += [
            ({"state": other_state}, "another method, network or federation"),
            ({"n_rounds": 0}, "n_rounds=0 is not pos"),
        ]
    for change, message in changes:
        arguments = {
            "algorithm": algorithm,
            "hyper": hyper,
            "state": state,
            "federation": clients_of(),
            "key": key,
        } | change
        if function is fljax.evaluate_new_clients:
            arguments["newcomers"] = arguments.pop("federation")
        with pytest.raises(ValueError, match=message):
            function(**arguments)


def test_what_is_evaluated_is_checked(begun_ditto, key):
    algorithm, _, state = begun_ditto
    models, nameless = (
        fljax.tree.everyone(state.server, 3),
        algorithm._replace(about=algorithm.about._replace(model=())),
    )
    cases = [
        (clients_of(classes=5).test, "there is a label 4, but the network has 3 outputs; give it 5 or more"),
        (clients_of((5,)).test, r"predict cannot take examples of shape \(5,\): .*kernel"),
        (clients_of(dtype=np.float32).test, "labels are float32 of shape .*; give whole numbers"),
        (clients_of(), "data is of type Federation, not a ClientData; give a split, such as federation.train"),
    ]
    for data, message in cases:
        with pytest.raises(ValueError, match=message):
            fljax.evaluate(algorithm.predict, models, data)
    with pytest.raises(ValueError, match="there is a label 4, but the network has 3 outputs"):
        fljax.evaluate_new_clients(nameless, begun_ditto[1], state, clients_of(classes=5), key)
    with pytest.raises(ValueError, match="not a ClientData"):
        fljax.confusion_matrices(algorithm.predict, models, clients_of(), 3)


@pytest.mark.parametrize("run", [fljax.simulate, fljax.train, fljax.sweep])
@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (
            lambda model, n: np.zeros(n - 1),
            r"clients of shape \(8,\) for 9 clients; return one row per client, \(9, ...\)",
        ),
        (lambda model, n: np.zeros(()), r"clients of shape \(\) for 9"),
        (lambda model, n: {"mine": np.zeros((1, n))}, r"clients\['mine'\] of shape \(1, 9\)"),
        (lambda model, n: model, r"clients\['fc1'\]\['bias'\] of shape"),
    ],
)
def test_what_clients_keep_has_a_row_for_each(averaging, federation, key, run, clients, message):
    def init(key, hyper, data):
        state = averaging.init(key, hyper, data)
        return fljax.State(state.server, clients(state.server, data.n_clients))

    own_method = averaging._replace(init=init, exchange=None)
    with pytest.raises(ValueError, match=message):
        run(own_method, HYPER, federation, key, n_rounds=1, **({"n_seeds": 1} if run is fljax.sweep else {}))


def test_wrong_outputs_of_an_own_predict_are_refused(averaging, federation, key):
    predict = averaging.predict
    nameless = averaging._replace(about=averaging.about._replace(model=()))
    for own_predict, message in (
        (lambda params, x: (predict(params, x), params), "predict returned a tuple for one example; return outputs"),
        (lambda params, x: predict(params, x).argmax(-1), r"predict returned an array \(1,\) for one example"),
    ):
        with pytest.raises(ValueError, match=message):
            fljax.simulate(nameless._replace(predict=own_predict), HYPER, federation, key, 1)


@pytest.mark.parametrize("says_model", [True, False])
def test_what_is_deployed_is_a_table_of_models(averaging, federation, key, says_model):
    about = averaging.about if says_model else averaging.about._replace(model=())
    for deploy, message in (
        (
            lambda params: params,
            r"what deploy returned is .*, not a ModelTable; return fljax.ModelTable\(params, row\)",
        ),
        (lambda params: fljax.ModelTable(params, jnp.zeros(9, jnp.int32)), "a ModelTable with leaves of .* rows; give"),
    ):
        own_method = averaging._replace(deploy=lambda key, hyper, state, data, f=deploy: f(state.server), about=about)
        with pytest.raises(ValueError, match=message):
            fljax.simulate(own_method, HYPER, federation, key, 1)


def test_a_round_gives_its_metrics_too(averaging, federation, key):
    own_method = averaging._replace(round=lambda *arguments: averaging.round(*arguments)[0], exchange=None)
    with pytest.raises(ValueError, match=r"^a round returned a State; return a State and the metrics"):
        fljax.simulate(own_method, HYPER, federation, key, 1)


def test_loggers_without_their_methods_are_refused(averaging, federation, key):
    with pytest.raises(ValueError, match=r"progress is of type .*, without prepare, .*; for a logger of rounds give"):
        fljax.train(averaging, HYPER, federation, key, 1, progress=print)
    with pytest.raises(ValueError, match=r"loggers: one is of type .*, without log\(round, values\)"):
        LogProgress([print])


def test_a_number_of_numpy_is_the_same_choice(model):
    work = fljax.Work(1, 8)
    assert fljax.ifca(model, work, n_clusters=np.int64(3)) is fljax.ifca(model, work, n_clusters=3)
    assert fljax.compose("fedavg")(model, work, weighting=np.str_("uniform")) is fljax.fedavg(
        model, work, weighting="uniform"
    )


class Reads(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        positions = nn.Embed(6, 4)(jnp.arange(6))  # of as many as an example is long, not of the tokens
        return nn.Dense(3)((nn.Embed(4, 4)(x) + positions[None]).mean(axis=1))


class ReadsNnx(nnx.Module):
    def __init__(self, rngs):
        self.places, self.words = nnx.Embed(6, 4, rngs=rngs), nnx.Embed(4, 4, rngs=rngs)
        self.head = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.head((self.words(x) + self.places(jnp.arange(6))[None]).mean(axis=1))


@pytest.mark.parametrize(
    "model",
    [
        transformer((6,), 3, vocabulary=4, width=8, n_layers=1, n_heads=1),
        fljax.from_linen(Reads(), (6,), input_dtype=jnp.int32),
        fljax.from_nnx(lambda rngs: ReadsNnx(rngs), (6,), input_dtype=jnp.int32),
    ],
    ids=["transformer", "own", "nnx"],
)
def test_tokens_beyond_a_networks_are_refused(key, model):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 8, (12, 6)).astype(np.int32), np.zeros(12, np.int32)
    federation = fljax.build(fljax.Examples(x, y), np.split(np.arange(12), 2), split=(0.5, 0.0, 0.5), seed=0)
    algorithm = fljax.fedavg(model, fljax.Work(1, 8))
    with pytest.raises(ValueError, match=r"there is a token 7, but the vocabulary is 4; choose 8 or more"):
        fljax.simulate(algorithm, HYPER, federation, key, 1)
    negative_tokens = fljax.build(
        fljax.Examples(x % 4 - 1, y), np.split(np.arange(12), 2), split=(0.5, 0.0, 0.5), seed=0
    )
    with pytest.raises(ValueError, match=r"there is a token -1, but tokens are 0, 1, 2, \.\.\.; number the padding"):
        fljax.simulate(algorithm, HYPER, negative_tokens, key, 1)


@pytest.mark.slow
def test_random_keys_in_a_state_are_kept_on_disk(averaging, federation, key, tmp_path):
    def init(key, hyper, data):
        state = averaging.init(key, hyper, data)
        return fljax.State((state.server, key), jax.random.split(key, data.n_clients))

    def round(key, hyper, state, cohort):
        (server, server_key), client_keys = state.server, state.clients
        next_state, metrics = averaging.round(key, hyper, fljax.State(server, ()), cohort)
        server_key, client_keys = (
            jax.random.fold_in(server_key, 1),
            jax.vmap(lambda client_key: jax.random.fold_in(client_key, 2))(client_keys),
        )
        draws = jax.random.uniform(server_key) + jax.vmap(jax.random.uniform)(client_keys)
        return fljax.State((next_state.server, server_key), client_keys), metrics | {"drawn": draws}

    def deploy(key, hyper, state, data):
        return averaging.deploy(key, hyper, fljax.State(state.server[0], ()), data)

    algorithm = averaging._replace(init=init, round=round, deploy=deploy, exchange=None, join=None)
    arguments = (algorithm, HYPER, federation, key)
    expected = fljax.train(*arguments, 4, participation=0.5)
    fljax.train(*arguments, 2, participation=0.5, folder=tmp_path)
    resumed = fljax.train(*arguments, 4, participation=0.5, folder=tmp_path)
    np.testing.assert_array_equal(resumed.metrics["drawn"], expected.metrics["drawn"])
    assert len(np.unique(expected.metrics["drawn"])) == expected.metrics["drawn"].size
    for leaf, expected_leaf in zip(jax.tree.leaves(resumed.state), jax.tree.leaves(expected.state), strict=True):
        assert leaf.dtype == expected_leaf.dtype
        assert bool((leaf == expected_leaf).all())


@pytest.mark.parametrize("run", [fljax.simulate, fljax.sweep, *slow(fljax.train, search)])
def test_a_convolution_that_is_given_its_pixels_in_another_shape_is_refused_in_one_sentence(run, key):
    def run_with(shape, model):
        rng = np.random.default_rng(0)
        x, y, clients = rng.random((40, *shape), np.float32), rng.integers(0, 3, 40), np.arange(40) % 4
        federation = fljax.federation_from_arrays(x, y, clients)
        algorithm = fljax.fedavg(fljax.MODELS[model]((12, 12, 1), n_classes=3), fljax.Work(1, 8))
        seeds = {"n_seeds": 1} if run in (fljax.sweep, search) else {}
        return lambda key: run(algorithm, HYPER, federation, key, n_rounds=1, **seeds)

    for shape in ((12, 12), (1, 12, 12)):
        message = rf"^the network takes examples of shape \(12, 12, 1\), but .* have shape \({shape[0]}, .*; make it"
        with pytest.raises(ValueError, match=message):
            run_with(shape, "mnist_cnn")(key)
    flat_run = run_with((144,), "logistic_regression")
    if run in (fljax.simulate, fljax.sweep):  # which can be traced, so that nothing is compiled
        jax.eval_shape(flat_run, key)
    else:
        flat_run(key)


@pytest.mark.parametrize("run", [fljax.sweep, search])
def test_a_sweep_of_functions_with_too_few_outputs_is_refused_as_a_run_is(run, federation, key):
    model = fljax.from_functions(lambda _: {"w": jnp.zeros((16, 2))}, lambda p, x: x.reshape(-1, 16) @ p["w"])
    with pytest.raises(ValueError, match=r"^there is a label 3, but the network has 2 outputs; give it 4 or more"):
        run(fljax.fedavg(model, fljax.Work(1, 8)), HYPER, federation, key, n_seeds=1, n_rounds=1)
