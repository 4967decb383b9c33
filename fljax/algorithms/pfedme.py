"""pFedMe: personal models near a global model, which follows the gradient of their Moreau envelopes.

T Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020,
https://arxiv.org/abs/2006.08848. Official code: https://github.com/CharlieDinh/pFedMe.
On each batch, a client fits its personal model near its copy of the global model in a few steps, then moves the copy
towards it; the server averages the copies.

Differences from the paper: as in the official code, the personal model continues from the last batch and starts each
round at the server's model. Clients are weighted by size; equally in the paper (``weighting="uniform"``). R is
``work.local_steps``; with epochs it depends on a client's size. Absent clients do nothing; in Algorithm 1 and the code
all clients train, and a sample of them is averaged. The code adds 0.001 times the personal model to its gradient; here
weight decay applies to the copy. A client of the federation that was never sampled is tested with the initial model; a
new client, before it trains, with the server's.
"""

import jax
import optax
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.given_gradients import with_gradient
from fljax.client.objectives import Loss, training_loss
from fljax.client.parts import train_parts
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Local, Weighting, interpolated, mean, method, two_models
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Trained, Work


@hyper
class PFedMeHyper(LocalHyper):
    """Hyperparameters of pFedMe; ``lr`` is eta, the learning rate of the global model's copies."""

    lam: Scalar = number(15.0, "lambda: proximal weight of a personal model; the paper has 15", above=0)
    personal_lr: Scalar = number(0.01, "learning rate of the steps on the personal model, not decayed", above=0)
    step: Scalar = number(1.0, "beta: share of the way that the server moves to the clients' mean", above=0)


@method(
    PFedMeHyper, "T Dinh et al., NeurIPS 2020", "https://arxiv.org/abs/2006.08848", kind="personalised", trains=False
)
def pfedme(
    model: Model, work: Work, *, personal_steps: Positive = 5, weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """pFedMe: ``theta_i ~ argmin f_b(theta) + lambda/2 |theta - w_i|^2``; ``w_i <- w_i - eta lambda (w_i - theta_i)``.

    ``w <- w + beta (mean w_i - w)``. The reported loss is f at theta_i, before the steps on each batch.

    Args:
        personal_steps: K, steps of the personal model per batch.
    """

    train_near_global = near_global(model, work, personal_steps)

    def local(hyper: PFedMeHyper, start: ModelTable, cohort: Cohort) -> Trained:
        trained = train_near_global(hyper, start, cohort)
        own = tree.where(trained.ok, trained.params["own"], start.params["own"])  # a diverged client keeps its last one
        return trained._replace(params=trained.params | {"own": own})

    return two_models(model, local, "own", combine=interpolated(combine), weighting=weighting)


def near_global(model: Model, work: Work, personal_steps: int) -> Local:
    """The clients' part of a round: the copy of the model "global", and "own", the personal model near it."""

    def local(hyper: PFedMeHyper, start: ModelTable, cohort: Cohort) -> Trained:
        # A round's personal models start at w. Their moves are passed as gradients, applied by steps of length 1.
        initial = start._replace(params=start.params | {"own": start.params["global"]})
        envelope = moreau(training_loss(model), hyper, personal_steps)
        return train_parts(hyper, initial, cohort, envelope, work, "global", own=optax.sgd(1.0))

    return local


def moreau(loss: Loss, hyper: PFedMeHyper, n_steps: int) -> Loss:
    """The loss of a pair (w, theta) whose gradient is ``lambda (w - theta')`` in w and ``theta - theta'`` in theta.

    ``theta'`` is theta after ``n_steps`` steps on ``loss + lambda/2 |theta - w|^2``; the value is the loss at theta.
    """

    def envelope(pair: Params, statistics: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        def value(theta: Params) -> tuple[Array, Params]:
            return loss(tree.join_statistics(theta, statistics), batch, key)

        def step(w: Params, theta: Params) -> Params:
            gradient = jax.grad(value, has_aux=True)(theta)[0]
            full_gradient = jax.tree.map(lambda g, t, w: g + hyper.lam * (t - w), gradient, theta, w)
            return tree.as_before(jax.tree.map(lambda t, g: t - hyper.personal_lr * g, theta, full_gradient), theta)

        def fit(pair: Params) -> tuple[Array, Params, Params]:
            w, theta = pair["global"], pair["own"]
            loss_value, updated = value(theta)
            fitted = lax.fori_loop(0, n_steps, lambda _, theta: step(w, theta), theta)
            pull = jax.tree.map(lambda w, t: hyper.lam * (w - t), w, fitted)
            return loss_value, updated, {"global": pull, "own": tree.subtract(theta, fitted)}

        return with_gradient(fit, pair)

    return envelope
