"""Which client owns which examples: one function per setting, deterministic in its seed, NumPy on the host."""

from collections.abc import Callable

from fljax.choices import Named
from fljax.data.partition.dcpfl import primary_secondary
from fljax.data.partition.fedcps import dirichlet_prior, few_shot
from fljax.data.partition.groups import dominant_label_groups, permuted_label_groups, rotated_groups
from fljax.data.partition.noise import noisy_features
from fljax.data.partition.people import natural, writers
from fljax.data.partition.skew import classes_per_client, dirichlet, shards, similarity
from fljax.data.partition.uniform import dirichlet_sizes, iid, log_normal, proportional_sizes
from fljax.types import Federation

PARTITIONS: dict[str, Callable[..., Federation]] = Named(
    "partition",
    {
        function.__name__: function
        for function in (
            iid,
            dirichlet,
            classes_per_client,
            shards,
            similarity,
            rotated_groups,
            permuted_label_groups,
            dominant_label_groups,
            few_shot,
            dirichlet_prior,
            primary_secondary,
            log_normal,
            dirichlet_sizes,
            proportional_sizes,
            noisy_features,
            natural,
            writers,
        )
    },
)
"""Name -> partition, each ``f(train, test, n_clients, *, seed, ...) -> Federation``."""

__all__ = ["PARTITIONS", *PARTITIONS]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
