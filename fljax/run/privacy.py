"""What a run's noise is worth: epsilon after each round, and the noise that a given epsilon asks for.

Counted by Renyi differential privacy with Google's ``dp-accounting`` (``pip install 'fljax[privacy]'``), for one client
(the bricks client_dp and adaptive_client_dp) or one example (dp_sgd) more or less.

- Clients: with Poisson sampling a round is a Gaussian mechanism on a random share of the clients; with any other
  sampling the guarantee is that of taking part in every round, for a client who sends its updates or whose place stays
  empty, as if it dropped out: where the number of participants is fixed, or the first few count, a client more would
  take the place of another. An update of zeros is no empty place: adaptive_client_dp counts it as a short one.
- Examples: an epoch meets every example once, so it is one Gaussian mechanism, and a client's guarantee is that of
  training in every round. Batches are consecutive shares of a shuffled epoch, which is no Poisson sampling, so nothing
  is gained by their size. The guarantee is for an example whose gradients are there or are zeros, with every client's
  number of examples public: one more may begin another batch, and with it a step and its noise. What several clients
  hold, as `primary_secondary` deals it, is an example of each, and to take it from all of them costs more.

Epsilon is of updates or gradients. What a method sends beside them (losses, choices of a cluster, counts or means of
labels) is not in it.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax.numbers import as_dict, numbers_of, replace
from fljax.rounds.sampling import Sampling, drawn_share
from fljax.rounds.uplink.private import PrivacyHyper
from fljax.types import Work

ORDERS = (*range(2, 64), 72, 80, 96, 128, 192, 256, 512, 1024)
"""Of Renyi divergence. The best of them is reported; fewer orders can only make an epsilon larger."""


_LEAST, _MOST = 1e-2, 1e6  # noise that a target may ask for


class Mechanism(NamedTuple):
    """What a round does to one client or one example: so many Gaussian mechanisms, each on a random share of them."""

    noise: str  # the number that says how much
    rate: float
    per_round: int


NOISES = ("noise_multiplier", "example_noise")
"""Numbers of a private method that are noise, and that follow from a ``target_epsilon`` where there is one."""


def mechanism(hyper: Any, sampling: Sampling, work: Work | None) -> Mechanism | None:
    """The mechanism of a method with these numbers; None: it is not private.

    Args:
        hyper: the numbers.
        sampling: who takes part.
        work: local effort in a round.
    """
    if not isinstance(hyper, PrivacyHyper):
        return None
    given = as_dict(hyper)
    if "noise_multiplier" in given:
        rate = drawn_share(dict(sampling.about)["participation"]) if sampling.is_independent else 1.0
        return Mechanism("noise_multiplier", rate, 1)
    return Mechanism("example_noise", 1.0, work.epochs if work else 1) if "example_noise" in given else None


def epsilons(hyper: Any, sampling: Sampling, work: Work | None, n_rounds: int) -> np.ndarray | None:
    """Epsilon after each round, (rounds,) float32; inf without noise. None: the method is not private, or is traced.

    Raises:
        ValueError: the accountant is not installed, or the noise on counts takes more than there is.
    """
    found = mechanism(hyper, sampling, work)
    if found is None or any(isinstance(value, jax.core.Tracer) for value in as_dict(hyper).values()):
        return None
    noise, delta = float(getattr(hyper, found.noise)), float(hyper.delta)
    check_noise(hyper, noise)
    if noise == 0:
        return np.full(n_rounds, np.inf, np.float32)
    _accounting()
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    accountant = _accountant()
    accountant.compose(_event(found, noise), found.per_round)
    of_one_round = np.asarray(accountant._rdp)  # divergences add up; composing anew takes a tenth of a second a round
    after = (compute_epsilon(ORDERS, ((r + 1) * of_one_round).tolist(), delta)[0] for r in range(n_rounds))
    return np.fromiter(after, np.float32, n_rounds)


def with_target(hyper: Any, sampling: Sampling, work: Work | None, n_rounds: int) -> Any:
    """``hyper`` with the noise that its ``target_epsilon`` asks for after ``n_rounds`` rounds; as it is without one.

    Raises:
        ValueError: no noise is enough, noise is given beside the target, or the accountant is not installed.
    """
    found = mechanism(hyper, sampling, work)
    if found is None or hyper.target_epsilon is None:
        return hyper
    _check_target_alone(hyper, found.noise)
    target, delta, accounting = float(hyper.target_epsilon), float(hyper.delta), _accounting()

    def event(noise: float) -> Any:
        return accounting.SelfComposedDpEvent(_event(found, noise), n_rounds * found.per_round)

    def epsilon(noise: float) -> float:
        accountant = _accountant()
        return accountant.compose(event(noise)).get_epsilon(delta)

    if epsilon(_MOST) > target:
        raise ValueError(
            f"target_epsilon={target:g} cannot be reached in {n_rounds} rounds at delta={delta:g}; the least that can "
            f"be shown is {epsilon(_MOST):.3g}"
        )
    noise = _LEAST
    if epsilon(_LEAST) > target:
        bracket = accounting.ExplicitBracketInterval(_LEAST, _MOST)
        noise = accounting.calibrate_dp_mechanism(_accountant, event, target, delta, bracket)
    check_noise(hyper, noise)
    return replace(hyper, target_epsilon=None, **{found.noise: noise})


def _check_target_alone(hyper: Any, noise: str) -> None:
    """Raises ValueError where the number ``noise`` is given, to a value that is not its default, beside a target."""
    given = float(getattr(hyper, noise))
    if given != numbers_of(type(hyper))[noise].default:
        raise ValueError(
            f"{noise}={given:g} beside target_epsilon={float(hyper.target_epsilon):g}, from which it follows; leave "
            "one of them out"
        )


def check_noise(hyper: Any, noise: float) -> None:
    """Checks that so much noise goes with the other numbers.

    Raises:
        ValueError: an infinite clip beside noise, or the noise on counts takes more than there is.
    """
    numbers = as_dict(hyper)
    for name in ("dp_clip", "example_clip"):
        if name in numbers and math.isinf(float(numbers[name])) and noise > 0:
            raise ValueError(f"{name}=inf with noise of {noise:g} times it; choose a finite {name}, or no noise")
    counts = numbers.get("count_noise")
    if counts is not None and 2 * float(counts) <= noise:
        raise ValueError(
            f"count_noise={float(counts):g} is too little; choose more than half of noise_multiplier={noise:g}"
        )


def _event(found: Mechanism, noise: float) -> Any:
    accounting = _accounting()
    gaussian = accounting.GaussianDpEvent(noise)
    return gaussian if math.isclose(found.rate, 1) else accounting.PoissonSampledDpEvent(found.rate, gaussian)


def _accountant() -> Any:
    from dp_accounting import rdp

    return rdp.RdpAccountant(list(ORDERS))


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise ValueError("epsilon is counted by dp-accounting; install it: pip install 'fljax[privacy]'") from None
    return dp_accounting
