"""Whether a method's clients can do partial work, as rounds with stragglers ask."""

from collections.abc import Callable
from typing import Any

import jax

from fljax.types import Cohort


def check_effort(round: Callable[[Cohort], Any], cohort: Cohort) -> None:
    """Checks, by tracing it, that a round, ``round(cohort)``, depends on the effort of its participants.

    Raises:
        ValueError: it does not, for example because clients take one step, or because a user's training loop ignores
            the effort.
    """
    traced = jax.make_jaxpr(lambda effort: round(cohort._replace(effort=effort)))(cohort.effort).jaxpr
    if not is_read(traced, traced.invars[0]):
        raise ValueError(
            "the method's clients cannot do partial work, for example because they take one step per round; leave "
            "--stragglers out, or in a method of your own train with fljax.rounds.train or "
            "fljax.client.train_clients(..., effort=cohort.effort)"
        )


def is_read(jaxpr: Any, variable: Any) -> bool:
    """Whether a program uses one of its variables; an argument of a jitted function counts if the function uses it."""
    for equation in jaxpr.eqns:
        for position, operand in enumerate(equation.invars):
            if operand is variable:
                inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
                if inner is None or is_read(inner.jaxpr, inner.jaxpr.invars[position]):
                    return True
    return any(operand is variable for operand in jaxpr.outvars)
