"""Privacy accounting: epsilon after each round, and the noise that follows from a target epsilon.

Computed with Renyi differential privacy by Google's ``dp-accounting`` (``pip install 'fljax[privacy]'``), for adding or
removing one client (the bricks client_dp, adaptive_client_dp and banded_client_dp) or one example (dp_sgd).

- Clients: with Poisson sampling a round is a Gaussian mechanism on a random share of the clients. With any other
  sampling the guarantee is that of participating in every round, for a client that sends its updates or whose place
  stays empty, as if it dropped out: if the number of participants is fixed, or the first few count, a further client
  would take the place of another. An update of zeros is no empty place: adaptive_client_dp counts it as a short one.
  With a minimum separation of b rounds (`fljax.rounds.least_recent`), or in passes of b rounds
  (`fljax.rounds.shuffled`), a client participates in at most ceil(r / b) of the first r rounds.
- Correlated noise: with banded_client_dp a round is a Gaussian mechanism only if no client participates twice in
  ``bands`` consecutive rounds, so samplings that do not assure it are refused, also if no epsilon is asked for. Poisson
  sampling is one of them.
- Examples: an epoch uses every example once, so it is one Gaussian mechanism, and a client's guarantee is that of
  training in every round. Batches are consecutive parts of a shuffled epoch, which is not Poisson sampling, so small
  batches do not improve the guarantee. It holds for an example whose gradients are there or are zeros, and the number
  of examples of each client is public: one more may begin another batch, and with it a step and its noise. An example
  that several clients have, as `primary_secondary` splits them, counts as one of each; removing it from all costs more.

Epsilon covers updates or gradients. It does not cover what a method sends besides them (losses, choices of a cluster,
counts or means of labels).
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax.client.steps import whole_epochs
from fljax.numbers import as_dict, numbers_of, replace
from fljax.ranges import check_number
from fljax.rounds.named_samplings import drawn_share
from fljax.rounds.sampling import Sampling
from fljax.rounds.uplink.correlated import BandedClientDPHyper
from fljax.rounds.uplink.private import PrivacyHyper
from fljax.types import Work

ORDERS = (*range(2, 64), 72, 80, 96, 128, 192, 256, 512, 1024)
"""Orders of the Renyi divergence. The best one is reported; fewer orders can only make an epsilon larger."""


_LEAST, _MOST = 1e-2, 1e6  # range of the noise for a target


class Mechanism(NamedTuple):
    """A round as a mechanism on one client or one example: ``per_round`` Gaussian mechanisms with sampling ``rate``."""

    noise: str  # the name of the noise multiplier
    rate: float
    per_round: int
    once_in: int  # a client participates in at most ceil(r / once_in) of the first r rounds

    def count(self, n_rounds: int) -> int:
        """The number of Gaussian mechanisms in the first ``n_rounds`` rounds, at most."""
        return -(-n_rounds // self.once_in) * self.per_round


NOISES = ("noise_multiplier", "example_noise")
"""Hyperparameters of a private method that are noise; they follow from ``target_epsilon`` if it is given."""


def mechanism(hyper: Any, sampling: Sampling, work: Work | None) -> Mechanism | None:
    """The mechanism of a method with these hyperparameters; None if it is not private.

    Args:
        hyper: the hyperparameters.
        sampling: the sampling of clients, as `Sampling.of` a federation has it.
        work: local work in a round.

    Raises:
        ValueError: the method is private, and the sampling chooses clients by their losses, now or remembered; or its
            noise is correlated over more rounds than the sampling separates a client's rounds by; or local work is a
            number of steps, so that nobody knows how often an example is used.
    """
    if not isinstance(hyper, PrivacyHyper):
        return None
    if sampling.by_loss:
        raise ValueError(
            "the sampling asks clients for their losses, which have no noise, so that epsilon would not hold; choose "
            "another sampling, such as poisson, or a method that is not private"
        )
    if sampling.memory is not None and sampling.memory.sends:
        raise ValueError(
            "the sampling remembers what participants tell of their losses, which has no noise, so that epsilon would "
            "not hold; choose another sampling, such as poisson, or a method that is not private"
        )
    numbers = as_dict(hyper)
    # A function of the number of clients promises nothing until that is known.
    once_in, separation = (1 if callable(rounds) else rounds for rounds in (sampling.once_in, sampling.separation))
    once_in = max(once_in, separation)
    if isinstance(hyper, BandedClientDPHyper):
        _check_separation(hyper, separation, dict(sampling.about).get("sampling", "one of your own"))
    if "noise_multiplier" in numbers:
        rate = drawn_share(dict(sampling.about)["participation"]) if sampling.is_independent else 1.0
        return Mechanism("noise_multiplier", rate, 1, once_in)
    if "example_noise" in numbers:
        return Mechanism("example_noise", 1.0, whole_epochs(work, "epsilon") if work else 1, once_in)
    return None


def _check_separation(hyper: Any, separation: int, sampling: str) -> None:
    """Raises ValueError if noise is correlated over more rounds than a client's are apart, or ``bands`` is out of its
    range; tracers pass."""
    bands = hyper.bands
    check_number("bands", bands, numbers_of(type(hyper))["bands"], stacked=True)
    if isinstance(bands, jax.core.Tracer):
        return
    most = np.max(np.asarray(bands, np.float32))  # of the points of a sweep
    if most > separation:
        raise ValueError(
            f"bands={most:g}: epsilon would hold only if no client participates twice in {most:g} consecutive rounds, "
            f"but the sampling {sampling} assures {separation}; choose least_recent with separation={most:g} or more, "
            f"or bands={separation}"
        )


def epsilons(hyper: Any, sampling: Sampling, work: Work | None, n_rounds: int) -> np.ndarray | None:
    """Epsilon after each round, (rounds,) float32; inf without noise. None if the method is not private, or is traced.

    Raises:
        ValueError: the accountant is not installed, or the noise on counts needs more than the total noise.
    """
    round_mechanism = mechanism(hyper, sampling, work)
    if round_mechanism is None or any(isinstance(value, jax.core.Tracer) for value in as_dict(hyper).values()):
        return None
    noise, delta = float(getattr(hyper, round_mechanism.noise)), float(hyper.delta)
    check_noise(hyper, noise)
    if noise == 0:
        return np.full(n_rounds, np.inf, np.float32)
    _accounting()
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    accountant = _accountant()
    accountant.compose(_event(round_mechanism, noise))
    # Divergences add up; composing again would take a tenth of a second per round.
    divergences, counts = np.asarray(accountant._rdp), [round_mechanism.count(r + 1) for r in range(n_rounds)]
    epsilon_of = {count: compute_epsilon(ORDERS, (count * divergences).tolist(), delta)[0] for count in set(counts)}
    return np.array([epsilon_of[count] for count in counts], np.float32)


def with_target(hyper: Any, sampling: Sampling, work: Work | None, n_rounds: int) -> Any:
    """``hyper`` with the noise for its ``target_epsilon`` after ``n_rounds`` rounds; unchanged without a target.

    Raises:
        ValueError: no noise is enough, noise is given besides the target, or the accountant is not installed.
    """
    round_mechanism = mechanism(hyper, sampling, work)
    if round_mechanism is None or hyper.target_epsilon is None:
        return hyper
    _check_target_alone(hyper, round_mechanism.noise)
    target, delta, accounting = float(hyper.target_epsilon), float(hyper.delta), _accounting()

    def event(noise: float) -> Any:
        return accounting.SelfComposedDpEvent(_event(round_mechanism, noise), round_mechanism.count(n_rounds))

    def epsilon(noise: float) -> float:
        accountant = _accountant()
        return accountant.compose(event(noise)).get_epsilon(delta)

    if epsilon(_MOST) > target:
        raise ValueError(
            f"target_epsilon={target:g} cannot be reached in {n_rounds} rounds at delta={delta:g}; choose more than "
            f"{epsilon(_MOST):.3g}"
        )
    noise = _LEAST
    if epsilon(_LEAST) > target:
        bracket = accounting.ExplicitBracketInterval(_LEAST, _MOST)
        noise = accounting.calibrate_dp_mechanism(_accountant, event, target, delta, bracket)
    check_noise(hyper, noise)
    return replace(hyper, target_epsilon=None, **{round_mechanism.noise: noise})


def _check_target_alone(hyper: Any, noise: str) -> None:
    """Raises ValueError if ``noise`` has another value than its default besides a target."""
    value = float(getattr(hyper, noise))
    if value != numbers_of(type(hyper))[noise].default:
        raise ValueError(
            f"{noise}={value:g} and target_epsilon={float(hyper.target_epsilon):g} are both given, but the noise "
            "follows from the target; leave one of them out"
        )


def check_noise(hyper: Any, noise: float) -> None:
    """Checks that the noise is compatible with the other hyperparameters.

    Raises:
        ValueError: a clip is infinite and there is noise, or the noise on counts needs more than the total noise.
    """
    numbers = as_dict(hyper)
    for name in ("dp_clip", "example_clip"):
        if name in numbers and math.isinf(float(numbers[name])) and noise > 0:
            raise ValueError(f"{name}=inf, but the noise is {noise:g} times it; choose a finite {name}, or no noise")
    counts = numbers.get("count_noise")
    if counts is not None and 2 * float(counts) <= noise:
        raise ValueError(
            f"count_noise={float(counts):g} is too little; choose more than half of noise_multiplier={noise:g}"
        )


def _event(mechanism: Mechanism, noise: float) -> Any:
    accounting = _accounting()
    gaussian = accounting.GaussianDpEvent(noise)
    return gaussian if math.isclose(mechanism.rate, 1) else accounting.PoissonSampledDpEvent(mechanism.rate, gaussian)


def _accountant() -> Any:
    from dp_accounting import rdp

    return rdp.RdpAccountant(list(ORDERS))


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise ValueError("epsilon needs the package dp-accounting; install it: pip install 'fljax[privacy]'") from None
    return dp_accounting
