"""What bricks put around a finished method: schedules, chains up and down, and functions of the whole algorithm."""

from collections.abc import Mapping, Sequence

from fljax.choices import check_kind
from fljax.rounds.schedule import scheduled, scheduled_link
from fljax.rounds.slots import Brick
from fljax.rounds.uplink.chain import chained, with_uplink
from fljax.rounds.uplink.downlink import with_downlink
from fljax.types import Algorithm


def surrounded(algorithm: Algorithm, bricks: Mapping[str, Sequence[Brick]]) -> Algorithm:
    """``algorithm`` with the bricks of the slots "schedule", "algorithm", "uplink" and "downlink".

    Schedules reach what links compute, too. A function of the whole algorithm sees it without links if it keeps the two
    halves of the round, between which links and attacks go; else with them.

    Raises:
        ValueError: a link does not fit the method, or a function returns no algorithm.
    """
    schedules = [(brick.name, brick.value) for brick in bricks["schedule"]]
    if schedules:
        algorithm = scheduled(algorithm, schedules)
    outermost = []
    for brick in bricks["algorithm"]:
        changed = _changed(algorithm, brick)
        if changed.round_exchange is None:
            outermost.append(brick)
        else:
            algorithm = changed
    for slot, link in (("uplink", with_uplink), ("downlink", with_downlink)):
        if bricks[slot]:
            transform = chained([brick.value for brick in bricks[slot]])
            algorithm = link(algorithm, scheduled_link(transform, schedules) if schedules else transform)
    for brick in outermost:
        algorithm = _changed(algorithm, brick)
    return algorithm


def _changed(algorithm: Algorithm, brick: Brick) -> Algorithm:
    changed = brick.value(algorithm)
    check_kind(f"what the brick {brick.name} returned", changed, Algorithm, "return one, as algorithm._replace does")
    return changed
