"""Uplink and downlink: chains of transforms between clients and server, for the slots "uplink" and "downlink"."""

from fljax.rounds.uplink.chain import NOTHING, Link, Linked, Memory, Transform, chained, with_uplink
from fljax.rounds.uplink.compression import error_feedback, low_rank, quantize, random_k, sign, top_k
from fljax.rounds.uplink.downlink import with_downlink
from fljax.rounds.uplink.limits import clip_l1, clip_update, gaussian_noise, laplace_noise, secure_sum
from fljax.rounds.uplink.message import Message, Trip, plain_message
from fljax.rounds.uplink.rotation import rotate

__all__ = [
    "NOTHING",
    "Link",
    "Linked",
    "Memory",
    "Message",
    "Transform",
    "Trip",
    "chained",
    "clip_l1",
    "clip_update",
    "error_feedback",
    "gaussian_noise",
    "laplace_noise",
    "low_rank",
    "plain_message",
    "quantize",
    "random_k",
    "rotate",
    "secure_sum",
    "sign",
    "top_k",
    "with_downlink",
    "with_uplink",
]


def __dir__() -> list[str]:  # without the modules that the names come from
    return __all__
