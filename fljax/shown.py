"""How values are shown: arrays by their dtype and shape, methods and networks by their name and choices."""

from collections.abc import Mapping
from reprlib import Repr
from typing import Any

import jax


def with_choices(name: str, choices: Mapping[str, Any]) -> str:
    """The name of a method, a network or a sampling with its static choices: ``ifca(n_clusters=4, weighting='size')``.

    Of a long tuple, such as one number per client, the first few are shown.
    """
    shown = (
        f"{field}={value.__name__ if isinstance(value, type) else _SHORT.repr(value)}"
        for field, value in choices.items()
    )
    return f"{name}({', '.join(shown)})"


_SHORT = Repr()
_SHORT.maxtuple, _SHORT.maxstring, _SHORT.maxother = 8, 200, 200


class _Shape:
    """A leaf, whose repr is its dtype and shape if it is an array."""

    def __init__(self, leaf: Any) -> None:
        is_array = hasattr(leaf, "dtype") and hasattr(leaf, "shape")
        self.text = f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" if is_array else repr(leaf)

    def __repr__(self) -> str:
        return self.text


def repr_with_shapes(self: Any) -> str:
    """The ``__repr__`` of a named tuple, without fields that are None: ``Trained(params={'fc1': float32[4,64]})``."""
    fields = ((name, value) for name, value in self._asdict().items() if value is not None)
    shapes = (f"{name}={jax.tree.map(_Shape, value)!r}" for name, value in fields)
    return f"{type(self).__name__}({', '.join(shapes)})"
