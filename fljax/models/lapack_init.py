"""Initial parameters that LAPACK has a part in, as orthogonal matrices, of several networks: one after another.

`fljax.matrices` says why.
"""

from collections.abc import Callable, Iterator
from typing import Any

from jax.custom_batching import sequential_vmap
from jax.extend.core import jaxprs_in_params

from fljax.types import Key, Params

LAPACK = {"cholesky", "eig", "eigh", "geqrf", "hessenberg", "householder_product", "lu", "qr", "schur", "svd"}
"""Operations of JAX that LAPACK does on a CPU."""


def one_by_one(init: Callable[[Key], Params], traced: Any) -> Callable[[Key], Params]:
    """``init``, which under `jax.vmap` makes one after another if what it was ``traced`` to, a jaxpr, calls LAPACK."""
    return sequential_vmap(init) if LAPACK.intersection(_operations(traced)) else init


def _operations(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from _operations(inner)
