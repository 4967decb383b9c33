"""The uplink and downlink bricks by name, such as "top_k" in "fedavg+top_k"."""

from fljax.numbers import Scalar, hyper, number
from fljax.rounds.slots import Brick
from fljax.rounds.uplink import compression, correlated, limits, private, rotation, sybils
from fljax.rounds.uplink.chain import Transform
from fljax.rounds.uplink.downlink import renamed


@hyper
class TopKDownHyper:
    down_top_share: Scalar = number(
        0.1, "share of the model's changes that are sent down (the largest ones); 1: all", above=0, most=1
    )


@hyper
class QuantizeDownHyper:
    down_bits: Scalar = number(8, "bits of a number that is sent down; 32: not quantised", least=2, most=32)


_SUN = ("Sun et al., 2019", "https://arxiv.org/abs/1911.07963")
_MCMAHAN = ("McMahan et al., ICLR 2018", "https://arxiv.org/abs/1710.06963")
_CHOQUETTE_CHOO = ("Choquette-Choo et al., NeurIPS 2023", "https://arxiv.org/abs/2306.08153")
_ANDREW = ("Andrew et al., NeurIPS 2021", "https://arxiv.org/abs/1905.03871")
_KARIMIREDDY = ("Karimireddy et al., ICML 2019", "https://arxiv.org/abs/1901.09847")
_STICH = ("Stich et al., NeurIPS 2018", "https://arxiv.org/abs/1809.07599")
_KONECNY = ("Konecny et al., 2016", "https://arxiv.org/abs/1610.05492")
_ALISTARH = ("Alistarh et al., NeurIPS 2017", "https://arxiv.org/abs/1610.02132")
_VOGELS = ("Vogels et al., NeurIPS 2019", "https://arxiv.org/abs/1905.13727")
_BONAWITZ = ("Bonawitz et al., CCS 2017", "https://eprint.iacr.org/2017/281")
_FUNG = ("Fung et al., RAID 2020", "https://arxiv.org/abs/1808.04866")
_MCM = ("Philippenko, Dieuleveut, NeurIPS 2021", "https://arxiv.org/abs/2102.12528")
_SURESH = ("Suresh et al., ICML 2017", "https://arxiv.org/abs/1611.00429")
_SPREAD = "later bricks work on a random rotation of an update, of which they lose less if its numbers are uneven"
_LOST = "clients add what later bricks lose of an update to their next one"


def _up(link: Transform, summary: str, Hyper: type | None = None, paper: tuple[str, str] = ("", "")) -> Brick:
    return Brick(link.name, "uplink", link, summary, Hyper, *paper)


def _down(link: Transform, summary: str, Hyper: type | None = None, **numbers: str) -> Brick:
    name = f"down_{link.name}"
    changed = renamed(link, **numbers) if numbers else link._replace(name=name)
    return Brick(name, "downlink", changed, summary, Hyper, *_MCM)


UPLINK = (
    _up(limits.clip_update, "updates are clipped to a norm (norm bounding)", limits.ClipHyper, _SUN),
    _up(limits.clip_l1, "updates are clipped to an L1 norm, for Laplace noise", limits.ClipL1Hyper),
    _up(limits.gaussian_noise, "clients add normal noise to updates", limits.GaussianHyper),
    _up(limits.laplace_noise, "clients add Laplace noise to updates", limits.LaplaceHyper),
    _up(
        private.client_dp,
        "clipped updates with equal weights, and noise on their sum: differential privacy of clients (DP-FedAvg)",
        private.ClientDPHyper,
        _MCMAHAN,
    ),
    _up(
        private.adaptive_client_dp,
        "client_dp whose clip follows a quantile of the updates' norms",
        private.AdaptiveClientDPHyper,
        _ANDREW,
    ),
    _up(
        correlated.banded_client_dp,
        "client_dp whose noise is correlated over the rounds (DP-FTRL by banded matrix factorisation)",
        correlated.BandedClientDPHyper,
        _CHOQUETTE_CHOO,
    ),
    Brick("error_feedback", "uplink", compression.error_feedback, _LOST, None, *_KARIMIREDDY),
    Brick("rotate", "uplink", rotation.rotate, _SPREAD, None, *_SURESH),
    _up(compression.top_k, "only the largest numbers of an update", compression.TopKHyper, _STICH),
    _up(compression.random_k, "random numbers of an update, drawn in each round", compression.RandomKHyper, _KONECNY),
    _up(compression.quantize, "few bits for each number of an update (QSGD)", compression.QuantizeHyper, _ALISTARH),
    _up(compression.sign, "the sign of each number of an update, and one scale", None, _KARIMIREDDY),
    _up(
        compression.low_rank,
        "two thin factors of each matrix of an update (PowerSGD)",
        compression.LowRankHyper,
        _VOGELS,
    ),
    _up(limits.secure_sum, "the server sees only sums of masked updates", limits.SecureSumHyper, _BONAWITZ),
    _up(
        sybils.fools_gold,
        "clients whose summed updates have similar directions get smaller weights (FoolsGold)",
        sybils.FoolsGoldHyper,
        _FUNG,
    ),
)
"""The bricks of the slot "uplink"."""

DOWNLINK = (
    _down(
        compression.top_k,
        "only the largest changes of the server's model; the others are sent later",
        TopKDownHyper,
        top_share="down_top_share",
    ),
    _down(compression.quantize, "few bits for each change of the server's model", QuantizeDownHyper, bits="down_bits"),
    _down(compression.sign, "the sign of each change of the server's model, and one scale"),
)
"""The bricks of the slot "downlink"."""
