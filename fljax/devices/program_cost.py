"""The cost of a traced program, estimated from its equations: compile time, and the time of one execution.

The estimate decides the compile mode of a program, so it must be the same on every machine and at any time: it measures
nothing, and is correct within a factor of two or three.
"""

import math
from typing import Any, NamedTuple

import jax


class Cost(NamedTuple):
    """The cost of one execution of a program; loops of unknown length are counted ``trips`` times."""

    equations: float  # as written; compile time grows with them
    executed: float  # as executed; each costs a kernel launch
    elements: float  # written by operations other than matrix products and convolutions
    flops: float  # of matrix products and convolutions

    def __add__(self, other: "Cost") -> "Cost":  # pyrefly: ignore[bad-override]
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def repeated(self, times: float) -> "Cost":
        """The cost of ``times`` executions; the number of equations stays."""
        return Cost(self.equations, *(times * part for part in self[1:]))


NOTHING = Cost(0, 0, 0, 0)


def cost_of(jaxpr: Any, trips: float) -> Cost:
    """The cost of one execution of a jaxpr, in which a loop of unknown length counts ``trips`` times.

    Args:
        jaxpr: from `jax.make_jaxpr` or ``jax.jit(f).trace(...).jaxpr``, closed or open.
        trips: an estimate, such as the minibatches of an epoch.
    """
    return sum((_of_equation(equation, trips) for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns), start=NOTHING)


def _of_equation(equation: Any, trips: float) -> Cost:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return cost_of(params["jaxpr"], trips).repeated(params["length"])
    if name == "while":
        return (cost_of(params["cond_jaxpr"], trips) + cost_of(params["body_jaxpr"], trips)).repeated(trips)
    if name == "cond":
        branches = [cost_of(branch, trips) for branch in params["branches"]]
        longest = max(branches, key=lambda cost: cost.elements + cost.flops)
        return longest._replace(equations=sum(cost.equations for cost in branches))
    inner = [cost_of(jaxpr, trips) for jaxpr in inner_programs(params)]
    if inner:
        return sum(inner, start=NOTHING)
    written = float(sum(math.prod(getattr(out.aval, "shape", ())) for out in equation.outvars))
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        lhs = equation.invars[0].aval.shape
        return Cost(1, 1, 0, 2 * written * math.prod(lhs[i] for i in contracted))
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        out_features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return Cost(1, 1, 0, 2 * written * math.prod(kernel) / max(out_features, 1))
    return Cost(1, 1, written, 0)


def inner_programs(params: dict[str, Any]) -> list[Any]:
    """The programs inside an equation: the bodies of jits, of custom derivatives, of a `shard_map`."""
    leaves = jax.tree.leaves(list(params.values()), is_leaf=lambda value: hasattr(value, "eqns"))
    return [value for value in leaves if hasattr(value, "eqns")]


def has_operation(jaxpr: Any, *names: str) -> bool:
    """Whether a jaxpr, closed or open, has an operation of one of these names, also in its loops and branches."""
    return any(
        equation.primitive.name in names
        or any(has_operation(inner, *names) for inner in inner_programs(equation.params))
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )
