"""The metrics that a method's round returns, also a user's own: which are required, and their shapes and dtypes."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.server.agreement import adjusted_rand
from fljax.types import Cohort, Federation, Metrics

RESERVED = (
    "round",
    "ids",
    "active",
    "ari",
    "churn",
    "epsilon",
    "n_missing",
    "effort",
    "candidates",
    "simulated_seconds",
    "diverged",
    "n_not_finite",
)
"""Names of metrics that a run itself adds to a round's; tests of the models add further ones."""
OF_CLIENT = "client_"
"""Prefix of a test's metrics per client."""
ROW = "client_row"
"""In clustered methods: the row of the deployed models with which each client was tested, which is its cluster if each
cluster has one model. It does not measure performance."""


NOT_A_CLUSTER = np.iinfo(np.int32).min
"""In the metric ``label``: a rule returned a cluster that does not exist, which a compiled program cannot reject."""


def check_clusters(metrics: Mapping[str, Any]) -> None:
    """Checks the labels of finished rounds; not of traced rounds or other hosts, whose values are unknown.

    Raises:
        ValueError: a rule has assigned a participant to a cluster that does not exist.
    """
    label = metrics.get("label", ())
    if isinstance(label, jax.core.Tracer) or not getattr(label, "is_fully_addressable", True):
        return
    if (is_unknown := np.asarray(label) == NOT_A_CLUSTER).any():
        raise ValueError(
            f"a rule put client {np.asarray(metrics['ids'])[is_unknown][0]} into a cluster that does not exist; give "
            "labels from 0 to one below the number of models, or -1 for a client in no cluster"
        )


def round_metrics(metrics: Metrics, cohort: Cohort, federation: Federation) -> Metrics:
    """A round's metrics in the order of client ids, with the ids and ``active``; `Algorithm` lists the required ones.

    If the true groups are known, the labels' agreement with them is added.

    Raises:
        ValueError: a required metric is missing, or a metric is neither a number nor one number per participant.
    """
    metrics = checked_metrics(metrics, cohort) | {"ids": cohort.ids, "active": cohort.active}
    for name in ("uplink", "downlink"):  # one per participant, though in most methods they are all equal
        metrics[name] = jnp.broadcast_to(metrics[name], cohort.ids.shape)
    if federation.group is not None and "label" in metrics:
        is_counted = cohort.active if federation.there is None else cohort.active & federation.there[cohort.ids]
        metrics["ari"] = adjusted_rand(metrics["label"], federation.group[cohort.ids], is_counted)
    if cohort.n_missing is not None:
        metrics["n_missing"] = cohort.n_missing
    if cohort.effort is not None:
        metrics["effort"] = cohort.effort
    candidates = {}
    if cohort.candidates is not None:
        n_clients = federation.train.n_clients
        rows = jnp.where(cohort.candidates < 0, n_clients, cohort.candidates)
        is_asked = jnp.zeros(n_clients, bool).at[rows].set(True, mode="drop")
        metrics["uplink"] = metrics["uplink"] + is_asked[cohort.ids].astype(jnp.float32)  # its loss
        candidates["candidates"] = cohort.candidates
    order = jnp.argsort(cohort.ids)
    return {name: value if value.ndim == 0 else value[order] for name, value in metrics.items()} | candidates


def checked_metrics(metrics: Any, cohort: Cohort) -> Metrics:
    """A round's metrics as arrays () or (cohort,); those of fljax's own methods pass unchanged.

    Raises:
        ValueError: a required metric is missing, or a metric is not a number or one number per participant.
    """
    if not isinstance(metrics, dict):
        raise ValueError(
            f"a round returned {type(metrics).__name__} for its metrics; return a dict of names and arrays"
        )
    # No default values: traffic of 0 would make costs wrong, and a sweep treats a loss of NaN as a diverged run.
    missing = [name for name in ("uplink", "downlink", "loss") if name not in metrics]
    if missing:
        names = ", ".join(map(repr, metrics)) or "none"
        raise ValueError(
            f"a round returned no metric {missing[0]!r} (its metrics: {names}); return it, () or (cohort,)"
        )
    n = cohort.n_clients
    if reserved := [name for name in metrics if name in RESERVED or str(name).startswith(OF_CLIENT)]:
        origin = ", as those of clients' tests are named" if str(reserved[0]).startswith(OF_CLIENT) else ""
        raise ValueError(
            f"a round returned a metric {reserved[0]!r}, which a run adds itself{origin}; give it another name"
        )
    arrays = {name: _as_metric(name, value, n) for name, value in metrics.items()}
    for name in ("uplink", "downlink", "loss"):
        if not jnp.issubdtype(arrays[name].dtype, jnp.floating):  # counts and sums are continued as fractions
            arrays[name] = arrays[name].astype(jnp.float32)
    if "ok" not in arrays:
        arrays["ok"] = jnp.ones(n, bool)  # a method without this metric excludes no client
    if arrays["ok"].dtype != bool:
        raise ValueError(f"metric 'ok' has dtype {arrays['ok'].dtype}; give bool, False if a result does not count")
    for name in ("loss", "ok", "label"):  # one value is repeated for all participants, as for the traffic
        if name in arrays and arrays[name].ndim == 0:
            arrays[name] = jnp.broadcast_to(arrays[name], n)
    return arrays


def _as_metric(name: Any, value: Any, n: int) -> Array:
    """One metric as an array () or (n,) of a dtype that files support."""
    if not isinstance(name, str):
        raise ValueError(f"a round returned a metric with the name {name!r}; give a str")
    subject, on_host = f"metric {name!r}", isinstance(value, bool | int | float | np.ndarray | np.generic)
    if not (on_host or isinstance(value, jax.Array)):
        raise ValueError(f"{subject} is {value!r}; give a number or an array, () or (cohort,) = ({n},)")
    value = np.asarray(value) if on_host else value
    if value.shape not in ((), (n,)):
        raise ValueError(f"{subject} has shape {value.shape}; give () or (cohort,) = ({n},), one value per participant")
    is_whole = value.dtype == bool or jnp.issubdtype(value.dtype, jnp.integer)
    if not is_whole and not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"{subject} has dtype {value.dtype}; give bool, whole or floating-point numbers")
    if on_host:
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        if is_whole and (value.astype(dtype) != value).any():  # JAX would silently keep the last bits
            raise ValueError(f"{subject} is {value}, which {dtype} does not hold; give floating-point numbers")
    value = jnp.asarray(value)
    # bfloat16, float8 and int4 are not NumPy types: its files would store them as plain bytes.
    return value if value.dtype.isbuiltin == 1 else value.astype(jnp.int32 if is_whole else jnp.float32)
