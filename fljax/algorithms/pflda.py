"""PFL-DA: each client keeps its body and head, and clients share a second head, which holds the bodies' features alike.

Shi, Kontar: Personalized Federated Learning via Domain Adaptation with an Application to Distributed 3D Printing,
Technometrics 2023, https://doi.org/10.1080/00401706.2022.2157882.
Clients differ in their inputs and in what follows from them. Against the first, a client trains its own body under its
copy of the shared head, which is averaged; against the second, it fits a head of its own on that body, with a penalty
that holds it near the shared head. It is tested with its own body and head.

Differences: the two trainings are phases of whole epochs, each on its own batches. In PFLlib, the own head is fitted
first, on the body of the round before (``head_first=True``), and its penalty is not squared and has no gradient
(``lam=0``).
"""

from jax import Array

from fljax import tree
from fljax.choices import Natural
from fljax.client.objectives import Loss, training_loss
from fljax.client.steps import whole_epochs
from fljax.models.calling import check_free
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, averaging, mean, method, only
from fljax.rounds.phases import HEAD_PHASE, Phase, train_in_phases
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Trained, Work

SHARED = "shared_head"
"""Name of the shared head beside the network's layers, of which the last is the client's own head."""


@hyper
class PFLDAHyper(LocalHyper):
    lam: Scalar = number(1.0, "lambda: weight of the squared distance of the own head to the shared one", least=0)


@method(
    PFLDAHyper,
    "Shi and Kontar, Technometrics 2023",
    "https://doi.org/10.1080/00401706.2022.2157882",
    kind="personalised",
)
def pflda(
    model: Model,
    work: Work,
    *,
    head_epochs: Natural = 1,
    head_first: bool = False,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """PFL-DA: ``(body_i, head_i) = argmin F_i``, ``own_i = argmin F_i(body_i, own) + lambda/2 |own - head_i|^2``.

    ``head <- mean of head_i``, from which the next round starts. Bodies and heads are as LG-FedAvg's; a client is
    tested with ``(body_i, own_i)``.

    Args:
        work: local work; ``epochs`` are those of the body and the shared head.
        head_epochs: epochs on the own head.
        head_first: the own head is fitted before the body and the shared head, not after.
    """
    check_free(model, "pflda", SHARED)
    epochs = whole_epochs(work, "PFL-DA")
    body, own = model.layers[:-1], model.layers[-1]
    loss = training_loss(model)

    def begin(key: Key) -> Params:
        params = model.init(key)
        return params | {SHARED: params[own]}

    def local(hyper: PFLDAHyper, start: ModelTable, cohort: Cohort) -> Trained:
        body_phase = Phase((own,), epochs, under_shared_head(loss, own))
        head_phase = Phase((*body, SHARED), head_epochs, near_shared_head(loss, own, hyper.lam), (), HEAD_PHASE)
        phases = (head_phase, body_phase) if head_first else (body_phase, head_phase)
        return train_in_phases(hyper, start, cohort, work, phases)

    return averaging(
        model,
        local,
        sharing=only((SHARED,)),
        combine=combine,
        weighting=weighting,
        begin=begin,
        deployed=lambda held: tree.without(held, SHARED),
    )


def under_shared_head(loss: Loss, own: str) -> Loss:
    """``loss`` of the body with the shared head."""

    def shared_loss(held: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        value, updated = loss(tree.without(held, SHARED) | {own: held[SHARED]}, batch, key)
        return value, updated | {own: held[own], SHARED: held[SHARED]}

    return shared_loss


def near_shared_head(loss: Loss, own: str, lam: Scalar) -> Loss:
    """``loss`` of the own network plus ``lam / 2`` times the squared distance of its head to the shared head."""

    def own_loss(held: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        value, updated = loss(tree.without(held, SHARED), batch, key)
        distance = tree.squared_norm(tree.subtract(held[own], held[SHARED]))
        return value + lam / 2 * distance, updated | {SHARED: held[SHARED]}

    return own_loss
