"""The attacks by name; each takes the attackers, the first round and its own parameters."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from fljax.attacks import poison, updates
from fljax.attacks.attack import Attack
from fljax.attacks.attackers import Placed
from fljax.choices import Natural, Positive
from fljax.ranges import Number
from fljax.rounds.named_samplings import client_ids
from fljax.static_values import static_value

AtLeast0 = Annotated[float, Number(least=0)]
Above0 = Annotated[float, Number(above=0)]
Above1 = Annotated[float, Number(above=1)]
Finite = Annotated[float, Number()]
Share = Annotated[float, Number(least=0, below=1)]
PartOf = Annotated[float, Number(above=0, most=1)]


def _attackers(
    *, share: Share = 0.2, ids: tuple[int, ...] | None = None, placed: Placed = "spread", start: Natural = 0
) -> None:
    """The attackers, and when they attack.

    Args:
        share: share of the clients that attack; rounded, at least one client if above 0.
        ids: the attackers, numbered among the clients that train; None: a share of the clients.
        placed: "spread" over the groups of clients, or "one_group": fill one group after another.
        start: first round of the attack.
    """


def _attack(make: Callable[..., dict[str, Any]]) -> Callable[..., Attack]:
    """``make``, which returns an `Attack`'s fields, as a function that also takes the arguments of `_attackers`."""

    def attack(fields: dict[str, Any], arguments: dict[str, Any]) -> Attack:
        common = {name: arguments[name] for name in inspect.signature(_attackers).parameters}
        return Attack(make.__name__, **common, **fields, about=(("attack", make.__name__), *arguments.items()))

    def settle(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments | {"ids": None if arguments["ids"] is None else client_ids(arguments["ids"])}

    return static_value(make, attack, beside=_attackers, settle=settle)


def none() -> Attack:
    """No client attacks."""
    return Attack("none")


@_attack
def sign_flip(*, scale: Above0 = 1.0) -> dict[str, Any]:
    """The attackers' updates with the opposite sign, times ``scale`` (Li et al., AAAI 2019).

    Args:
        scale: factor of the attacker's own update.
    """
    return {"craft": updates.sign_flip(scale)}


@_attack
def scaled(*, scale: Above0 = 10.0) -> dict[str, Any]:
    """The attackers' updates, times ``scale``.

    Args:
        scale: factor of the attacker's own update.
    """
    return {"craft": updates.scaled(scale)}


@_attack
def alie(*, z: Finite | None = None) -> dict[str, Any]:
    """A little is enough: the honest mean minus ``z`` standard deviations (Baruch et al., NeurIPS 2019).

    Args:
        z: number of standard deviations; None: the paper's, computed from the numbers of participants and attackers.
    """
    return {"craft": updates.alie(z)}


@_attack
def ipm(*, scale: Above0 = 1.0) -> dict[str, Any]:
    """Inner product manipulation: the honest mean times ``-scale`` (Xie et al., UAI 2019).

    Args:
        scale: factor of the honest mean.
    """
    return {"craft": updates.ipm(scale)}


@_attack
def fang(*, b: Above1 = 2.0) -> dict[str, Any]:
    """Beyond the honest extremes, up to ``b`` times, against the mean's sign (Fang et al., USENIX Sec. 2020).

    Args:
        b: largest factor beyond the honest extremes, above 1.
    """
    return {"craft": updates.fang(b)}


@_attack
def min_max() -> dict[str, Any]:
    """The honest mean, moved within the largest honest distance (Shejwalkar, Houmansadr, NDSS 2021)."""
    return {"craft": updates.min_max()}


@_attack
def min_sum() -> dict[str, Any]:
    """The honest mean, moved within the largest honest sum of squared distances (Shejwalkar, Houmansadr, NDSS 2021)."""
    return {"craft": updates.min_sum()}


@_attack
def free_rider(*, noise: AtLeast0 = 0.0) -> dict[str, Any]:
    """Attackers send the received model, plus noise relative to the honest updates' norm (Lin et al., 2019).

    Args:
        noise: norm of the noise, divided by the honest updates' mean norm.
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
    """Noise on the attackers' inputs, with ``std`` in units of the inputs' range.

    Args:
        std: standard deviation, in units of the inputs' range.
    """
    return {"poison": poison.feature_noise(std)}


@_attack
def backdoor(*, target: Natural = 0, part: PartOf = 0.5, width: Positive = 3) -> dict[str, Any]:
    """A ``part`` of the attackers' images gets a bright square of ``width`` pixels and the label ``target``.

    Args:
        target: class of images with the trigger.
        part: share of an attacker's images that get the trigger.
        width: side of the square, in pixels.
    """
    return {"poison": poison.Backdoor(target, part, width), "target": target, "width": width}


@_attack
def model_replacement(
    *, target: Natural = 0, part: PartOf = 0.5, width: Positive = 3, scale: Above0 = 10.0
) -> dict[str, Any]:
    """`backdoor`, with updates times ``scale`` to outweigh the others (Bagdasaryan et al., AISTATS 2020).

    Args:
        target: class of images with the trigger.
        part: share of an attacker's images that get the trigger.
        width: side of the square, in pixels.
        scale: factor of the attacker's own update.
    """
    trigger = {"poison": poison.Backdoor(target, part, width), "target": target, "width": width}
    return trigger | {"craft": updates.scaled(scale)}


ATTACKS: dict[str, Callable[..., Attack]] = {
    make.__name__: make
    for make in (
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
