"""Standalone training (NonFed): no collaboration.

The baseline of every personalised method: each client trains its own model on its own data and sends nothing.

Differences: training is in rounds, so that it has the same local epochs as the federated methods in a comparison; a
client that does not participate in a round does not train in it.
"""

from fljax.numbers import LocalHyper
from fljax.rounds import NOTHING, averaging, method
from fljax.types import Algorithm, Model, Work


@method(LocalHyper, "baseline", kind="baseline", heterogeneous=True)
def standalone(model: Model, work: Work) -> Algorithm:
    """Standalone: ``W_i <- LocalTrain(W_i)``, from a common initial model."""
    return averaging(model, work, sharing=NOTHING)
