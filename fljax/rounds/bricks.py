"""The bricks by name, such as "krum" in "fedavg+krum", with their hyperparameters and papers."""

from functools import partial

from fljax.choices import Named
from fljax.client import augment
from fljax.client.sharpness import sharpness_aware
from fljax.numbers import Scalar, hyper, number
from fljax.rounds import combine
from fljax.rounds.common_descent import common_descent
from fljax.rounds.extrapolation import extrapolated
from fljax.rounds.local import as_it_is, proximal_to_start
from fljax.rounds.model_average import ModelAverageHyper, with_model_average
from fljax.rounds.slots import Brick
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
        1, "attackers that the server expects; m models tolerate at most (m - 3) / 2", least=0, whole=True
    )


@hyper
class MultiKrumHyper(KrumHyper):
    n_selected: Scalar = number(2, "number of models that are averaged; all if there are fewer", least=1, whole=True)


@hyper
class ServerMomentumHyper:
    server_lr: Scalar = number(1.0, "learning rate of the server", above=0)
    beta1: Scalar = number(0.9, "decay rate of the server's first moment", least=0, below=1)


@hyper
class ServerAdagradHyper:
    server_lr: Scalar = number(0.03, "learning rate of the server", above=0)
    tau: Scalar = number(1e-3, "adaptivity: root of the sum of squares before the first step", above=0)


@hyper
class ServerAdaptiveHyper:
    server_lr: Scalar = number(0.03, "learning rate of the server", above=0)
    beta1: Scalar = number(0.9, "decay rate of the server's first moment", least=0, below=1)
    beta2: Scalar = number(0.99, "decay rate of the server's second moment", least=0, below=1)
    tau: Scalar = number(1e-3, "adaptivity: added to the root of the second moment", above=0)


@hyper
class SharpnessHyper:
    rho: Scalar = number(0.05, "length of the ascent step before the gradient is computed; 0: none", least=0)


@hyper
class GradientClipHyper:
    max_norm: Scalar = number(10.0, "largest Euclidean norm of a batch's gradient", above=0)


@hyper
class FlipHyper:
    flip_rate: Scalar = number(0.5, "probability that an image is mirrored", least=0, most=1)


@hyper
class CropHyper:
    crop_padding: Scalar = number(4, "width of the zero padding on each side, in pixels, before the crop", least=0)


@hyper
class CutoutHyper:
    cutout_size: Scalar = number(8, "side of the square that is set to 0, in pixels", least=0)


@hyper
class ExtrapolationHyper:
    epsilon: Scalar = number(1e-3, "added to the mean update's squared norm; if large, the step is the mean", above=0)


@hyper
class CommonDescentHyper:
    mgda_epsilon: Scalar = number(
        0.1,
        "largest distance of a participant's weight from its usual one; 0: the mean of the directions, 1: free weights",
        least=0,
        most=1,
    )
    mgda_step: Scalar = number(1.0, "eta: length of the server's step if all updates have one direction", above=0)


_FEDOPT = ("Reddi et al., ICLR 2021", "https://arxiv.org/abs/2003.00295")
_YIN = ("Yin et al., ICML 2018", "https://arxiv.org/abs/1803.01498")
_KRUM = ("Blanchard et al., NeurIPS 2017", "https://arxiv.org/abs/1703.02757")


def _step(name: str):
    return partial(combine.by_optimizer, optimizer=name)


_BRICKS = (
    Brick(
        "prox",
        "loss",
        proximal_to_start,
        "a proximal term that holds clients near their initial model of the round",
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
        "clients use sharpness-aware gradients, which lead to flat minima (FedSAM)",
        SharpnessHyper,
        "Qu et al., ICML 2022",
        "https://arxiv.org/abs/2206.02618",
        before=("dp_sgd",),  # its noise is computed for one gradient per batch
    ),
    Brick("clip_gradient", "loss", as_it_is, "a batch's gradient is clipped to a norm", GradientClipHyper),
    Brick("flip", "augment", augment.flip, "clients' images are randomly mirrored left to right", FlipHyper),
    Brick("crop", "augment", augment.crop, "clients' images are padded with zeros and randomly cropped", CropHyper),
    Brick(
        "cutout",
        "augment",
        augment.cutout,
        "a random square of each of the clients' images is set to 0",
        CutoutHyper,
        "DeVries and Taylor, 2017",
        "https://arxiv.org/abs/1708.04552",
    ),
    Brick(
        "exp",
        "server",
        extrapolated,
        "a server that moves beyond the mean if clients' updates differ in direction (FedExP)",
        ExtrapolationHyper,
        "Jhunjhunwala et al., ICLR 2023",
        "https://arxiv.org/abs/2301.09604",
    ),
    Brick("median", "combine", combine.median, "the median of every coordinate", None, *_YIN),
    Brick("trimmed_mean", "combine", combine.trimmed_mean, "a trimmed mean of every coordinate", TrimHyper, *_YIN),
    Brick("krum", "combine", combine.krum, "the model that is nearest to the others", KrumHyper, *_KRUM),
    Brick("multi_krum", "combine", combine.multi_krum, "the mean of models near the others", MultiKrumHyper, *_KRUM),
    Brick(
        "bulyan",
        "combine",
        combine.bulyan,
        "a mean near the median of every coordinate, over models that Krum selects one after another",
        KrumHyper,
        "El Mhamdi et al., ICML 2018",
        "https://arxiv.org/abs/1802.07927",
    ),
    Brick(
        "geometric_median",
        "combine",
        combine.geometric_median,
        "the model with the least summed distance to all (RFA)",
        None,
        "Pillutla et al., IEEE TSP 2022",
        "https://arxiv.org/abs/1912.13445",
    ),
    Brick(
        "mgda",
        "combine",
        common_descent,
        "a step along the participants' update directions, weighted so that no loss need rise (FedMGDA+)",
        CommonDescentHyper,
        "Hu et al., TNSE 2022",
        "https://arxiv.org/abs/2006.11489",
    ),
    Brick("momentum", "server", _step("momentum"), "a server with momentum (FedAvgM)", ServerMomentumHyper, *_FEDOPT),
    Brick("adagrad", "server", _step("adagrad"), "a server with Adagrad (FedAdagrad)", ServerAdagradHyper, *_FEDOPT),
    Brick("adam", "server", _step("adam"), "a server with Adam (FedAdam)", ServerAdaptiveHyper, *_FEDOPT),
    Brick("yogi", "server", _step("yogi"), "a server with Yogi (FedYogi)", ServerAdaptiveHyper, *_FEDOPT),
    Brick(
        "ema",
        "algorithm",
        with_model_average,
        "tests are of a moving average of the server's models over the rounds, which training does not see",
        ModelAverageHyper,
    ),
)
BRICKS: dict[str, Brick] = Named("brick", {brick.name: brick for brick in _BRICKS})
"""Name -> brick."""
