"""Every method on federations that change: labels, places and who is there."""

import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.drift import DRIFTS, drifting
from fljax.report.changes import after_changes
from tests.algorithms.table import CASES

NAMES = [name for name in CASES if "-" not in name and "+" not in name]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["swap_labels", "move", "arrive", "leave"])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_goes_through_every_drift(model, key, name, kind):
    federation = fljax.data.synthetic.linear_groups(9, 3, examples=30, ragged=0.5)
    federation = federation._replace(public=fljax.types.Examples(federation.train.pool.x[:16], jnp.full(16, -1)))
    drifting_federation = drifting(federation, DRIFTS[kind](start=1, changes=2, every=1, share=0.4))
    case = CASES[name]
    algorithm = case.make(model, fljax.Work(epochs=1, batch_size=8))
    _, metrics = fljax.simulate(algorithm, case.hyper, drifting_federation, key, 3, dropout=0.1)
    assert np.isfinite(metrics["accuracy_macro"]).all()
    n_present = np.isfinite(np.asarray(metrics["client_accuracy"])).sum(axis=1)
    np.testing.assert_array_equal(n_present, {"arrive": [5, 7, 9], "leave": [9, 7, 5]}.get(kind, [9, 9, 9]))
    assert len(after_changes(metrics, drifting_federation)) == 2
