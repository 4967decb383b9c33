"""The laws of methods look at rounds one by one; here it is held that a run is these rounds."""

import chex
import pytest

import fljax
from tests.algorithms import round_by_round
from tests.slow import slow


@pytest.mark.parametrize("name", ["fedper", *slow("ditto", "group_pfl")])
def test_a_run_is_its_rounds(key, model, work, federation, name):
    """With clients' own state and with clusters; three of eight clients take part, every second round is tested."""
    algorithm, hyper = getattr(fljax, name)(model, work), getattr(fljax, name).Hyper(lr=0.1)
    options = {"participation": 0.4, "evaluate_every": 2, "dropout": 0.2}
    state, metrics = fljax.simulate(algorithm, hyper, federation, key, 3, **options)
    state_of_rounds, rounds = round_by_round.simulate(algorithm, hyper, federation, key, 3, **options)
    chex.assert_trees_all_close(state_of_rounds, state, rtol=1e-6, atol=1e-7)
    shared = {name: metrics[name] for name in metrics if name not in ("churn", "client_row")}  # simulate's own
    chex.assert_trees_all_close({name: rounds[name] for name in shared}, shared, rtol=1e-6, atol=1e-7)
