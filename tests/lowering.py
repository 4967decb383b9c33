"""What JAX makes anew for each program that it lowers is kept: a context with all dialects, and lowered operations.

Lowering is a fifth of what tests cost, and most operations of a program are those of programs before it. JAX itself
lowers equal operations of one program once; here they serve the thread's later programs too, in the same context.
What names anything of a program (its functions, its channels between devices) is lowered anew.
"""

import threading
from typing import Any

from jax._src.interpreters import mlir
from jaxlib.mlir import ir

kept = threading.local()
"""Of a thread: its ``context``, and in it the ``operations`` lowered so far."""
make_context: Any = getattr(mlir, "make_ir_context", None)  # JAX's own, which a later one may not have
lower_anew: Any = getattr(mlir, "_cached_lowering_miss", None)


def _is_lowering() -> bool:
    """Whether this thread is in the middle of lowering a program; under `jax.ensure_compile_time_eval`, that of random
    numbers runs programs of its own, which a shared context would make parts of the first."""
    try:
        return ir.InsertionPoint.current is not None
    except ValueError:
        return False


def _context_of_thread() -> Any:
    if _is_lowering():
        return make_context()
    if not hasattr(kept, "context"):
        kept.context, kept.operations = make_context(), {}
    return kept.context


def _names_nothing(operation: Any) -> bool:
    """Whether an operation, with those in it, means the same in every program."""
    if operation.name in ("func.call", "stablehlo.custom_call") or "channel_handle" in operation.attributes:
        return False
    inner = (each.operation for region in operation.regions for block in region for each in block)
    return operation.name.startswith(("func.", "stablehlo.")) and all(map(_names_nothing, inner))


def _is_whole(lowered: Any) -> bool:
    """Whether a lowered operation is copied where it is used, is no part of a program, and needs nothing of one."""
    if not getattr(lowered, "inline", False) or getattr(lowered, "const_args", True):
        return False
    return not lowered.func.operation.attached and _names_nothing(lowered.func.operation)


def _lowered_once(ctx: Any, equation: Any, key: Any, *rest: Any, **params: Any) -> Any:
    if ctx.context is not getattr(kept, "context", None):
        return lower_anew(ctx, equation, key, *rest, **params)
    full_key = key, ctx.axis_context, ctx.lowering_parameters
    if (lowered := kept.operations.get(full_key)) is None:
        lowered = lower_anew(ctx, equation, key, *rest, **params)
        if _is_whole(lowered):
            kept.operations[full_key] = lowered
    ctx.lowering_cache[key] = lowered
    return lowered


def keep_what_is_lowered() -> None:
    """From here on, in this process."""
    if make_context is not None:
        mlir.make_ir_context = _context_of_thread
        if lower_anew is not None:
            mlir._cached_lowering_miss = _lowered_once
