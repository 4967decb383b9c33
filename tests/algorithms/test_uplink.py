"""Chains of transforms in whole methods: those of no effect change nothing, and every brick goes into every method."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.algorithms import ALGORITHMS, compose
from fljax.devices.mesh import over_devices, replicated
from fljax.rounds.bricks import BRICKS
from fljax.rounds.cohort import sample_cohort
from fljax.rounds.uplink import Linked, chained
from fljax.rounds.uplink.message import shapes_of
from fljax.run.one_round import as_traced, split_key
from fljax.run.train import run_chunk
from fljax.types import State
from tests.algorithms.table import CASES
from tests.slow import slow, slow_rows

LINKS = [brick for brick in BRICKS.values() if brick.slot == "uplink"]
DOWN = [brick for brick in BRICKS.values() if brick.slot == "downlink"]
SENDING = [name for name in ALGORITHMS if "uplink" in ALGORITHMS[name].slots]
HEARING = [name for name in ALGORITHMS if "downlink" in ALGORITHMS[name].slots and name in CASES]
MANY = ("cgpfl", "fedcps", "fedcr", "feddyn", "fedem", "fedma", "mime", "scaffold")
"""Their clients are sent more than one model, parts of several, or not all the same; or the mean gradient too: Mime."""
CHAIN = "clip_update+gaussian_noise+laplace_noise+error_feedback+top_k+quantize"
NEUTRAL = {"clip": jnp.inf, "noise_std": 0.0, "noise_scale": 0.0, "top_share": 1.0, "bits": 32.0}
SOME = {"clip": 0.1, "noise_std": 1e-3, "noise_scale": 1e-3}
BEFORE = ("clip_update", "gaussian_noise", "laplace_noise", "low_rank", "random_k")
AFTER = ("top_k", "quantize", "sign")
PRIVATE = ("adaptive_client_dp", "banded_client_dp")
LAST = {"mean": ("secure_sum", *PRIVATE), "sum": ("secure_sum",), "each": ("fools_gold",)}
"""What the server sees -> the last bricks of chains of all that can be in one, those that tell it least. Low rank
comes early: it leaves rounding errors where numbers were 0, and of those a sign is the sign of a rounding error."""
ROUNDS, COHORT = 3, 6
QUICK = "fedper"
"""A method with parts that stay with the clients; every other whose clients send something is slow."""
EACH = pytest.mark.parametrize("name", [QUICK, *slow(*(name for name in SENDING if name != QUICK))])


def of(name, bricks, model, work):
    """The first case of a method, which is its smallest, with bricks added."""
    case = next(case for case_name, case in CASES.items() if case_name.partition("-")[0] == name)
    method = compose("+".join([name, *bricks.split("+")] if bricks else [name]))
    epochs = work._replace(epochs=1) if case.one_epoch else work
    return method(case.model or model, epochs, **case.choices), {"lr": 0.1, **case.numbers}, method.Hyper


def run(method, numbers, federation, key, dropout=None, chunks=(ROUNDS,)):
    """(final state, metrics) on the host."""
    algorithm, case_numbers, Hyper = method
    hyper, rate = as_traced(Hyper(**case_numbers, **numbers)), as_traced(dropout)
    state, n_done, rows = jax.jit(algorithm.init)(split_key(key).init, hyper, federation.train), 0, []
    for count in chunks:
        chunk_arguments = jnp.int32(1), jnp.int32(sum(chunks)), state, jnp.int32(n_done), jnp.int32(count)
        state, metrics = run_chunk(algorithm, COHORT, 8, hyper, federation, key, rate, *chunk_arguments)
        rows.append(jax.tree.map(lambda value, count=count: np.asarray(value[:count]), metrics))
        n_done += count
    return jax.device_get(state), {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}


@EACH
def test_a_chain_without_effect_changes_nothing_and_one_with_an_effect_is_resumed_and_counted(
    key, model, work, federation, name
):
    method = of(name, "", model, work)
    chain = CHAIN.replace("error_feedback+", "") if method[0].exchange.catches_up else CHAIN
    chained_method = of(name, chain, model, work)
    state, metrics = run(method, {}, federation, key)
    chained_state, chained_metrics = run(chained_method, NEUTRAL, federation, key)
    for plain_leaf, chained_leaf in zip(
        jax.tree.leaves(state), jax.tree.leaves((chained_state.server.own, chained_state.clients.own)), strict=True
    ):
        np.testing.assert_array_equal(plain_leaf, chained_leaf)
    for metric in metrics:
        np.testing.assert_allclose(metrics[metric], chained_metrics[metric], rtol=1e-6, err_msg=metric)
    # The same program with numbers of some effect.
    state, metrics = run(chained_method, SOME, federation, key)
    resumed_state, _ = run(chained_method, SOME, federation, key, chunks=(1, 2))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics["loss"])))
    jax.tree.map(np.testing.assert_array_equal, state, resumed_state)
    assert (metrics["uplink"] < chained_metrics["uplink"]).all()
    if method[0].exchange.catches_up:
        return
    memory = state.clients.link[1][1][1][0]  # what error feedback keeps of each client
    assert memory.shape[0] == federation.train.n_clients
    never_drawn = np.setdiff1d(np.arange(len(memory)), metrics["ids"])
    assert not memory[never_drawn].any()
    assert memory[metrics["ids"][-1]].any(axis=1).all()


def chain_with(last_brick, exchange):
    """Every brick that can be in one chain; error feedback must not meet the noise of differential privacy.

    Of a server that compares updates without those that leave few numbers or few values of them: similarities of such
    updates are equal, and which of them is the larger is then a rounding error's choice, another on other devices.
    """
    feeds_back = "dp" not in last_brick and not exchange.catches_up
    bricks = [*BEFORE, *["error_feedback"] * feeds_back, *AFTER, last_brick]
    return "+".join(brick for brick in bricks if exchange.sees != "each" or brick not in ("random_k", "top_k", "sign"))


OTHERS = [*((QUICK, brick) for brick in PRIVATE), *((name, "each") for name in SENDING if name != QUICK)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "last_or_each"), [(QUICK, "secure_sum"), *slow_rows(*OTHERS)])
def test_every_brick_in_one_chain_is_resumed_and_runs_on_two_devices_while_clients_drop_out(
    key, model, work, federation, name, last_or_each
):
    exchange = of(name, "", model, work)[0].exchange
    for chain in [
        chain_with(last_brick, exchange) for last_brick in LAST[exchange.sees] if last_or_each in (last_brick, "each")
    ]:
        chained_method = of(name, chain, model, work)
        on_one_device = state, metrics = run(chained_method, SOME, federation, key, dropout=0.3)
        resumed_state, _ = run(chained_method, SOME, federation, key, dropout=0.3, chunks=(2, 1))
        jax.tree.map(np.testing.assert_array_equal, state, resumed_state)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics["uplink"])))
        assert not metrics["active"].all()
        # On two devices it is the same, as far as sums of float32 in another order are.
        with over_devices() as mesh:
            assert mesh is not None
            on_two_devices = run(chained_method, SOME, replicated(federation, mesh), replicated(key, mesh), dropout=0.3)
        for leaf_of_one, leaf_of_two in zip(
            jax.tree.leaves(on_one_device), jax.tree.leaves(on_two_devices), strict=True
        ):
            np.testing.assert_allclose(leaf_of_two, leaf_of_one, rtol=1e-3, atol=1e-4, err_msg=chain)


EFFECTS: dict[str, tuple[dict, dict]] = {
    "clip_update": ({"clip": jnp.inf}, {"clip": 0.01}),
    "clip_l1": ({"l1_clip": jnp.inf}, {"l1_clip": 0.01}),
    "gaussian_noise": ({"noise_std": 0.0}, {"noise_std": 0.1}),
    "laplace_noise": ({"noise_scale": 0.0}, {"noise_scale": 0.1}),
    "client_dp": ({}, {}),  # counts all clients alike, so that no number makes it nothing
    "adaptive_client_dp": ({}, {}),
    "banded_client_dp": ({}, {}),
    "error_feedback+top_k": ({"top_share": 1.0}, {"top_share": 0.1}),
    "rotate+sign": ({}, {}),
    "top_k": ({"top_share": 1.0}, {"top_share": 0.1}),
    "random_k": ({"random_share": 1.0}, {"random_share": 0.2}),
    "quantize": ({"bits": 32.0}, {"bits": 2.0}),
    "sign": ({}, {}),
    "low_rank": ({"rank": 8.0}, {"rank": 1.0}),
    "secure_sum": ({"fraction_bits": 24.0}, {"fraction_bits": 2.0}),
    "fools_gold": ({}, {}),
}
"""Bricks between clients and server: numbers of no effect ({}: there are none), and of some."""


def test_the_contract_knows_every_brick():
    assert {bricks.partition("+")[0] for bricks in EFFECTS} == {brick.name for brick in LINKS}


@pytest.mark.slow
@EACH
def test_every_brick_goes_into_every_method_that_allows_it(key, model, work, federation, name):
    """One program: clients train once, and what they send goes through each of the bricks, of no and of some effect."""
    (method, case_numbers, Hyper), methods, hypers = of(name, "", model, work), {}, {}
    hyper, n_clients = as_traced(Hyper(**case_numbers)), federation.train.n_clients
    for bricks, effects in EFFECTS.items():
        if "error_feedback" in bricks and method.exchange.catches_up:
            with pytest.raises(ValueError, match="the next update contains"):
                of(name, bricks, model, work)
            continue
        try:
            chained_method, numbers, Numbers = of(name, bricks, model, work)
            two_hypers = [as_traced(Numbers(**numbers, **effect)) for effect in effects]
            jax.eval_shape(chained_method.init, key, two_hypers[0], federation.train)
        except ValueError as error:
            (reason,) = (text for text in REFUSALS if text in str(error))
            assert needs_of(bricks) in REFUSALS[reason]
            continue
        assert not needs_of(bricks) or method.exchange.sees != "each"
        methods[bricks], hypers[bricks] = chained_method, jax.tree.map(lambda *leaves: jnp.stack(leaves), *two_hypers)

    def one_round(hypers):
        state = method.init(key, hyper, federation.train)
        cohort = sample_cohort(key, jnp.int32(0), federation, COHORT, jnp.float32(0.3))
        rows = State(state.server, tree.take(state.clients, cohort.ids))
        upload = method.exchange.send(key, hyper, rows, cohort)
        shapes, results = shapes_of(method.exchange.part(state.server)), {}
        for bricks, chained_method in methods.items():
            memory = chain_of(bricks).init(hypers[bricks], n_clients, shapes)
            memory = memory._replace(clients=tree.take(memory.clients, cohort.ids))
            linked_state = State(Linked(rows.server, memory.server), Linked(rows.clients, memory.clients))
            next_linked_state, metrics = chained_method.exchange.receive(
                key, hypers[bricks], linked_state, cohort, upload
            )
            chex.assert_trees_all_equal_shapes_and_dtypes(linked_state, next_linked_state)
            results[bricks] = (
                State(next_linked_state.server.own, next_linked_state.clients.own),
                metrics["uplink"],
                next_linked_state,
            )
        return method.exchange.receive(key, hyper, rows, cohort, upload)[0], results

    without_bricks, results = jax.device_get(jax.jit(jax.vmap(one_round))(hypers))
    for bricks, (state, uplink, next_linked_state) in results.items():
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((next_linked_state, uplink))), bricks
        pairs = list(zip(jax.tree.leaves(without_bricks), jax.tree.leaves(state), strict=True))
        if EFFECTS[bricks][0]:
            for expected, actual in pairs:
                np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-5, err_msg=bricks)
        if (name, bricks) not in UNTOUCHED:
            assert any(not np.array_equal(expected[1], actual[1]) for expected, actual in pairs), bricks


UNTOUCHED = [("fedma", "fools_gold"), ("feddane", "fools_gold"), ("heterofl", "fools_gold")]
"""FoolsGold finds nobody more alike than others: FedMA's clients start from networks of their own, FedDANE's all go
along everybody's gradient, HeteroFL's have other parts of a network."""
REFUSALS = {"single updates": ("sum", "mean"), "not compute one mean": ("mean",), "running statistics": ("mean",)}
"""Messages of methods that do not go with a brick -> what such a brick needs."""


def chain_of(bricks):
    return chained([BRICKS[brick].value for brick in bricks.split("+")])


def needs_of(bricks):
    return chain_of(bricks).needs


@pytest.mark.slow
@pytest.mark.parametrize("brick", DOWN, ids=repr)
@pytest.mark.parametrize("name", HEARING)
def test_every_brick_goes_on_the_way_down(key, model, work, federation, name, brick):
    if name in MANY:
        with pytest.raises(ValueError, match="do not all start from one model"):
            of(name, brick.name, model, work)
        return
    state, metrics = run(of(name, brick.name, model, work), {}, federation, key, dropout=0.3)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    _, plain_metrics = run(of(name, "", model, work), {}, federation, key, dropout=0.3)
    assert (metrics["downlink"] < plain_metrics["downlink"]).all()
    assert not np.array_equal(plain_metrics["client_loss"], metrics["client_loss"])


@pytest.mark.slow
def test_fedsofts_server_learns_of_its_clients_what_travels_alone(key, model, work, federation):
    """One number of an update a round: the center changes in no more numbers than were sent."""
    method = compose("fedsoft+top_k")
    algorithm, numbers = method(model, work, n_clusters=1), {"lr": 0.1, "min_share": 0.0, "top_share": 1e-6}
    start = jax.jit(algorithm.init)(split_key(key).init, as_traced(method.Hyper(**numbers)), federation.train)
    state, _ = run((algorithm, numbers, method.Hyper), {}, federation, key)
    first_center, last_center = (np.asarray(tree.flatten(centers)) for centers in (start.server.own, state.server.own))
    assert 0 < (np.abs(first_center - last_center) > 1e-5).sum() <= ROUNDS * COHORT  # beyond the rounding of a mean


@pytest.mark.slow
@pytest.mark.parametrize("bricks", ["top_k+down_quantize", "error_feedback+top_k+down_sign"])
def test_fedgens_clients_have_the_generator_whatever_else_is_on_the_way(key, model, work, federation, bricks):
    _, metrics = run(*[of("fedgen", bricks, model, work)], {}, federation, key)
    assert np.isfinite(metrics["loss"]).all()
