"""The attacks by name; each takes who attacks and from which round, and numbers of its own."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from fljax.attacks import poison, updates
from fljax.attacks.attack import Attack
from fljax.attacks.attackers import Placed
from fljax.choices import Natural, Positive
from fljax.ranges import Number
from fljax.rounds.sampling import client_ids
from fljax.static_values import static_value

AtLeast0 = Annotated[float, Number(least=0)]
Above0 = Annotated[float, Number(above=0)]
Above1 = Annotated[float, Number(above=1)]
Finite = Annotated[float, Number()]
Share = Annotated[float, Number(least=0, below=1)]
PartOf = Annotated[float, Number(above=0, most=1)]


def _who(
    *, share: Share = 0.2, ids: tuple[int, ...] | None = None, placed: Placed = "spread", start: Natural = 0
) -> None:
    """Who attacks, and when.

    Args:
        share: of the clients that attack; rounded, at least one where it is above 0.
        ids: the attackers, numbered among the clients that train; None: a share of the clients.
        placed: "spread" over the groups of clients, or filling "one_group" after another.
        start: first round of the attack.
    """


def _attack(make: Callable[..., dict[str, Any]]) -> Callable[..., Attack]:
    """``make``, which gives an `Attack`'s fields, as a function that takes those of `_who` besides."""

    def attack(fields: dict[str, Any], given: dict[str, Any]) -> Attack:
        who = {name: given[name] for name in inspect.signature(_who).parameters}
        return Attack(make.__name__, **who, **fields, about=(("attack", make.__name__), *given.items()))

    def settle(given: dict[str, Any]) -> dict[str, Any]:
        return given | {"ids": None if given["ids"] is None else client_ids(given["ids"])}

    return static_value(make, attack, beside=_who, settle=settle)


def none() -> Attack:
    """Nobody attacks."""
    return Attack("none")


@_attack
def sign_flip(*, scale: Above0 = 1.0) -> dict[str, Any]:
    """The attackers' updates with the opposite sign, ``scale`` times as long (Li et al., AAAI 2019).

    Args:
        scale: length of what is sent, over that of the attacker's own update.
    """
    return {"craft": updates.sign_flip(scale)}


@_attack
def scaled(*, scale: Above0 = 10.0) -> dict[str, Any]:
    """The attackers' updates, ``scale`` times as long.

    Args:
        scale: length of what is sent, over that of the attacker's own update.
    """
    return {"craft": updates.scaled(scale)}


@_attack
def alie(*, z: Finite | None = None) -> dict[str, Any]:
    """A little is enough: the honest mean less ``z`` deviations; None: the paper's z (Baruch et al., NeurIPS 2019).

    Args:
        z: standard deviations below the mean; None: as many as the number of participants allows.
    """
    return {"craft": updates.alie(z)}


@_attack
def ipm(*, scale: Above0 = 1.0) -> dict[str, Any]:
    """Inner product manipulation: the honest mean times ``-scale`` (Xie et al., UAI 2019).

    Args:
        scale: length of what is sent, over that of the honest mean.
    """
    return {"craft": updates.ipm(scale)}


@_attack
def fang(*, b: Above1 = 2.0) -> dict[str, Any]:
    """Beyond the honest extremes, up to ``b`` times them, against the mean's sign (Fang et al., USENIX Sec. 2020).

    Args:
        b: how far beyond the honest extremes, as a factor, above 1.
    """
    return {"craft": updates.fang(b)}


@_attack
def min_max() -> dict[str, Any]:
    """The honest mean, moved as far as the largest honest distance allows (Shejwalkar, Houmansadr, NDSS 2021)."""
    return {"craft": updates.min_max()}


@_attack
def min_sum() -> dict[str, Any]:
    """The honest mean, moved as far as honest sums of squared distances allow (Shejwalkar, Houmansadr, NDSS 2021)."""
    return {"craft": updates.min_sum()}


@_attack
def free_rider(*, noise: AtLeast0 = 0.0) -> dict[str, Any]:
    """Attackers send what they received, with ``noise`` of the honest updates' length (Lin et al., 2019).

    Args:
        noise: length of the noise, over the honest updates' mean length.
    """
    return {"craft": updates.free_rider(noise)}


@_attack
def label_flip(*, target: Natural | None = None) -> dict[str, Any]:
    """The attackers' labels y become ``n_classes - 1 - y``, or all ``target`` (Fang et al., USENIX Security 2020).

    Args:
        target: class of all examples; None: n_classes - 1 - y.
    """
    return {"poison": poison.label_flip(target)}


@_attack
def feature_noise(*, std: AtLeast0 = 0.5) -> dict[str, Any]:
    """Noise on the attackers' inputs, ``std`` in units of their range.

    Args:
        std: standard deviation, in units of the inputs' range.
    """
    return {"poison": poison.feature_noise(std)}


@_attack
def backdoor(*, target: Natural = 0, part: PartOf = 0.5, width: Positive = 3) -> dict[str, Any]:
    """A ``part`` of the attackers' images has a square of ``width`` bright pixels and the label ``target``.

    Args:
        target: class that the trigger stands for.
        part: share of an attacker's images that get it.
        width: of the square, in pixels.
    """
    return {"poison": poison.Backdoor(target, part, width), "target": target, "width": width}


@_attack
def model_replacement(
    *, target: Natural = 0, part: PartOf = 0.5, width: Positive = 3, scale: Above0 = 10.0
) -> dict[str, Any]:
    """`backdoor`, with updates ``scale`` times as long to outweigh the others (Bagdasaryan et al., AISTATS 2020).

    Args:
        target: class that the trigger stands for.
        part: share of an attacker's images that get it.
        width: of the square, in pixels.
        scale: length of what is sent, over that of the attacker's own update.
    """
    trigger = {"poison": poison.Backdoor(target, part, width), "target": target, "width": width}
    return trigger | {"craft": updates.scaled(scale)}


ATTACKS: dict[str, Callable[..., Attack]] = {
    made.__name__: made
    for made in (
        none,
        sign_flip,
        scaled,
        alie,
        ipm,
        fang,
        min_max,
        min_sum,
        free_rider,
        label_flip,
        feature_noise,
        backdoor,
        model_replacement,
    )
}
"""Name -> function that makes the attack."""
