"""FedRep: a shared representation, trained after each client has fitted its own head.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning, ICML
2021, https://arxiv.org/abs/2102.07078. Official code: https://github.com/lgcollins/FedRep.
In a round, a client fits its own head on the frozen body, then trains the body under the frozen head, and sends the
body; the server averages the bodies.

Differences from the paper: as in the official code, bodies are weighted by size (equally in the paper:
``weighting="uniform"``), and clients are tested after fitting the head once more (``ft_epochs``). Momentum starts at 0
in each phase. Both phases update running statistics.
"""

from fljax.choices import Natural
from fljax.client.objectives import training_loss
from fljax.client.steps import whole_epochs
from fljax.rounds import Combining, TunedHyper, Weighting, all_but, averaging, last_layers, layers_tuned, mean, method
from fljax.rounds.phases import HEAD_PHASE, Phase, train_in_phases
from fljax.types import Algorithm, Cohort, Model, ModelTable, Trained, Work


@method(TunedHyper, "Collins et al., ICML 2021", "https://arxiv.org/abs/2102.07078", kind="personalised")
def fedrep(
    model: Model,
    work: Work,
    *,
    n_personal: Natural = 1,
    body_epochs: Natural = 1,
    ft_epochs: Natural = 10,
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """FedRep: ``head_i`` by ``E - E_rep`` epochs, then ``body_i`` by ``E_rep``; ``body <- mean of body_i``.

    The official code has lr 0.01 and momentum 0.5.

    Args:
        work: local work; ``epochs`` is E, both phases together.
        n_personal: number of last layers that form the head.
        body_epochs: E_rep, 0 to E; with E, heads are fitted only before tests.
        ft_epochs: epochs on the head only, before a client is tested; 0: none.
    """
    epochs = whole_epochs(work, "FedRep")
    if body_epochs > epochs:
        raise ValueError(f"body_epochs={body_epochs} of epochs={epochs}; choose 0 <= body_epochs <= epochs")
    head = last_layers(model, n_personal, "n_personal")
    body = tuple(name for name in model.layers if name not in head)
    loss = training_loss(model)

    def local(hyper: TunedHyper, start: ModelTable, cohort: Cohort) -> Trained:
        first = Phase(body, epochs - body_epochs, loss, drawn_from=HEAD_PHASE)
        return train_in_phases(hyper, start, cohort, work, (first, Phase(head, body_epochs, loss)))

    rounds = averaging(model, local, sharing=all_but(head), weighting=weighting, combine=combine)
    return rounds._replace(deploy=layers_tuned(rounds.deploy, model, work, ft_epochs, head))
