"""Points of a sweep: a Hyper whose fields are vectors, and small functions that add points.

Each function combines every point of its argument with every new one, so they compose:
``grid(draw(key, FedProxHyper(), 8, lr=log_uniform(1e-3, 1)), mu=(0, 0.1))`` has 16 points.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fljax.checks.arguments import check_count, check_key, whole
from fljax.choices import listed, unknown
from fljax.numbers import as_dict, check_numbers, is_hyper, replace
from fljax.ranges import real, said
from fljax.rounds.sampling import Sampling
from fljax.run.privacy import check_noise, epsilons, mechanism, with_target
from fljax.types import Key, Work

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""``(rng, n) -> (n,)``: a distribution of one field, drawn on the host."""


def grid(hyper: Any, **values: Iterable[float]) -> Any:
    """Every combination of the ``values``, the last field changing fastest: ``grid(FedProxHyper(), lr=..., mu=...)``.

    Args:
        hyper: a Hyper; if it has several points, each is combined with the whole grid.
        **values: the values of each field that varies.

    Raises:
        ValueError: a field has no values or no sequence of values, the Hyper does not have the field (the message
            suggests the nearest), the field is static, or a value is no number.
    """
    for name, field_values in values.items():
        check_field(hyper, name)
        if isinstance(field_values, str) or not np.iterable(field_values):
            raise ValueError(
                f"{name}={field_values!r} is not a sequence of values; give several, or one as ({field_values!r},)"
            )
        chosen = list(field_values)
        if not chosen:
            raise ValueError(f"{name}: an empty grid; give at least one value")
        hyper = _product(hyper, {name: _numbers(name, chosen)})
    return hyper


def draw(key: Key, hyper: Any, n_points: int, **distributions: Draw) -> Any:
    """``n_points`` random points: ``draw(key, FedProxHyper(), 20, lr=log_uniform(1e-3, 1), mu=uniform(0, 1))``.

    A field's values depend only on the key and its name, not on the other fields.

    Args:
        key: the random key.
        hyper: a Hyper; if it has several points, each is combined with all draws.
        n_points: points to draw, >= 1.
        **distributions: `uniform`, `log_uniform` or any ``(rng, n) -> (n,)`` for each field that varies.

    Raises:
        ValueError: there are no points or no fields, or as `grid`.
    """
    check_count("n_points", n_points)
    check_key(key)
    if not distributions:
        raise ValueError(
            f"n_points={n_points}, but no field varies; give at least one, such as lr=log_uniform(1e-3, 1)"
        )
    drawn = {}
    for name, distribution in distributions.items():
        check_field(hyper, name)
        if not callable(distribution):
            raise ValueError(
                f"{said(name, distribution)} is not a distribution; give uniform(low, high) or log_uniform(low, high)"
            )
        rng = np.random.default_rng([*np.asarray(jax.random.key_data(key)), zlib.crc32(name.encode())])
        drawn[name] = np.asarray(distribution(rng, n_points), np.float32)
    return _product(hyper, drawn)


def uniform(low: float, high: float) -> Draw:
    """Uniform on [low, high)."""
    _check_ends(low, high)
    return lambda rng, n: rng.uniform(low, high, n)


def log_uniform(low: float, high: float) -> Draw:
    """Uniform in the logarithm, on [low, high) with low > 0."""
    _check_ends(low, high, above=0.0)
    return lambda rng, n: np.exp(rng.uniform(np.log(low), np.log(high), n))


def spaced(low: float, high: float, n: int) -> tuple[float, ...]:
    """``n`` evenly spaced values, both ends included."""
    _check_ends(low, high)
    return tuple(float(value) for value in np.linspace(low, high, _count(n)))


def log_spaced(low: float, high: float, n: int) -> tuple[float, ...]:
    """``n`` values with equal ratios, both ends included; low > 0."""
    _check_ends(low, high, above=0.0)
    return tuple(float(value) for value in np.geomspace(low, high, _count(n)))


def stack(hypers: Sequence[Any]) -> Any:
    """Single Hypers as the points of one, in their order; for an optimiser that asks for a batch of points.

    Raises:
        ValueError: there are none, they belong to several methods, or a field is None only in some.
    """
    hypers = listed("hypers", hypers, "give Hypers of a method, as [method.Hyper(lr=0.1), method.Hyper(lr=0.2)]")
    if not hypers:
        raise ValueError("no points to stack; give at least one Hyper")
    if len(kinds := {type(hyper): None for hyper in hypers}) > 1:
        names = " and ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"points are of {names}; give Hypers of one method")
    columns = {}
    for name in as_dict(hypers[0]):
        column = [getattr(hyper, name) for hyper in hypers]
        columns[name] = None if all(value is None for value in column) else _numbers(name, column)
    return type(hypers[0])(**columns)


def point(hypers: Any, i: int) -> Any:
    """Point i as a Hyper of single numbers."""
    return replace(hypers, **{name: float(getattr(hypers, name)[i]) for name in varied(hypers)})


def vectors(hypers: Any) -> Any:
    """``hypers`` with every list or tuple as a vector.

    Raises:
        ValueError: a value is no number or out of its range, or ``hypers`` is no Hyper.
    """
    if not is_hyper(hypers) or isinstance(hypers, type):
        raise ValueError(
            f"hypers={hypers!r} is not a Hyper; give one whose fields are numbers or vectors, as from grid"
        )
    lists = {name: value for name, value in as_dict(hypers).items() if isinstance(value, list | tuple)}
    stacked = replace(hypers, **{name: _numbers(name, value) for name, value in lists.items()})
    check_numbers(stacked, stacked=True)
    return stacked


def with_targets(hypers: Any, sampling: Sampling, work: Work | None, n_rounds: int) -> Any:
    """``hypers`` with the noise for each point's ``target_epsilon``; unchanged without a target.

    Raises:
        ValueError: as `vectors`, `count_points` and `fljax.run.privacy.with_target`, or a point's noise is not
            compatible with its other numbers, as in a single run.
    """
    numbers, round_mechanism = as_dict(hypers), mechanism(hypers, sampling, work)
    if round_mechanism is None:
        return hypers
    if numbers["target_epsilon"] is not None:
        hypers = _with_noise(hypers, round_mechanism.noise, sampling, work, n_rounds)
    for single in _points(hypers):
        check_noise(single, float(getattr(single, round_mechanism.noise)))
    return hypers


def epsilons_of_points(hypers: Any, sampling: Sampling, work: Work | None, n_rounds: int) -> np.ndarray | None:
    """`fljax.run.privacy.epsilons` of each point, (points, rounds); None if the method is not private.

    Raises:
        ValueError: as `fljax.run.privacy.epsilons`.
    """
    if (round_mechanism := mechanism(hypers, sampling, work)) is None:
        return None
    epsilon_of: dict[Any, Any] = {}
    settings = [
        (float(getattr(single, round_mechanism.noise)), float(single.delta), single) for single in _points(hypers)
    ]
    for noise, delta, single in settings:
        if (noise, delta) not in epsilon_of:
            epsilon_of[noise, delta] = epsilons(single, sampling, work, n_rounds)
    return np.stack([epsilon_of[noise, delta] for noise, delta, _ in settings])


def _points(hypers: Any) -> Iterator[Any]:
    """Each point as a Hyper of single numbers."""
    hypers = vectors(hypers)
    return (point(hypers, i) for i in range(count_points(hypers)))


def _with_noise(hypers: Any, name: str, sampling: Sampling, work: Work | None, n_rounds: int) -> Any:
    """``hypers`` with the noise ``name`` for each point's target."""
    noise, noise_of = [], {}
    for single in _points(hypers):
        setting = tuple(getattr(single, field, None) for field in ("target_epsilon", "delta", "count_noise", name))
        if setting not in noise_of:
            noise_of[setting] = getattr(with_target(single, sampling, work, n_rounds), name)
        noise.append(noise_of[setting])
    new_value = noise[0] if len(noise_of) == 1 else _numbers(name, noise)
    return replace(vectors(hypers), target_epsilon=None, **{name: new_value})


def varied(hypers: Any) -> list[str]:
    """The fields that are vectors."""
    return [name for name, value in as_dict(hypers).items() if value is not None and np.ndim(value)]


def count_points(hypers: Any) -> int:
    """The number of points of ``hypers``, the length of its vectors; 1 if all fields are numbers.

    Raises:
        ValueError: vectors differ in length or are empty, or a field is neither a number nor a vector.
    """
    lengths = {}
    for name in varied(hypers):
        value = getattr(hypers, name)
        if np.ndim(value) != 1 or np.size(value) == 0:
            raise ValueError(f"{name} has shape {np.shape(value)}; give a number, or a vector with one value per point")
        lengths[name] = len(value)
    if len(set(lengths.values())) > 1:
        raise ValueError(f"fields have different numbers of points: {lengths}; give vectors of equal length")
    return next(iter(lengths.values()), 1)


def check_field(hyper: Any, name: str) -> None:
    """Raises ValueError if ``name`` is no field of the Hyper (it suggests the nearest), or is a static choice."""
    if name in as_dict(hyper):
        return
    if name in Work._fields:
        raise ValueError(f"{name} is static: it changes the program; sweep it in an outer loop, see over_settings")
    raise ValueError(
        f"{type(hyper).__name__}: {unknown('field', name, as_dict(hyper))} "
        "(an argument of the method's factory is static: sweep it in an outer loop, see over_settings)"
    )


def _product(hyper: Any, new: dict[str, np.ndarray]) -> Any:
    """Every point of ``hyper`` with every row of ``new``, whose fields it replaces."""
    kept_names = [name for name in varied(hyper) if name not in new]
    n_old = count_points(replace(hyper, **dict.fromkeys(set(varied(hyper)) - set(kept_names), 0.0)))
    n_new = len(next(iter(new.values())))
    old = {name: np.repeat(np.asarray(getattr(hyper, name), np.float32), n_new) for name in kept_names}
    return replace(hyper, **old, **{name: np.tile(value, n_old) for name, value in new.items()})


def _numbers(name: str, values: Sequence[Any]) -> np.ndarray:
    if any(value is None for value in values):
        raise ValueError(
            f"{name}: None needs another program than numbers; sweep them in an outer loop, see over_settings"
        )
    try:
        return np.array(list(map(float, values)), np.float32)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={list(values)}: give numbers") from None


def _check_ends(low: float, high: float, above: float = -np.inf) -> None:
    if not above < real("low", low) <= real("high", high) < np.inf:
        limit = "" if above == -np.inf else f"{above:g} < "
        raise ValueError(f"low={low}, high={high}: give {limit}low <= high, both finite")


def _count(n: int) -> int:
    if whole("n", n) < 1:
        raise ValueError(f"n={n}: an empty range; give at least one value")
    return n


def rows(hypers: Any) -> Iterator[dict[str, float]]:
    """For each point, the values of the fields that vary, in the shortest form of float32: 0.1, not 0.10000000149."""
    names = varied(hypers)
    for i in range(count_points(hypers)):
        yield {name: float(str(np.float32(getattr(hypers, name)[i]))) for name in names}
