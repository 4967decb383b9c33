"""The metrics that a method's round gives back, a user's own included: what is due, and as what arrays it is kept."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.types import Cohort, Metrics

TAKEN = (
    "round",
    "ids",
    "active",
    "ari",
    "churn",
    "epsilon",
    "n_missing",
    "effort",
    "simulated_seconds",
    "diverged",
    "n_not_finite",
)
"""Names that a run adds to a round's metrics itself; so has every test of the models its own."""
OF_CLIENT = "client_"
"""How the names of a test's metrics of each client begin."""
ROW = "client_row"
"""Of a clustered method, with which row of the deployed models each client was tested: its cluster, where each has one
model. No measure of how well it does."""


NOT_A_CLUSTER = np.iinfo(np.int32).min
"""In the metric ``label``: a rule gave its participant a cluster that there is not, which a program cannot refuse."""


def check_clusters(metrics: Mapping[str, Any]) -> None:
    """Checks the labels of finished rounds; of rounds that are traced, and of other hosts, nothing is known.

    Raises:
        ValueError: a rule has put a participant into a cluster that there is not.
    """
    label = metrics.get("label", ())
    if isinstance(label, jax.core.Tracer) or not getattr(label, "is_fully_addressable", True):
        return
    if (beyond := np.asarray(label) == NOT_A_CLUSTER).any():
        raise ValueError(
            f"a rule put client {np.asarray(metrics['ids'])[beyond][0]} into a cluster that there is not; give labels "
            "from 0 to one below the number of models, or -1 for a client of none"
        )


def as_due(metrics: Any, cohort: Cohort) -> Metrics:
    """What a round gave, as arrays () or (cohort,); those of fljax's own methods are so and pass as they are.

    Raises:
        ValueError: a metric that a round must give is missing, or one is no number, or none for each participant.
    """
    if not isinstance(metrics, dict):
        raise ValueError(f"a round gave {type(metrics).__name__} for its metrics; give a dict of names and arrays")
    # Not filled in: no traffic would make costs wrong, and a sweep takes a loss of NaN for a run that diverged.
    missing = [name for name in ("uplink", "downlink", "loss") if name not in metrics]
    if missing:
        given = ", ".join(map(repr, metrics)) or "none"
        raise ValueError(f"a round gave no metric {missing[0]!r} (its metrics: {given}); give it, () or (cohort,)")
    n = cohort.ids.shape[0]
    if taken := [name for name in metrics if name in TAKEN or str(name).startswith(OF_CLIENT)]:
        of_test = ", as those of clients' tests are named" if str(taken[0]).startswith(OF_CLIENT) else ""
        raise ValueError(f"a round gave a metric {taken[0]!r}, which a run adds itself{of_test}; give it another name")
    found = {name: _as_metric(name, value, n) for name, value in metrics.items()}
    for name in ("uplink", "downlink", "loss"):
        if not jnp.issubdtype(found[name].dtype, jnp.floating):  # counts and sums go on in fractions
            found[name] = found[name].astype(jnp.float32)
    if "ok" not in found:
        found["ok"] = jnp.ones(n, bool)  # who says nothing of it leaves nobody out
    if found["ok"].dtype != bool:
        raise ValueError(f"metric 'ok' has dtype {found['ok'].dtype}; give bool, False where a result does not count")
    for name in ("loss", "ok", "label"):  # one value stands for every participant, as of the traffic
        if name in found and found[name].ndim == 0:
            found[name] = jnp.broadcast_to(found[name], n)
    return found


def _as_metric(name: Any, value: Any, n: int) -> Array:
    """One metric as an array () or (n,) of a dtype that files know."""
    if not isinstance(name, str):
        raise ValueError(f"a round gave a metric with the name {name!r}; give a str")
    of, on_host = f"metric {name!r}", isinstance(value, bool | int | float | np.ndarray | np.generic)
    if not (on_host or isinstance(value, jax.Array)):
        raise ValueError(f"{of} is {value!r}; give a number or an array, () or (cohort,) = ({n},)")
    value = np.asarray(value) if on_host else value
    if value.shape not in ((), (n,)):
        raise ValueError(f"{of} has shape {value.shape}; give () or (cohort,) = ({n},), a value for each participant")
    whole = value.dtype == bool or jnp.issubdtype(value.dtype, jnp.integer)
    if not whole and not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"{of} has dtype {value.dtype}; give bool, whole or floating-point numbers")
    if on_host:
        kept = jax.dtypes.canonicalize_dtype(value.dtype)
        if whole and (value.astype(kept) != value).any():  # JAX would keep the last bits without a word
            raise ValueError(f"{of} is {value}, which {kept} does not hold; give floating-point numbers")
        value = jnp.asarray(value)
    # bfloat16, float8 and int4 are no types of NumPy's: its files have them as bytes without a meaning.
    return value if value.dtype.isbuiltin == 1 else value.astype(jnp.int32 if whole else jnp.float32)
