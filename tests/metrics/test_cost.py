"""Costs by hand, and against DC-PFL's published communication times."""

import numpy as np
import pytest

from fljax.metrics.cost import (
    Link,
    Processor,
    joules,
    megabytes_over_rounds,
    n_bytes,
    seconds,
    seconds_of_rounds,
    traffic_of_clients,
    working,
)

LENET = 62_006
METRICS = {
    "ids": np.array([[0, 2], [1, 2]]),
    "active": np.array([[True, True], [True, False]]),
    "uplink": np.array([10.0, 20.0]),
    "downlink": np.array([[1.0, 2.0], [3.0, 4.0]]),
}


def test_a_float_is_four_bytes_and_large_totals_are_exact():
    assert n_bytes(np.float32(3)) == 12
    assert n_bytes(2**24 + 1) == 4 * (2**24 + 1)


def test_published_seconds_of_a_full_model_round():
    # DC-PFL, CIFAR-10: 62,006 floats of 32 bits at 2 Mbit/s, uplink only, are 0.992 s; three of five layers 0.3704 s.
    assert seconds(LENET, LENET, Link()) == pytest.approx(0.992096, rel=1e-12)
    assert seconds(3_722 + 58_284 / 3, LENET, Link()) == pytest.approx(0.3704, abs=5e-5)


def test_seconds_and_joules_add_both_ways():
    # 1,000 floats up at 32 kbit/s take 1 s, 4,000 down at 64 kbit/s take 2 s.
    link = Link(uplink=32e3, downlink=64e3, transmit=0.5, receive=0.25)
    assert seconds(1_000, 4_000, link) == pytest.approx(3.0, rel=1e-12)
    assert joules(1_000, 4_000, link) == pytest.approx(1.0, rel=1e-12)


def test_working_takes_time_and_energy():
    seconds, joules = working(np.array([0.0, 3e9]), Processor(rate=2e9, power=4.0))
    np.testing.assert_allclose(seconds, [0, 1.5], rtol=1e-12)
    np.testing.assert_allclose(joules, [0, 6.0], rtol=1e-12)
    np.testing.assert_array_equal(working(1e9, Processor()), (0, 0))
    with pytest.raises(ValueError, match="rate=0"):
        working(1, Processor(rate=0))


def test_totals_count_active_participants_only():
    totals = traffic_of_clients(METRICS, n_clients=4)
    np.testing.assert_array_equal(totals.uplink, [40, 80, 40, 0])
    np.testing.assert_array_equal(totals.downlink, [4, 12, 8, 0])


def test_megabytes_after_each_round_are_a_mean_over_all_clients():
    """Of four clients two send 10 floats each in the first round, and one 20 in the second."""
    np.testing.assert_allclose(megabytes_over_rounds(METRICS, "uplink", 4), [20e-6, 40e-6], rtol=1e-12)
    np.testing.assert_allclose(megabytes_over_rounds(METRICS, "downlink", 4), [3e-6, 6e-6], rtol=1e-12)


def test_a_round_lasts_as_long_as_its_slowest_active_participant():
    link = Link(uplink=32.0, downlink=64.0)
    np.testing.assert_allclose(seconds_of_rounds(METRICS, link), [11.0, 21.5], rtol=1e-12)


@pytest.mark.parametrize("field", ["uplink", "downlink"])
@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_must_be_positive(field, rate):
    with pytest.raises(ValueError, match=f"{field}=.* not positive"):
        seconds(1, 1, Link(**{field: rate}))
