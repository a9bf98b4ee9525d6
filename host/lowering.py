"""From layers to what the hardware runs; so far, the tiles of a forward pass's matrix products."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.systolic import SystolicSpec
from fpgapipe.partition.graph import Graph


@dataclass(frozen=True)
class Product:
    """One matrix product of a layer, ``m x k`` by ``k x n``, in tiles of an array.

    Parameters
    ----------
    layer : str
    index : int
        Which of the layer's products.
    m, k, n : int
    spec : SystolicSpec
        The array that computes it.
    """

    layer: str
    index: int
    m: int
    k: int
    n: int
    spec: SystolicSpec

    @property
    def num_tiles(self) -> int:
        """Tiles of ``rows x cols`` weights; those at the edges are filled up with zeros."""
        return -(-self.k // self.spec.rows) * -(-self.n // self.spec.cols)

    @property
    def cycles(self) -> int:
        """Predicted cycles of all tiles, from the first weights in to the last sums out."""
        return self.spec.cycles(self.m, self.num_tiles)

    def tiles(
        self, x: NDArray[np.int64], w: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cut the operands ``x`` (m, k) and ``w`` (k, n) into tiles, reduction innermost.

        Returns
        -------
        weights : int64 array, shape (num_tiles, cols, rows)
            Each tile as the array takes it, column by column.
        activations : int64 array, shape (num_tiles, m, rows)
        """
        rows, cols = self.spec.rows, self.spec.cols
        k_tiles, n_tiles = -(-self.k // rows), -(-self.n // cols)
        w = np.pad(w, ((0, k_tiles * rows - self.k), (0, n_tiles * cols - self.n)))
        x = np.pad(x, ((0, 0), (0, k_tiles * rows - self.k)))
        weights = w.reshape(k_tiles, rows, n_tiles, cols).transpose(2, 0, 3, 1)
        activations = np.tile(x.reshape(self.m, k_tiles, rows).transpose(1, 0, 2), (n_tiles, 1, 1))
        return weights.reshape(-1, cols, rows), activations

    def gather(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Put the sums of all tiles, shape (num_tiles, m, cols), together to the product (m, n)."""
        n_tiles = -(-self.n // self.spec.cols)
        grouped = sums.reshape(n_tiles, -1, self.m, self.spec.cols).sum(1)
        product: NDArray[np.int64] = grouped.transpose(1, 0, 2).reshape(self.m, -1)[:, : self.n]
        return product


def forward_products(graph: Graph, layers: Sequence[str], spec: SystolicSpec) -> Iterator[Product]:
    """All matrix products of some layers' forward passes."""
    for name in layers:
        index = 0
        for gemm in graph.layers[name].gemms:
            for _ in range(gemm.count * gemm.steps):
                yield Product(name, index, gemm.m, gemm.k, gemm.n, spec)
                index += 1
