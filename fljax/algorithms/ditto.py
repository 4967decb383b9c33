"""Ditto: one personal model per client, held near the model of FedAvg.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
https://arxiv.org/abs/2012.04221. Official code: https://github.com/litian96/ditto.
The clients run FedAvg; each also trains a personal model on its loss plus ``lambda/2 |v - theta|^2``.

Differences from the paper: as in the official code, both branches see the same batches, and the anchor is the model
received in the round. The dynamic choice of lambda by validation loss is left out. The default mean is weighted by
size; the code's is ``weighting="uniform"``. Personal models start at the first theta, a new client's at the last.
"""

from typing import Annotated

from fljax.choices import Least
from fljax.client.objectives import proximal, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, mean, method, train, two_models
from fljax.types import Algorithm, Cohort, Model, ModelTable, Trained, Work


@hyper
class DittoHyper(LocalHyper):
    """Hyperparameters of Ditto; both branches use the same decay and momentum."""

    lam: Scalar = number(
        1.0,
        "lambda: the proximal term is lambda/2 |v - theta|^2; 0 is FedAvg and standalone training. The official "
        "scripts have 1, FedCR's 0.1",
        least=0,
    )
    personal_lr: Scalar | None = number(None, "learning rate of the personal models, with lr_decay; None: lr", above=0)


@method(DittoHyper, "Li et al., ICML 2021", "https://arxiv.org/abs/2012.04221", kind="personalised")
def ditto(
    model: Model,
    work: Work,
    *,
    personal_epochs: Annotated[int, Least(1)] | None = None,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """Ditto: ``theta`` by FedAvg; ``V_i <- V_i - eta_p (g(V_i) + lambda (V_i - theta))``.

    The reported loss is that of the personal models, including the proximal term.

    Args:
        personal_epochs: epochs on the personal model per round; None: as the global model.
    """
    personal_work = (work if personal_epochs is None else work.for_epochs(personal_epochs))._replace(terms=())
    loss = training_loss(model)

    def local(hyper: DittoHyper, start: ModelTable, cohort: Cohort) -> Trained:
        # Global branch: w_i = LocalTrain(theta), without the proximal term.
        theta = start.part("global")
        shared = train(hyper, theta, cohort, loss, work)
        # Personal branch: V_i <- V_i - eta_p (g(V_i) + lambda (V_i - theta)), on the same batches.
        personal_hyper = hyper.with_lr(hyper.personal_lr)
        personal = train(personal_hyper, start.params["own"], cohort, proximal(loss, hyper.lam), personal_work, theta)
        return Trained({"global": shared.params, "own": personal.params}, personal.loss, shared.ok & personal.ok)

    return two_models(model, local, "own", combine=combine, weighting=weighting)
