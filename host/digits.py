"""The handwritten digits that come with scikit-learn: 1,797 grey images of 8 x 8.

Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998, of which this is the test set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

NUM_TRAINING = 1437
"""The first so many samples of the shuffled set are for training, the other 360 for validation."""


@dataclass(frozen=True)
class Samples:
    """Images, ``(samples, 1, 8, 8)`` with values in 0..1, and their digits."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def batches(self, size: int, seed: int | None = None) -> Iterator[Samples]:
        """Whole batches, shuffled if there is a seed; samples that fill no batch are left out."""
        order = np.arange(len(self.labels))
        if seed is not None:
            np.random.default_rng(seed).shuffle(order)
        for first in range(0, len(order) - size + 1, size):
            some = order[first : first + size]
            yield Samples(self.images[some], self.labels[some])


def load_digits() -> tuple[Samples, Samples]:
    """Samples for training and for validation; always the same ones.

    Raises
    ------
    UserError
        If scikit-learn is not installed.
    """
    require("sklearn", "the digits set")
    from sklearn.datasets import load_digits as load

    found = load()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.images / 16).astype(np.float32)[order, None]
    labels = found.target.astype(np.int64)[order]
    return (
        Samples(images[:NUM_TRAINING], labels[:NUM_TRAINING]),
        Samples(images[NUM_TRAINING:], labels[NUM_TRAINING:]),
    )
