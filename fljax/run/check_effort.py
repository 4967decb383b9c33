"""Whether a method's clients do the part of their work that a round asks of them."""

from collections.abc import Callable
from typing import Any

import jax

from fljax.types import Cohort


def check_effort(round: Callable[[Cohort], Any], cohort: Cohort) -> None:
    """Checks that a round, ``round(cohort)``, depends on the effort of its participants, by tracing it.

    Raises:
        ValueError: it does not, as where clients take one step, or train in a loop of the user's that does not ask.
    """
    traced = jax.make_jaxpr(lambda effort: round(cohort._replace(effort=effort)))(cohort.effort).jaxpr
    if not is_read(traced, traced.invars[0]):
        raise ValueError(
            "the method's clients do all of their work whatever part is asked of them, as where they take one step a "
            "round; run it without stragglers, or let them train by fljax.rounds.train, or by "
            "fljax.client.train_clients(..., effort=cohort.effort)"
        )


def is_read(jaxpr: Any, variable: Any) -> bool:
    """Whether a program uses one of its variables; what a jitted function is given counts where that uses it."""
    for equation in jaxpr.eqns:
        for place, given in enumerate(equation.invars):
            if given is variable:
                inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
                if inner is None or is_read(inner.jaxpr, inner.jaxpr.invars[place]):
                    return True
    return any(given is variable for given in jaxpr.outvars)
