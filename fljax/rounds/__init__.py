"""The parts of methods: skeletons of a round, and the functions and bricks for their slots.

- skeletons: `averaging`: one global model, or a shared part of one; `two_models`: a global model and one per client;
  `clustered`: one model per cluster of clients
- clients' work: `train`, `trained_on`
- the shared part of a model (`Sharing`): `WHOLE`, `NOTHING`, `GLOBAL_AND_OWN`, `all_but`, `only`, `all_but_paths`
- aggregation (`Combine`): `mean`, `median`, `trimmed_mean`, `krum`, `multi_krum`, `bulyan`, `geometric_median`,
  `interpolated`, `on_layers`, `by_optimizer`
- cluster assignment (`Rule`): `Clusters`, `Sent`, `one_cluster`, `regrouped`; once, by updates: `one_shot_clustering`;
  by the clients' choice: `least_loss_rule`, `least_loss_model`, `balanced_draw`; what clients send for it in the first
  round: `with_first_upload`
- before a test: `tuned`, `head_tuned`, `layers_tuned`; new clients: `new_client_rounds`, `join_cluster`
- privacy: `check_not_private`, `not_independent`
- participation (`Sampling`): `uniform`, `by_size`, `power_of_choice`, `oort`, `poisson`, `shuffled`, `least_recent`,
  `fixed`, `table`; for one of your own that remembers: `SamplingMemory`, `Seen`; speed of clients: `clock`; partial
  work: `stragglers`, `partial_work`
- a function as a method with a name, a paper and hyperparameters: `method`, `hyper`, `number`
"""

from fljax.numbers import LearningRate, LocalHyper, Scalar, hyper, number
from fljax.rounds import clock, uplink
from fljax.rounds.accounting import Weighting, client_weight, in_first_round, not_independent, reported, traffic
from fljax.rounds.averaging import averaging, two_models
from fljax.rounds.by_loss import power_of_choice
from fljax.rounds.choosing import least_loss_model, least_loss_rule
from fljax.rounds.clustered import Clusters, Rule, Sent, clustered, one_cluster, regrouped, with_first_upload
from fljax.rounds.combine import (
    Combine,
    Combining,
    Server,
    bulyan,
    by_optimizer,
    geometric_median,
    interpolated,
    krum,
    mean,
    median,
    multi_krum,
    trimmed_mean,
)
from fljax.rounds.combine_parts import on_layers
from fljax.rounds.effort import partial_work, stragglers
from fljax.rounds.first_models import balanced_draw
from fljax.rounds.head_tuning import head_tuned, layers_tuned
from fljax.rounds.in_turn import least_recent
from fljax.rounds.joining import join_cluster, new_client_rounds
from fljax.rounds.local import Local, train, trained_on
from fljax.rounds.memory import SamplingMemory, Seen
from fljax.rounds.method import Method, method
from fljax.rounds.named_samplings import by_size, fixed, poisson, table, uniform
from fljax.rounds.one_shot import one_shot_clustering
from fljax.rounds.oort import oort
from fljax.rounds.passes import shuffled
from fljax.rounds.sampling import Sampling
from fljax.rounds.sharing import GLOBAL_AND_OWN, NOTHING, WHOLE, Sharing, all_but, all_but_paths, last_layers, only
from fljax.rounds.slots import Brick
from fljax.rounds.tuning import TunedHyper, tuned
from fljax.rounds.uplink.private import check_not_private

__all__ = [
    "GLOBAL_AND_OWN",
    "NOTHING",
    "WHOLE",
    "Brick",
    "Clusters",
    "Combine",
    "Combining",
    "LearningRate",
    "Local",
    "LocalHyper",
    "Method",
    "Rule",
    "Sampling",
    "SamplingMemory",
    "Scalar",
    "Seen",
    "Sent",
    "Server",
    "Sharing",
    "TunedHyper",
    "Weighting",
    "all_but",
    "all_but_paths",
    "averaging",
    "balanced_draw",
    "bulyan",
    "by_optimizer",
    "by_size",
    "check_not_private",
    "client_weight",
    "clock",
    "clustered",
    "fixed",
    "geometric_median",
    "head_tuned",
    "hyper",
    "in_first_round",
    "interpolated",
    "join_cluster",
    "krum",
    "last_layers",
    "layers_tuned",
    "least_loss_model",
    "least_loss_rule",
    "least_recent",
    "mean",
    "median",
    "method",
    "multi_krum",
    "new_client_rounds",
    "not_independent",
    "number",
    "on_layers",
    "one_cluster",
    "one_shot_clustering",
    "only",
    "oort",
    "partial_work",
    "poisson",
    "power_of_choice",
    "regrouped",
    "reported",
    "shuffled",
    "stragglers",
    "table",
    "traffic",
    "train",
    "trained_on",
    "trimmed_mean",
    "tuned",
    "two_models",
    "uniform",
    "uplink",
    "with_first_upload",
]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
