"""The bricks by name: what "+krum" in "fedavg+krum" stands for, its numbers and its paper."""

from functools import partial

from fljax.choices import Named
from fljax.client import augment
from fljax.client.sharpness import sharpness_aware
from fljax.numbers import Scalar, hyper, number
from fljax.rounds import combine
from fljax.rounds.extrapolation import extrapolated
from fljax.rounds.local import as_it_is, pull_to_start
from fljax.rounds.method import Brick
from fljax.rounds.uplink import private
from fljax.rounds.uplink.named import DOWNLINK, UPLINK


@hyper
class ProximalHyper:
    mu: Scalar = number(0.1, "proximal weight; 0: none", least=0)


@hyper
class TrimHyper:
    trim: Scalar = number(0.1, "share trimmed on each side of every coordinate; 0 is the mean", least=0, most=0.5)


@hyper
class KrumHyper:
    n_attackers: Scalar = number(
        1, "attackers that the server expects; m models stand against up to (m - 3) / 2", least=0, whole=True
    )


@hyper
class MultiKrumHyper(KrumHyper):
    n_selected: Scalar = number(2, "models that are averaged; all where there are fewer", least=1, whole=True)


@hyper
class ServerMomentumHyper:
    server_lr: Scalar = number(1.0, "learning rate of the server", above=0)
    beta1: Scalar = number(0.9, "memory of the server's first moment", least=0, below=1)


@hyper
class ServerAdagradHyper:
    server_lr: Scalar = number(0.03, "learning rate of the server", above=0)
    tau: Scalar = number(1e-3, "adaptivity: root of the sum of squares before the first step", above=0)


@hyper
class ServerAdaptiveHyper:
    server_lr: Scalar = number(0.03, "learning rate of the server", above=0)
    beta1: Scalar = number(0.9, "memory of the server's first moment", least=0, below=1)
    beta2: Scalar = number(0.99, "memory of the server's second moment", least=0, below=1)
    tau: Scalar = number(1e-3, "adaptivity: added to the root of the second moment", above=0)


@hyper
class SharpnessHyper:
    rho: Scalar = number(0.05, "how far uphill the gradient is taken; 0: where the client is", least=0)


@hyper
class GradientClipHyper:
    max_norm: Scalar = number(10.0, "longest gradient of a batch, Euclidean", above=0)


@hyper
class FlipHyper:
    flip_rate: Scalar = number(0.5, "probability that an image is mirrored", least=0, most=1)


@hyper
class CropHyper:
    crop_padding: Scalar = number(4, "zeros on each side, in pixels, out of which the image is cropped", least=0)


@hyper
class CutoutHyper:
    cutout_size: Scalar = number(8, "side of the square that is 0, in pixels", least=0)


@hyper
class ExtrapolationHyper:
    epsilon: Scalar = number(1e-3, "added to the mean update's squared length; large: the mean itself", above=0)


_FEDOPT = ("Reddi et al., ICLR 2021", "https://arxiv.org/abs/2003.00295")
_YIN = ("Yin et al., ICML 2018", "https://arxiv.org/abs/1803.01498")
_KRUM = ("Blanchard et al., NeurIPS 2017", "https://arxiv.org/abs/1703.02757")


def _step(name: str):
    return partial(combine.stepped, optimizer=name)


_BRICKS = (
    Brick(
        "prox",
        "loss",
        pull_to_start,
        "clients are held near the model that they start a round from",
        ProximalHyper,
        "Li et al., MLSys 2020",
        "https://arxiv.org/abs/1812.06127",
    ),
    Brick(
        "dp_sgd",
        "loss",
        private.private_gradients,
        "clipped gradients of single examples, and noise on their sum: differential privacy of examples (DP-SGD)",
        private.DPSGDHyper,
        "Abadi et al., CCS 2016",
        "https://arxiv.org/abs/1607.00133",
    ),
    *UPLINK,
    *DOWNLINK,
    Brick(
        "sam",
        "loss",
        sharpness_aware,
        "clients take their gradients a little uphill, towards flat minima (FedSAM)",
        SharpnessHyper,
        "Qu et al., ICML 2022",
        "https://arxiv.org/abs/2206.02618",
        before=("dp_sgd",),  # whose noise is worth its epsilon for one gradient a batch
    ),
    Brick("clip_gradient", "loss", as_it_is, "longer gradients of a batch are shortened", GradientClipHyper),
    Brick("flip", "augment", augment.flip, "clients' images are mirrored left to right at random", FlipHyper),
    Brick(
        "crop",
        "augment",
        augment.crop,
        "clients' images are cropped at random out of themselves with a border of zeros",
        CropHyper,
    ),
    Brick(
        "cutout",
        "augment",
        augment.cutout,
        "a square of each of the clients' images is 0",
        CutoutHyper,
        "DeVries and Taylor, 2017",
        "https://arxiv.org/abs/1708.04552",
    ),
    Brick(
        "exp",
        "server",
        extrapolated,
        "a server that goes beyond the mean where clients' updates point apart (FedExP)",
        ExtrapolationHyper,
        "Jhunjhunwala et al., ICLR 2023",
        "https://arxiv.org/abs/2301.09604",
    ),
    Brick("median", "combine", combine.median, "the median of every coordinate", None, *_YIN),
    Brick("trimmed_mean", "combine", combine.trimmed_mean, "a trimmed mean of every coordinate", TrimHyper, *_YIN),
    Brick("krum", "combine", combine.krum, "the one model that is nearest to the others", KrumHyper, *_KRUM),
    Brick("multi_krum", "combine", combine.multi_krum, "the mean of models near the others", MultiKrumHyper, *_KRUM),
    Brick(
        "bulyan",
        "combine",
        combine.bulyan,
        "near the median of every coordinate, in models that Krum takes one after another",
        KrumHyper,
        "El Mhamdi et al., ICML 2018",
        "https://arxiv.org/abs/1802.07927",
    ),
    Brick(
        "geometric_median",
        "combine",
        combine.geometric_median,
        "the model of least summed distance to all (RFA)",
        None,
        "Pillutla et al., IEEE TSP 2022",
        "https://arxiv.org/abs/1912.13445",
    ),
    Brick("momentum", "server", _step("momentum"), "a server with momentum (FedAvgM)", ServerMomentumHyper, *_FEDOPT),
    Brick(
        "adagrad",
        "server",
        _step("adagrad"),
        "a server that takes Adagrad's step (FedAdagrad)",
        ServerAdagradHyper,
        *_FEDOPT,
    ),
    Brick("adam", "server", _step("adam"), "a server that takes Adam's step (FedAdam)", ServerAdaptiveHyper, *_FEDOPT),
    Brick("yogi", "server", _step("yogi"), "a server that takes Yogi's step (FedYogi)", ServerAdaptiveHyper, *_FEDOPT),
)
BRICKS: dict[str, Brick] = Named("brick", {brick.name: brick for brick in _BRICKS})
"""Name -> brick."""
