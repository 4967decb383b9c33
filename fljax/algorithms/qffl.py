"""q-FFL: clients with larger losses get larger weights, which makes accuracies more uniform (q-FedAvg).

Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020,
https://arxiv.org/abs/1905.10497. Official code: https://github.com/litian96/fair_flearn.
The server minimises the mean of the clients' losses to the power q + 1, with a step length derived from the local
learning rate. Steps are short if clients make many local steps, since h_i contains the squared norm of their sum.

Differences from the paper: participants are sampled uniformly with equal weights; the paper samples them by size, which
is ``weighting="size"`` on average. ``combine`` receives ``theta + s_i (w_i - theta)``, whose mean is the paper's step.
A client sends its loss at the received model in addition to its own model.
"""

import jax.numpy as jnp

from fljax import tree
from fljax.client.measure import client_loss
from fljax.client.objectives import training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, check_not_private, client_weight, mean, method, traffic, train
from fljax.rounds.accounting import not_independent
from fljax.rounds.averaging import shared_part
from fljax.types import Algorithm, Cohort, Metrics, Model, ModelTable, State, Trained, Work


@hyper
class QFFLHyper(LocalHyper):
    q: Scalar = number(
        1.0, "exponent that increases the weight of large losses; 0 is FedAvg; the paper has 0.001 to 5", least=0
    )


@method(QFFLHyper, "Li et al., ICLR 2020", "https://arxiv.org/abs/1905.10497")
def qffl(model: Model, work: Work, *, weighting: Weighting = "uniform", combine: Combining = mean) -> Algorithm:
    """q-FFL: ``theta <- theta - sum_i omega_i Delta_i / sum_i omega_i h_i`` with ``Delta_i = F_i^q L (theta - w_i)``.

    ``h_i = q F_i^(q-1) |L (theta - w_i)|^2 + L F_i^q``; ``F_i`` is the client's loss at theta, L is 1 / lr.
    """
    check_not_private(work, "clients of q-FFL are weighted by their losses, which get no noise")

    def local(hyper: QFFLHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        loss = jnp.maximum(client_loss(model, theta, cohort.data), 1e-10)
        trained = train(hyper, theta, cohort, training_loss(model), work)
        omega, inverse = client_weight(weighting, cohort, trained.ok), 1 / hyper.lr_of(cohort.round)
        squared = tree.squared_norms(tree.subtract(trained.params, theta.params))
        # All F^q are divided by the largest one: ratios stay the same, and none is infinite.
        power = (loss / jnp.where(omega > 0, loss, 0).max().clip(1e-10)) ** hyper.q
        h = power * (hyper.q / loss * inverse**2 * squared + inverse)
        share = omega.sum() * inverse / jnp.maximum(jnp.vdot(omega, h), 1e-30)
        step = share * power
        scaled = tree.map_trainable(lambda w, t: t + tree.along(step, w) * (w - t), trained.params, theta.params)
        return trained._replace(params=tree.as_before(scaled, trained.params))

    def metrics(state: State, cohort: Cohort) -> Metrics:
        n_parameters = tree.size(shared_part(state.server))
        return traffic(n_parameters + 1, n_parameters)

    return not_independent(averaging(model, local, weighting=weighting, combine=combine, metrics=metrics))
