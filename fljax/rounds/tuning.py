"""Fine-tuning before the test: a method's deployed models are trained further on each client's own data."""

import jax.numpy as jnp
import optax

from fljax.argument_kinds import checked_kinds
from fljax.choices import Natural
from fljax.client.finetune import fine_tune
from fljax.client.freeze import frozen_loss, frozen_optimizer
from fljax.client.objectives import Loss
from fljax.client.optimizer import local_optimizer
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds.averaging import Deploy
from fljax.types import ClientData, Key, ModelTable, State, Work


@hyper
class TunedHyper(LocalHyper):
    """Hyperparameters of a method whose clients fine-tune before a test."""

    ft_lr: Scalar | None = number(None, "learning rate of fine-tuning; None: lr, not decayed", above=0)


@checked_kinds
def tuned(deploy: Deploy, loss: Loss, work: Work, ft_epochs: Natural, frozen: tuple[str, ...] = ()) -> Deploy:
    """``deploy``, whose models each client then trains for ``ft_epochs`` epochs; 0 returns ``deploy`` itself.

    The rounds do not change, so a run without fine-tuning has the same states.

    Args:
        deploy: ``(key, hyper, state, data) -> ModelTable``, the initial models of fine-tuning.
        loss: the loss that clients minimise.
        work: batch size and optimiser.
        ft_epochs: at least 0.
        frozen: layers that stay fixed.

    Raises:
        ValueError: ``ft_epochs`` is negative.
    """
    if not ft_epochs:
        return deploy

    def deploy_tuned(key: Key, hyper: TunedHyper, state: State, data: ClientData) -> ModelTable:
        optimizer = frozen_optimizer(tuning_optimizer(hyper, work), frozen)
        initial, tuning_work = deploy(key, hyper, state, data), work.for_epochs(ft_epochs)
        return fine_tune(key, initial, data, frozen_loss(loss, frozen), optimizer, tuning_work)

    return deploy_tuned


def tuning_optimizer(hyper: TunedHyper, work: Work) -> optax.GradientTransformation:
    """The clients' optimiser with the learning rate of fine-tuning."""
    return local_optimizer(hyper.with_lr(hyper.ft_lr).replace(lr_decay=None), work, jnp.int32(0))
