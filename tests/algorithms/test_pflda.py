"""PFL-DA: in NumPy, and what it shares with LG-FedAvg."""

import chex
import jax
import numpy as np
import pytest

import fljax
from fljax.algorithms.pflda import SHARED, pflda
from fljax.rounds.phases import HEAD_PHASE
from tests import oracle
from tests.algorithms.test_oracles import LR, WORK, assert_models, reference, run  # noqa: F401
from tests.algorithms.test_personal import final
from tests.slow import slow

LAM, HEAD_EPOCHS = 0.6, 3


@pytest.mark.parametrize("head_first", [False, *slow(True)])
def test_pflda_in_numpy(key, model, federation, reference, head_first):  # noqa: F811
    bodies = [dict(reference.start["fc1"]) for _ in range(8)]
    own_heads, shared = [dict(reference.start["fc2"]) for _ in range(8)], reference.start["fc2"]
    for cohort in reference.rounds():
        sent = []
        for i, k, size in cohort:

            def fit_own(head_anchor, i=i, k=k):
                start = {"fc1": bodies[i], "fc2": own_heads[i]}
                batches = reference.batches(i, jax.random.fold_in(k, HEAD_PHASE), HEAD_EPOCHS)
                anchor = {"fc1": bodies[i], "fc2": head_anchor}
                own_heads[i] = oracle.local_sgd(start, batches, LR, mu=LAM, anchor=anchor, moving=("fc2",))["fc2"]

            if head_first:
                fit_own(shared)
            trained = oracle.local_sgd({"fc1": bodies[i], "fc2": shared}, reference.batches(i, k), LR)
            bodies[i] = trained["fc1"]
            if not head_first:
                fit_own(trained["fc2"])
            sent.append(({"fc2": trained["fc2"]}, size))
        shared = oracle.average(*zip(*sent, strict=True))["fc2"]
    algorithm = pflda(model, WORK, head_epochs=HEAD_EPOCHS, head_first=head_first)
    deployed, state = run(algorithm, pflda.Hyper(lr=LR, lam=LAM), federation, key)
    assert_models(deployed, [{"fc1": body, "fc2": head} for body, head in zip(bodies, own_heads, strict=True)])
    chex.assert_trees_all_close(state.server[SHARED], shared, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_bodies_and_the_shared_head_are_those_of_lg_fedavg(key, model, work, federation):
    """The own heads are beside them, and do not change them."""
    state = final(pflda(model, work), pflda.Hyper(lr=0.1, lam=3.0), federation, key)
    lg_fedavg = fljax.lg_fedavg(model, work, weighting="size")
    expected = final(lg_fedavg, fljax.lg_fedavg.Hyper(lr=0.1), federation, key)
    chex.assert_trees_all_close(state.server[SHARED], expected.server["fc2"], rtol=1e-6, atol=1e-7)
    chex.assert_trees_all_close(state.clients["fc1"], expected.clients["fc1"], rtol=1e-6, atol=1e-7)
    assert not np.allclose(state.clients["fc2"]["kernel"], state.server[SHARED]["kernel"][None], atol=1e-3)
