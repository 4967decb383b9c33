"""Initialisation with LAPACK, for example of orthogonal matrices: for several networks, one after another.

`fljax.matrices` explains why.
"""

from collections.abc import Callable, Iterator
from typing import Any

from jax.custom_batching import sequential_vmap
from jax.extend.core import jaxprs_in_params

from fljax.types import Key, Params

LAPACK = {"cholesky", "eig", "eigh", "geqrf", "hessenberg", "householder_product", "lu", "qr", "schur", "svd"}
"""Operations of JAX that use LAPACK on a CPU."""


def one_by_one(init: Callable[[Key], Params], traced: Any) -> Callable[[Key], Params]:
    """``init``; if its jaxpr ``traced`` uses LAPACK, `jax.vmap` calls it for one network after another."""
    return sequential_vmap(init) if LAPACK.intersection(_operations(traced)) else init


def _operations(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from _operations(inner)
