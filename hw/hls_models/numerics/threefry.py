"""Threefry-4x64 with 12 rounds: random bits as a function of a key and a counter.

There is no state from one number to the next. So an element gets the same numbers in the forward
and the backward pass, in model and hardware, on one device and on several.

Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random Numbers: As Easy as
1, 2, 3", SC11, 2011; the constants are those of Skein, on which it is based.
"""

import numpy as np
from numpy.typing import NDArray

ROUNDS = 12
"""Fewest rounds for which the paper found no failure of TestU01's BigCrush."""

ROTATIONS = ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32))
"""Rotation distances, in bits, of the two mixes of each round; they repeat every eight rounds."""

KEY_PARITY = 0x1BD11BDAA9FC1A22
"""Constant that is XORed with the four key words to give the fifth."""

_MASK = (1 << 64) - 1


def key_schedule(
    key: tuple[int, int, int, int], rounds: int = ROUNDS
) -> tuple[tuple[int, int, int, int], ...]:
    """Return the words that are added to the state before every fourth round and after the last."""
    words = [*key, key[0] ^ key[1] ^ key[2] ^ key[3] ^ KEY_PARITY]
    return tuple(
        (
            words[number % 5],
            words[(number + 1) % 5],
            words[(number + 2) % 5],
            (words[(number + 3) % 5] + number) & _MASK,
        )
        for number in range(rounds // 4 + 1)
    )


def threefry(
    key: tuple[int, int, int, int], counters: NDArray[np.uint64], rounds: int = ROUNDS
) -> NDArray[np.uint64]:
    """Compute random words.

    Parameters
    ----------
    key : tuple of int
        Four words of 64 bits.
    counters : uint64 array, shape (..., 4)
        Counters of four words.
    rounds : int
        Number of rounds; values other than `ROUNDS` serve to compare with published results.

    Returns
    -------
    uint64 array of the same shape
    """
    x = [np.ascontiguousarray(counters[..., word]) for word in range(4)]
    schedule = key_schedule(key, rounds)

    def inject(number: int) -> None:
        for word in range(4):
            x[word] = x[word] + np.uint64(schedule[number][word])

    def mix(low: int, high: int, bits: int) -> None:
        x[low] = x[low] + x[high]
        turned = (x[high] << np.uint64(bits)) | (x[high] >> np.uint64(64 - bits))
        x[high] = turned ^ x[low]

    inject(0)
    for number in range(rounds):
        first, second = ROTATIONS[number % len(ROTATIONS)]
        # Even rounds mix words 0 with 1 and 2 with 3, odd ones 0 with 3 and 2 with 1.
        partners = (1, 3) if number % 2 == 0 else (3, 1)
        mix(0, partners[0], first)
        mix(2, partners[1], second)
        if number % 4 == 3:
            inject(number // 4 + 1)
    return np.stack(x, axis=-1).reshape(counters.shape)


def lane_bits(key: tuple[int, int], first: int, number: int) -> NDArray[np.uint16]:
    """Random 16-bit numbers for the lanes of vectors, shape (number, 16).

    Parameters
    ----------
    key : tuple of int
        The lower two words of the key; the others are 0.
    first : int
        Counter of the first vector; each further vector has the next counter.
    number : int
        Number of vectors.
    """
    counters = np.zeros((number, 4), np.uint64)
    counters[:, 0] = np.arange(number, dtype=np.uint64) + np.uint64(first)
    return threefry((*key, 0, 0), counters).astype("<u8").view("<u2")
