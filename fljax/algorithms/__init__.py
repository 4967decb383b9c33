"""The methods: one file each, named as in its paper; `ALGORITHMS` finds them by name."""

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from fljax.choices import check_kind, unknown
from fljax.rounds.bricks import BRICKS
from fljax.rounds.method import KINDS, AnyMethod, Method
from fljax.rounds.slots import Brick, check_brick


class _Methods(Mapping[str, AnyMethod]):
    """Name -> method: each file or folder here is one method, imported on first use."""

    def __getitem__(self, name: str) -> AnyMethod:
        if name not in self._names():
            raise KeyError(unknown("algorithm", name, self._names()))
        return getattr(import_module(f"{__name__}.{name}"), name)

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    @staticmethod
    @cache
    def _names() -> tuple[str, ...]:
        return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


ALGORITHMS: Mapping[str, AnyMethod] = _Methods()
"""Name -> method, in alphabetical order."""


def by_kind() -> dict[str, AnyMethod]:
    """Name -> method for all methods, ordered by kind: baselines first."""
    return dict(sorted(ALGORITHMS.items(), key=lambda item: KINDS.index(item[1].kind)))


def compose(method: str | AnyMethod, *bricks: str | Brick) -> AnyMethod:
    """A method with bricks in its slots: ``compose("fedprox+median+adam")``, or ``compose(mine, "median")``.

    Args:
        method: names of a method and of bricks, joined by "+", or a method of your own.
        *bricks: further bricks, put in after those of ``method``, in this order: names, "median", "adam" or
            "median+adam", and bricks of your own.

    Raises:
        ValueError: there is no such method or brick, or the method has no slot for the brick.
    """
    if not isinstance(method, Method):
        check_kind("method", method, str, "give a name, such as 'fedprox+median', or a method of your own")
        method = "+".join(name.strip() for name in method.split("+"))
    parts: list[str | Brick] = []
    for brick in bricks:
        if not isinstance(brick, Brick):
            check_kind("brick", brick, str, "give its name, such as 'median', or a fljax.rounds.Brick of your own")
            parts += [name.strip() for name in brick.split("+")]
            continue
        check_brick(brick)
        parts.append(brick)
    return _composed(method, *parts)


@cache  # equal compositions are one method, and so compile to one program
def _composed(method: str | AnyMethod, *bricks: str | Brick) -> AnyMethod:
    if not isinstance(method, Method):
        base, *first_bricks = method.split("+")
        if base in BRICKS and base not in ALGORITHMS:
            raise ValueError(f"{base} is a brick; name a method first, such as 'fedavg+{base}'")
        if base not in ALGORITHMS:
            raise ValueError(
                f"{unknown('algorithm', base, ALGORITHMS)}; choose one of {', '.join(ALGORITHMS)}; to name a method of "
                "your own or of a package, pass the method itself: fljax.compose(mine, 'prox')"
            )
        method, bricks = ALGORITHMS[base], (*first_bricks, *bricks)
    for brick in bricks:
        if isinstance(brick, str) and ".py" in brick:  # a word of the command line, which finds such bricks by itself
            raise ValueError(
                f"{brick} names an object of a file; import the brick, and give it: fljax.compose(..., brick)"
            )
        if isinstance(brick, str) and brick not in BRICKS:
            fitting = [one.name for one in BRICKS.values() if one.slot in method.slots]
            message = unknown("brick", brick, BRICKS)
            raise ValueError(f"{method.name}: {message}; bricks that fit {method.name}: {', '.join(fitting) or 'none'}")
        method += BRICKS[brick] if isinstance(brick, str) else brick
    return method


__all__ = ["ALGORITHMS", "by_kind", "compose"]
