"""FML: a client's own model and its copy of the server's model learn from each other, batch by batch.

Shen et al.: Federated Mutual Learning, 2020, https://arxiv.org/abs/2006.16765.
Each client trains the received model (the "meme") and its own model on its examples, each also with the other's
predictions as targets: deep mutual learning. The meme is exchanged; the client is tested with its own model.

Differences from the paper: both models have the same architecture, unless the clients' own differ
(`fljax.models.heterogeneous`); the meme then has the first of theirs. A client that has not participated keeps the
initial model as its own; a new client starts with the server's, or with the initial one of its own architecture.
PFLlib's code passes the gradient through the other model's predictions, divides a divergence by the number of classes,
and clips gradients; none of these is done here. It weights all clients equally (``weighting="uniform"``).
"""

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.given_gradients import without_gradient
from fljax.client.objectives import Loss, batch_mean
from fljax.data.labels import check_classes
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, mean, method, train, two_models
from fljax.types import Algorithm, Batch, Cohort, Key, Model, ModelTable, Params, Trained, Work


@hyper
class FMLHyper(LocalHyper):
    alpha: Scalar = number(
        0.5, "weight of the labels in the own model's loss, the rest is the meme's; 1: no distillation", least=0, most=1
    )
    beta: Scalar = number(
        0.5, "weight of the labels in the meme's loss, the rest is the own model's; 1 is FedAvg", least=0, most=1
    )


@method(FMLHyper, "Shen et al., 2020", "https://arxiv.org/abs/2006.16765", kind="personalised", heterogeneous=True)
def fml(model: Model, work: Work, *, weighting: Weighting = "size", combine: Combining = mean) -> Algorithm:
    """FML: ``V_i`` by ``alpha F_i(V) + (1 - alpha) KL(w || V)``, ``w_i`` by ``beta F_i(w) + (1 - beta) KL(V || w)``.

    Both use the same batches. ``KL(p || q)`` is the mean over examples of the divergence of ``q``'s softmax from
    ``p``'s, which is treated as a constant. The ``w_i`` are averaged. The reported loss is that of the own models.
    """

    def local(hyper: FMLHyper, start: ModelTable, cohort: Cohort) -> Trained:
        check_classes(cohort.data.pool.y)
        pair = start._replace(params=tree.side_by_side(**start.params))
        trained = train(hyper, pair, cohort, mutual(model, hyper), work)
        return trained._replace(params=tree.apart(trained.params))

    return two_models(model, local, "own", combine=combine, weighting=weighting)


def mutual(model: Model, hyper: FMLHyper) -> Loss:
    """The losses of both models side by side, each with a gradient for its own model; the value is the own model's."""

    def loss(params: Params, batch: Batch, key: Key) -> tuple[Array, Params]:
        logits, updated = {}, {}
        for name, network in tree.apart(params).items():
            logits[name], updated[name] = model.apply(network, batch.x, key)

        def of(name: str, other: str, share: Scalar) -> Array:
            distilled = divergence(logits[name], without_gradient(logits[other]))
            return batch_mean(share * model.loss(logits[name], batch.y) + (1 - share) * distilled, batch.weight)

        value, meme_loss = of("own", "global", hyper.alpha), of("global", "own", hyper.beta)
        return value + meme_loss - without_gradient(meme_loss), tree.side_by_side(**updated)

    return loss


def divergence(logits: Array, teacher_logits: Array) -> Array:
    """(batch,) ``KL(softmax(teacher_logits) || softmax(logits))``."""
    student, teacher = (jax.nn.log_softmax(value.astype(jnp.float32)) for value in (logits, teacher_logits))
    return (jnp.exp(teacher) * (teacher - student)).sum(-1)
