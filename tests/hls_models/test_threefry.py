"""Random bits: the model meets the published values."""

import numpy as np
import pytest

from fpgapipe.hw.hls_models.numerics.threefry import ROUNDS, key_schedule, threefry

# Source: known answers of the Random123 library, for a key and a counter of zeros.
ANSWERS = {
    13: "4071fabee1dc8e05 02ed3113695c9c62 397311b5b89f9d49 e21292c3258024bc",
    20: "09218ebde6c85537 55941f5266d86105 4bd25e16282434dc ee29ec846bd2e40b",
}


@pytest.mark.parametrize("rounds", ANSWERS)
def test_known_answers(rounds):
    words = threefry((0, 0, 0, 0), np.zeros(4, np.uint64), rounds)
    assert [int(word) for word in words] == [int(word, 16) for word in ANSWERS[rounds].split()]


def test_keys_are_added_in_turn():
    first, second, *_, last = key_schedule((1, 2, 3, 4))
    parity = 1 ^ 2 ^ 3 ^ 4 ^ 0x1BD11BDAA9FC1A22
    assert first == (1, 2, 3, 4)
    assert second == (2, 3, 4, parity + 1)
    assert last == (4, parity, 1, 2 + ROUNDS // 4)


def test_counters_are_independent_of_each_other():
    counters = np.zeros((2, 3, 4), np.uint64)
    counters[..., 0] = np.arange(6).reshape(2, 3)
    words = threefry((5, 6, 0, 0), counters)
    assert words.shape == (2, 3, 4)
    for index in np.ndindex(2, 3):
        np.testing.assert_array_equal(threefry((5, 6, 0, 0), counters[index]), words[index])


def test_bits_are_even():
    """A threshold of 16 bits is met as often as it promises, within four deviations."""
    counters = np.zeros((1 << 12, 4), np.uint64)
    counters[:, 0] = np.arange(1 << 12)
    drawn = threefry((1, 2, 0, 0), counters).astype("<u8").view("<u2")
    share = 6554 / 65536
    assert drawn.shape == (1 << 12, 16)
    deviation = np.sqrt(share * (1 - share) / drawn.size)
    assert abs((drawn < 6554).mean() - share) < 4 * deviation
