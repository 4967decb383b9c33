"""The plan against sizes worked out by hand, and against the run that it foretells."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fljax
from fljax.algorithms.ditto import ditto
from fljax.algorithms.fedavg import fedavg
from fljax.client.map import AT_ONCE, MANY
from fljax.data.synthetic import linear_groups
from fljax.devices.mesh import over_devices
from fljax.models import cnn, mlp, resnet18
from fljax.rounds import least_recent, power_of_choice
from fljax.rounds.named_samplings import poisson, uniform
from fljax.rounds.sampling import Draw
from fljax.run.plan import Probe, Speed, _candidates, _fit, plan, step_flops
from fljax.run.privacy import with_target
from fljax.run.sweep import memory
from fljax.types import Work
from tests.slow import slow


@pytest.fixture(scope="module")
def federation():
    """Two clients on each device: a plan compiles the round of all and of half of them."""
    return linear_groups(4, 2, examples=30, ragged=0.5)


@pytest.fixture
def make_plan(key, model, federation):
    return partial(plan, partial(fedavg, model), Work(2, 4), model, fljax.fedavg.Hyper(), federation, key)


def test_what_is_held(key, make_plan, model, federation):
    result = make_plan(participation=0.5, compile="fast")
    n_parameters = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, key)))
    assert result.parameters == n_parameters
    assert result.state == 4 * n_parameters  # FedAvg keeps one model and nothing per client
    assert result.data >= federation.train.pool.x.nbytes
    arrays = jax.tree.leaves((federation.train, federation.test, federation.val))
    # A pool of all splits counts once.
    assert result.data == sum({id(array): array.nbytes for array in arrays}.values())
    assert result.fixed >= federation.train.pool.x.nbytes + result.state
    # A participant has its trained model at least, and its row of metrics is small beside a few copies of it.
    assert 4 * n_parameters <= result.per_client <= 40 * n_parameters
    assert result.largest_cohort == federation.train.n_clients
    assert result.n_devices == jax.device_count()
    assert result.at_once == 1
    assert result.rounds_per_second > 0


def test_a_rounds_work_is_that_of_as_many_clients_as_are_drawn_on_average(make_plan):
    """Places are kept for more."""
    flops_of_quarter, flops_of_all = (make_plan(quick=True, sampling=poisson(share)).flops for share in (0.25, 1.0))
    assert flops_of_quarter == pytest.approx(flops_of_all / 4)


@pytest.mark.slow
def test_rounds_whose_clients_are_asked_for_losses_are_foretold_to_take_longer(make_plan):
    asked, not_asked = (
        make_plan(quick=True, sampling=sampling).rounds_per_second
        for sampling in (power_of_choice(0.25, candidates=4), uniform(0.25))
    )
    assert asked < 0.9 * not_asked


def test_what_a_sampling_remembers_is_counted(make_plan, federation):
    remembered, nothing = (
        make_plan(quick=True, sampling=sampling).state for sampling in (least_recent(0.25), uniform(0.25))
    )
    assert remembered == nothing + 4 * federation.train.n_clients


def test_rounds_are_drawn_as_in_a_run_if_that_takes_time(key, model, federation):
    algorithm, hyper = fedavg(model, Work(2, 4)), fljax.fedavg.Hyper()
    for sampling, expected in ((least_recent(0.5), Draw(least_recent(0.5), 2)), (uniform(0.5), 2)):
        assert Probe(algorithm, hyper, federation, key, None, sampling)._draw(2) == expected


@pytest.mark.slow
def test_the_time_of_the_first_state_is_no_rounds(key, model, federation):
    def slow_to_begin(work):
        algorithm = fedavg(model, work)

        def init(*arguments):
            square = jax.lax.fori_loop(0, 1000, lambda _, m: m @ m, jnp.eye(256))  # half a second and more
            return jax.tree.map(lambda leaf: leaf + 0 * square[0, 0].astype(leaf.dtype), algorithm.init(*arguments))

        return algorithm._replace(init=init)

    result = plan(slow_to_begin, Work(1, 8), model, fljax.fedavg.Hyper(), federation, key, devices=jax.devices()[:1])
    assert result.rounds_per_second > 10  # hundreds; three rounds and what they waited for make less


@pytest.mark.slow
def test_what_each_client_keeps_is_counted(key, make_plan, model, federation):
    result = plan(partial(ditto, model), Work(2, 4), model, fljax.ditto.Hyper(), federation, key, memory=1)
    n_clients = federation.train.n_clients
    assert result.state == (1 + n_clients) * make_plan(memory=1).state


@pytest.fixture
def compiled_once(monkeypatch):
    """A probe compiles each program once for the whole test."""
    programs, compile_program = {}, Probe.compiled

    def compile_once(probe, cohort):
        if cohort not in programs:
            programs[cohort] = compile_program(probe, cohort)
        return programs[cohort]

    monkeypatch.setattr(Probe, "compiled", compile_once)


@pytest.mark.slow
@pytest.mark.parametrize("n_devices", [1, *slow(2)])
def test_the_cohort_that_fits_is_compiled_as_foretold(key, compiled_once, n_devices):
    federation, model, devices = (
        linear_groups(24, 2, examples=24),
        mlp((4, 4, 1), (2000,), 4),
        jax.devices()[:n_devices],
    )
    arguments = (partial(fedavg, model), Work(1, 8), model, fljax.fedavg.Hyper(), federation, key)
    plan_of_all = plan(*arguments, memory=1, participation=1 / 24, devices=devices)
    plan_of_some = plan(*arguments, memory=plan_of_all.needs(24) * 3 // 5, devices=devices)
    assert np.isnan(plan_of_some.rounds_per_second)  # all clients do not fit: nothing is run
    with over_devices(devices) as mesh:
        probe = Probe(fedavg(model, Work(1, 8)), *arguments[3:], mesh)
        bytes_compiled = {n: memory.peak(probe.compiled(n)) for n in (24, plan_of_some.largest_cohort)}
    assert bytes_compiled[24] == pytest.approx(plan_of_all.needs(24), rel=0.01)
    assert 0.7 * plan_of_some.limit <= bytes_compiled[plan_of_some.largest_cohort] <= plan_of_some.limit
    assert bytes_compiled[plan_of_some.largest_cohort] == pytest.approx(
        plan_of_some.needs(plan_of_some.largest_cohort), rel=0.3
    )
    # A participant has its model and what it trains it with, whatever the cohort that was asked for.
    assert 1.5 * 4 * plan_of_all.parameters < plan_of_all.per_client < 3 * 4 * plan_of_all.parameters


@pytest.mark.parametrize("n_devices", [1, 3, 8])
@pytest.mark.parametrize("tests", [0, 300, 400])
def test_what_fits_by_hand(n_devices, tests):
    """A participant takes 50 bytes, all else 100, the tests of everyone so many whoever takes part."""

    def peak_of(cohort):
        assert 1 <= cohort <= 100
        return max(100 + 50 * -(-cohort // n_devices), tests)

    fit_to, largest_peak = partial(_fit, peak_of, 100, n_devices, 20), peak_of(100)
    assert fit_to(largest_peak) == (100, 50, 100)
    assert fit_to(largest_peak - 1)[2] == n_devices * (-(-100 // n_devices) - 1)
    assert fit_to(tests + 105) == (100, 50, min(100, n_devices * ((tests + 5) // 50)))
    assert fit_to(tests - 1)[2] == 0


def test_a_participant_takes_its_model_at_least():
    fixed, per_client, fits = _fit(lambda cohort: 3000, 100, 2, 20, 3000)  # testing everyone hides their training
    assert (fixed, per_client, fits) == (3000 - 50 * 20, 20, 100)
    assert _fit(lambda cohort: 3000, 3, 8, 20, 3000) == (2980, 20, 3)  # fewer clients than devices
    assert _fit(lambda cohort: 3000, 3, 8, 20, 2999)[2] == 0


def test_a_line_that_says_too_much_is_put_right():
    peaks = {5: 30, 10: 90, 20: 100, 40: 200}  # the line through 20 and 40 says that 10 take 50
    peak_of = lambda cohort: int(np.interp(cohort, list(peaks), list(peaks.values())))  # noqa: E731
    _, _, fits = _fit(peak_of, 40, 1, 1, 50)
    assert 5 <= fits < 10
    assert peak_of(fits) <= 50


def test_the_devices_of_a_cpu_share_the_machine():
    with over_devices():
        shared = memory.device_memory()
    assert shared == memory.device_memory() // jax.device_count()


def test_flops_of_a_dense_net_by_hand(federation):
    shape = federation.train.pool.x.shape[1:]
    flops = step_flops(mlp(shape, (64,), 10), federation, Work(1, 32))
    n_inputs = int(np.prod(shape))
    # The first layer needs no gradient for its input; the loss is a product with the examples' weights.
    assert flops == 2 * 32 * (2 * n_inputs * 64 + 3 * 64 * 10) + 2 * 2 * 32


def images(*shape):
    x = np.zeros((4, *shape), np.float32)
    return fljax.federation_from_arrays(x, np.arange(4) % 2, np.arange(4) // 2, part=np.array(["train", "test"] * 2))


@pytest.mark.parametrize("channels", [1, 6], ids=["fused", "own"])  # with few channels a block is one product
@pytest.mark.parametrize("kernel", [3, 5])
def test_flops_of_convolutions_are_those_of_their_definition(channels, kernel):
    """Whatever runs: Winograd's form has fewer products, a fused first block more."""
    model = cnn((8, 8, channels), 10, (16, 32), kernel, padding="SAME", pool="each", hidden=(24,))
    flops = step_flops(model, images(8, 8, channels), Work(1, 5))
    first_layer, second_layer = 64 * kernel**2 * channels * 16, 16 * kernel**2 * 16 * 32
    assert flops == 2 * 5 * (2 * first_layer + 3 * second_layer + 3 * (2 * 2 * 32 * 24 + 24 * 10)) + 2 * 2 * 5


@pytest.mark.slow
def test_flops_of_a_resnet_are_those_that_people_know():
    forward = 2 * 0.5554e9  # ResNet18 on 32 x 32 images, fully counted
    assert step_flops(resnet18(), images(32, 32, 3), Work(1, 1)) == pytest.approx(3 * forward, rel=2e-3)


def test_flops_in_a_loop_count_as_often_as_it_runs():
    init = lambda key: {"cell": jnp.ones((6, 6))}  # noqa: E731
    apply = lambda params, x: lax.scan(lambda h, _: (jnp.tanh(h @ params["cell"]), None), x, length=7)[0]  # noqa: E731
    flops = step_flops(fljax.from_functions(init, apply), images(6), Work(1, 5))
    assert flops == 2 * 5 * 6 * 6 * 7 * 3 + 2 * 2 * 5


def embedded(params, x):
    return params["words"][x].mean(1) @ params["head"]


@pytest.mark.parametrize("kind", ["numbers", "labels", "tokens"])
def test_flops_of_every_kind_of_examples(kind):
    """Several targets, several labels and whole-number inputs reach the network as training sees them."""
    rng, n_outputs = np.random.default_rng(0), 3
    x = rng.normal(size=(40, 6)).astype(np.float32)
    network = mlp((6,), (8,), n_outputs)
    if kind == "numbers":
        model, y = fljax.regression(network), rng.normal(size=(40, n_outputs)).astype(np.float32)
    elif kind == "labels":
        model, y = fljax.multi_label(network), rng.integers(2, size=(40, n_outputs)).astype(np.float32)
    else:
        shapes = {"words": (5, 8), "head": (8, n_outputs)}
        init = lambda key: {name: jax.random.normal(key, shape) for name, shape in shapes.items()}  # noqa: E731
        model, x, y = fljax.from_functions(init, embedded), rng.integers(5, size=(40, 6)), rng.integers(3, size=40)
    federation = fljax.federation_from_arrays(x, y, np.arange(40) % 4)
    assert step_flops(model, federation, Work(1, 8)) > 2 * 8 * 2 * 8 * n_outputs  # the last layer and its gradient


def test_a_target_epsilon_is_planned_with_the_noise_that_it_asks_for(key, model, federation, monkeypatch):
    private, hypers = fljax.compose("fedavg+client_dp"), []
    monkeypatch.setattr("fljax.run.plan.Probe", lambda algorithm, hyper, **_: hypers.append(hyper) or FakeProbe())
    monkeypatch.setattr("fljax.run.plan.peak", lambda cohort: 10 * cohort)
    hyper = private.Hyper(target_epsilon=8.0, delta=1e-5)
    result = plan(partial(private, model), Work(1, 4), model, hyper, federation, key, n_rounds=5)
    assert result.rounds_per_second == 7
    assert [probed.target_epsilon for probed in hypers] == [None]
    assert hypers[0].noise_multiplier == with_target(hyper, uniform(1.0), Work(1, 4), 5).noise_multiplier > 0


class FakeProbe:
    """Programs of no size, and no rounds."""

    state = ()

    def compiled(self, cohort):
        return cohort

    def speed(self, *_):
        return Speed(7, True, 0.0)


def test_rounds_that_take_too_long_are_forecast_and_not_run(make_plan, monkeypatch):
    monkeypatch.setattr("fljax.run.plan.PROBE_SECONDS", 1e-9)
    monkeypatch.setattr(Probe, "_rounds_per_second", lambda *_: pytest.fail("a round was run"))
    result = make_plan(participation=0.5)  # as above: the same programs
    assert not result.measured
    assert 0 < result.rounds_per_second < float("inf")
    assert result.compile_seconds > 0


@pytest.mark.parametrize("fastest", [1, 3])
def test_the_fastest_candidate_is_chosen(make_plan, model, monkeypatch, fastest):
    rates = {fedavg(model, Work(2, 4, n)): 9.0 if n == fastest else 5.0 for n in (1, 3)}
    monkeypatch.setattr(Probe, "speed", lambda self, *_: Speed(rates[self.algorithm], True, 2.5))
    result = make_plan(candidates=(1, 3), memory=10**12)
    assert (result.at_once, result.rounds_per_second, result.compile_seconds) == (fastest, 9.0, 2.5)
    assert result.limit == 9 * 10**11


def test_many_clients_of_a_network_without_convolutions_are_tried_side_by_side():
    dense, convolutional, work = mlp((4, 4, 1), (6,), 4), cnn((4, 4, 1), 4, (2,), hidden=()), Work(1, 4)

    def candidates_of(model, n_clients, work=work):
        return _candidates(work, model, n_clients, None)

    if jax.default_backend() == "cpu":
        assert candidates_of(dense, MANY) == [1, 16, AT_ONCE]
        assert candidates_of(convolutional, MANY) == candidates_of(dense, MANY - 1) == [1]
    assert candidates_of(dense, MANY, work._replace(at_once=3)) == [3]


def test_an_accelerator_trains_no_more_side_by_side_than_take_part(model, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _candidates(Work(1, 8), model, 5, None) == [5]
    assert _candidates(Work(1, 8), model, 20, None) == [16, 20]


def test_bad_input(key, make_plan, model, federation):
    with pytest.raises(ValueError, match="memory=0"):
        make_plan(memory=0)
    with pytest.raises(ValueError, match="candidates"):
        make_plan(candidates=(0,))
    with pytest.raises(ValueError, match=r"candidates=2\.5 is not a whole number"):
        make_plan(candidates=(1, 2.5))
    with pytest.raises(ValueError, match=r"lr=.* is not one number"):
        plan(partial(fedavg, model), Work(2, 4), model, fljax.fedavg.Hyper(lr=[0.1, 0.2]), federation, key)
    with pytest.raises(ValueError, match="has no field 'personal_lr', which the method reads"):
        plan(partial(ditto, model), Work(2, 4), model, fljax.fedavg.Hyper(), federation, key)
    with pytest.raises(ValueError, match="participation"):
        make_plan(participation=1.5)
