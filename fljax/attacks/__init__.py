"""Attacks: some clients send manipulated updates or train on poisoned data, with any method.

``fljax.attacks.attacked(algorithm, federation, fljax.attacks.sign_flip(share=0.2))`` returns a method and a federation
for `fljax.simulate`. Defences are bricks: ``fedavg+krum``, ``ifca+trimmed_mean``, ``fedavg+clip_update``.
"""

from fljax.attacks.attack import Attack, Attacked, attacked
from fljax.attacks.named import (
    ATTACKS,
    alie,
    backdoor,
    fang,
    feature_noise,
    free_rider,
    ipm,
    label_flip,
    min_max,
    min_sum,
    model_replacement,
    scaled,
    sign_flip,
)

__all__ = [
    "ATTACKS",
    "Attack",
    "Attacked",
    "alie",
    "attacked",
    "backdoor",
    "fang",
    "feature_noise",
    "free_rider",
    "ipm",
    "label_flip",
    "min_max",
    "min_sum",
    "model_replacement",
    "scaled",
    "sign_flip",
]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
