"""The parts of methods: skeletons of a round, and the functions and bricks for their slots.

- skeletons: `averaging`: one global model, or a shared part of one; `two_models`: a global model and one per client;
  `clustered`: one model per cluster of clients
- clients' work: `train`, `trained_on`
- the shared part of a model (`Sharing`): `WHOLE`, `NOTHING`, `GLOBAL_AND_OWN`, `all_but`, `only`, `all_but_paths`
- aggregation (`Combine`): `mean`, `median`, `trimmed_mean`, `krum`, `multi_krum`, `bulyan`, `geometric_median`,
  `part_way`, `on_layers`, `stepped`
- cluster assignment (`Rule`): `Clusters`, `Sent`, `one_cluster`, `regrouped`; once, by updates: `parted_once`; by the
  clients' choice: `least_loss_rule`, `least_loss_model`, `balanced_draw`; what clients send for it in the first round:
  `with_first_upload`
- before a test: `tuned`, `head_tuned`; new clients: `rounds_alone`, `join_cluster`
- privacy: `check_not_private`, `not_alone`
- participation (`Sampling`): `uniform`, `by_size`, `poisson`, `fixed`, `table`; speed of clients: `clock`; partial
  work: `stragglers`, `partial_work`
- a function as a method with a name, a paper and hyperparameters: `method`, `hyper`, `number`
"""

from fljax.numbers import LearningRate, LocalHyper, Scalar, hyper, number
from fljax.rounds import clock
from fljax.rounds.accounting import Weighting, client_weight, in_first_round, not_alone, reported, traffic
from fljax.rounds.averaging import averaging, two_models
from fljax.rounds.choosing import least_loss_model, least_loss_rule
from fljax.rounds.clustered import Clusters, Rule, Sent, clustered, one_cluster, regrouped, with_first_upload
from fljax.rounds.combine import (
    Combine,
    Combining,
    Server,
    bulyan,
    geometric_median,
    krum,
    mean,
    median,
    multi_krum,
    on_layers,
    part_way,
    stepped,
    trimmed_mean,
)
from fljax.rounds.effort import partial_work, stragglers
from fljax.rounds.first_models import balanced_draw
from fljax.rounds.head_tuning import head_tuned
from fljax.rounds.joining import join_cluster, rounds_alone
from fljax.rounds.local import Local, train, trained_on
from fljax.rounds.method import Brick, Method, method
from fljax.rounds.one_shot import parted_once
from fljax.rounds.sampling import Sampling, by_size, fixed, poisson, table, uniform
from fljax.rounds.sharing import GLOBAL_AND_OWN, NOTHING, WHOLE, Sharing, all_but, all_but_paths, last_layers, only
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
    "Scalar",
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
    "join_cluster",
    "krum",
    "last_layers",
    "least_loss_model",
    "least_loss_rule",
    "mean",
    "median",
    "method",
    "multi_krum",
    "not_alone",
    "number",
    "on_layers",
    "one_cluster",
    "only",
    "part_way",
    "parted_once",
    "partial_work",
    "poisson",
    "regrouped",
    "reported",
    "rounds_alone",
    "stepped",
    "stragglers",
    "table",
    "traffic",
    "train",
    "trained_on",
    "trimmed_mean",
    "tuned",
    "two_models",
    "uniform",
    "with_first_upload",
]
