"""The methods: a file each, named as its paper names it; `ALGORITHMS` finds them by name."""

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from fljax.choices import check_kind, unknown
from fljax.rounds.bricks import BRICKS
from fljax.rounds.method import KINDS, Method


class _Methods(Mapping[str, Method]):
    """Name -> method: every file and folder here is one, and is imported when it is asked for."""

    def __getitem__(self, name: str) -> Method:
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


ALGORITHMS: Mapping[str, Method] = _Methods()
"""Name -> method, by alphabet."""


def by_kind() -> dict[str, Method]:
    """Every method, baselines first."""
    return dict(sorted(ALGORITHMS.items(), key=lambda item: KINDS.index(item[1].kind)))


def compose(method: str | Method, *bricks: str) -> Method:
    """A method with bricks put in: of its name, "fedprox+median+adam", or of your own method, ``(mine, "median")``.

    Args:
        method: its name and those of bricks, joined by "+", or the method.
        *bricks: names of bricks that are put in after these, one after another.

    Raises:
        ValueError: there is no such method or brick, or the method has no slot for it.
    """
    if not isinstance(method, Method):
        check_kind("method", method, str, "give a name, as 'fedprox+median', or a method of your own")
        method = "+".join(name.strip() for name in method.split("+"))
    for brick in bricks:
        check_kind("brick", brick, str, "give the name of one, as 'median'; a function of your own goes into a slot")
    return _composed(method, *bricks)


@cache  # so that what is composed alike is one method, and one program
def _composed(method: str | Method, *bricks: str) -> Method:
    if not isinstance(method, Method):
        base, *first = method.split("+")
        if base in BRICKS and base not in ALGORITHMS:
            raise ValueError(f"{base} is a brick; name the method that it is put into first, as 'fedavg+{base}'")
        if base not in ALGORITHMS:
            own = "; of a method of your own give the method itself: fljax.compose(mine, 'prox')" if ":" in base else ""
            raise ValueError(f"{unknown('algorithm', base, ALGORITHMS)}; choose one of {', '.join(ALGORITHMS)}{own}")
        method, bricks = ALGORITHMS[base], (*first, *bricks)
    for brick in bricks:
        if brick not in BRICKS:
            fitting = [one.name for one in BRICKS.values() if one.slot in method.slots]
            meant = unknown("brick", brick, BRICKS)
            raise ValueError(f"{method.name}: {meant}; those that fit {method.name}: {', '.join(fitting) or 'none'}")
        method += BRICKS[brick]
    return method


__all__ = ["ALGORITHMS", "by_kind", "compose"]
