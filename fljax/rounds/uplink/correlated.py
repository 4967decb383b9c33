"""Differential privacy of clients by noise that is correlated over the rounds: DP-FTRL by banded matrix factorisation.

- the mechanism, and what it guarantees if a client rests between two rounds: Choquette-Choo, Ganesh, McKenna, McMahan,
  Rush, Thakurta, Xu: (Amplified) Banded Matrix Factorization, NeurIPS 2023, https://arxiv.org/abs/2306.08153
- why it holds although updates depend on what was released before: Denisov, McMahan, Rush, Smith, Thakurta: Improved
  Differential Privacy for SGD via Optimal Private Linear Operators on Adaptive Streams, NeurIPS 2022,
  https://arxiv.org/abs/2202.08312
- the coefficients: Kalinin, Lampert: Banded Square Root Matrix Factorization for Differentially Private Model Training,
  NeurIPS 2024, https://arxiv.org/abs/2405.13763

`fljax.run.privacy` computes epsilon.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax import tree
from fljax.numbers import Scalar, hyper, number
from fljax.rounds.uplink.chain import Memory, Transform
from fljax.rounds.uplink.message import Message, Trip, n_numbers
from fljax.rounds.uplink.private import SECRET, ClientDPHyper, known_noise, noise_std, noisy_mean, standard_normal

MOST_BANDS = 32
"""The largest number of bands; the server keeps the noise of so many rounds, less one."""

_RATIOS = (2 * np.arange(1.0, MOST_BANDS) - 1) / (2 * np.arange(1.0, MOST_BANDS))
_SQUARE_ROOT = np.cumprod([1.0, *_RATIOS]).astype(np.float32)
"""The first coefficients of ``(1 - x)^(-1/2)``, the square root of ``1 + x + x^2 + ...``, which stands for a sum over
the rounds so far."""


@hyper
class BandedClientDPHyper(ClientDPHyper):
    """Hyperparameters of DP-FTRL by banded matrix factorisation."""

    bands: Scalar = number(
        8,
        "rounds over which the noise is correlated, at most the separation of a client's rounds; 1: independent noise",
        least=1,
        most=MOST_BANDS,
        whole=True,
    )


def band_coefficients(bands: Scalar) -> Array:
    """(MOST_BANDS,) float32, C's first column: c_0 = 1, c_j = c_(j-1) (2 j - 1) / (2 j); 0 from ``bands`` on."""
    is_in_band = jnp.arange(MOST_BANDS, dtype=jnp.float32) < bands
    return jnp.where(is_in_band, _SQUARE_ROOT, 0.0)


def _banded_client_dp(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    c = band_coefficients(hyper.bands)
    # y_t = z_t - sum_j c_j y_(t-j) with z_t ~ N(0, 1), and the clip scales it afterwards: so a clip that changes from
    # round to round (the slot "schedule") scales a round's clipped updates and its noise alike, and epsilon holds.
    fresh, correlated = standard_normal(message, trip), tree.product(c[None, 1:], memory.server)[0]
    std = noise_std(known_noise(hyper, "noise_multiplier"), hyper.dp_clip) * jnp.linalg.norm(c)
    past = jnp.concatenate([(fresh - correlated)[None], memory.server[:-1]])
    # The difference of products, because the compiler rounds std * fresh as in client_dp only if it stands alone.
    return Memory(past, memory.clients), noisy_mean(message, trip, hyper.dp_clip, std * fresh - std * correlated)


banded_client_dp = Transform(
    _banded_client_dp,
    lambda hyper, n_clients, shapes: Memory(jnp.zeros((MOST_BANDS - 1, n_numbers(shapes)), jnp.float32)),
    needs="mean",
    is_last=True,
    not_fed_back=SECRET,
    name="banded_client_dp",
    follows_mask=True,
)
"""`fljax.rounds.uplink.private.client_dp` whose noise is correlated over ``bands`` rounds, so that it partly cancels in
the sum of all rounds, which is the model.

The noise of all rounds is ``C^-1 Z``: Z has independent rows ``N(0, (noise_multiplier dp_clip |c|)^2)``, and C is lower
triangular and Toeplitz with the ``bands`` coefficients c. With ``bands=1`` it is that of client_dp. Since a client
rests for ``bands - 1`` rounds, its rounds change disjoint rows of ``C X``, each by at most ``dp_clip |c|``: a round of
it is a Gaussian mechanism with the multiplier ``noise_multiplier``. The server keeps the noise of `MOST_BANDS` - 1
rounds, whatever ``bands`` is. A round without participants also releases noise.
"""
