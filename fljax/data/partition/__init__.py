"""Who owns which example: one function per setting, deterministic in its seed, NumPy on the host."""

from collections.abc import Callable

from fljax.data.partition.uniform import iid
from fljax.types import Federation

PARTITIONS: dict[str, Callable[..., Federation]] = {"iid": iid}
"""Name -> partition, each ``f(train, test, n_clients, *, seed, ...) -> Federation``."""

__all__ = ["PARTITIONS", "iid"]
