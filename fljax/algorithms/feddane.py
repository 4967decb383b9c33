"""FedDANE: clients correct their steps by the difference between the global gradient and their own.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: FedDANE: A Federated Newton-Type Method, Asilomar 2019,
https://arxiv.org/abs/2001.01920. Official code: https://github.com/litian96/FedDANE.
Participants send their gradients at the server's model. Each then minimises its loss plus ``mu/2 |w - theta|^2`` and a
linear term that makes its gradient at the server's model equal to the mean gradient; the server averages.

Differences from the paper: both communications of a round are with the same participants, as in the code, whose sampler
is seeded by the round; the paper samples them anew. Both means are weighted by size, as in the code; the paper samples
participants by size and weights them equally.
"""

import jax
import jax.numpy as jnp

from fljax import tree
from fljax.client.gradient import client_gradients
from fljax.client.objectives import proximal, shifted, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, check_not_private, client_weight, mean, method, train
from fljax.rounds.accounting import not_independent
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, Cohort, Model, ModelTable, Params, Trained, Work


@hyper
class FedDANEHyper(LocalHyper):
    mu: Scalar = number(0.0, "proximal weight", least=0)


@method(FedDANEHyper, "Li et al., Asilomar 2019", "https://arxiv.org/abs/2001.01920")
def feddane(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FedDANE: ``w_i = argmin F_i(w) + <gbar - g_i, w> + mu/2 |w - theta|^2``; ``theta <- mean of w_i``.

    ``g_i = grad F_i(theta)``, ``gbar`` is their mean. The reported loss includes both terms.

    Args:
        weighting: of both means, "size" (omega_i = n_i) or "uniform".

    Raises:
        ValueError: gradients are private; the first communication would reveal them.
    """
    check_not_private(work, "clients of FedDANE also send their whole gradients, without noise")
    loss = training_loss(model)

    def local(hyper: FedDANEHyper, theta: ModelTable, cohort: Cohort) -> Trained:
        # First communication: g_i = grad F_i(theta); gbar = their weighted mean.
        gradients = client_gradients(cohort.key, theta, cohort.data, loss, work.batch_size)
        gbar = weighted_mean(gradients.params, client_weight(weighting, cohort, gradients.ok))
        correction = jax.tree.map(jnp.subtract, tree.broadcast(gbar, cohort.n_clients), gradients.params)
        # Second: w <- w - eta (g_b(w) + gbar - g_i + mu (w - theta)).
        trained = train(hyper, theta, cohort, proximal(shifted(loss), hyper.mu), work, theta, correction)
        return trained._replace(ok=gradients.ok & trained.ok)

    def both_communications(theta: Params) -> int:
        return 2 * tree.size(theta)

    return not_independent(averaging(model, local, weighting=weighting, combine=combine, n_sent=both_communications))
