"""Refuses networks whose distribution at a position depends on the tokens behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import Values
    from fpgapipe.network.graph import Graph


def check_causal(
    graph: Graph,
    parameters: Values,
    tokens: NDArray[np.int64],
    num_tokens: int,
    positions: Sequence[int],
) -> None:
    """Change the tokens behind each of some positions, and compare the results up to there.

    PyTorch computes them in FP32, where a token behind a mask has a weight of exactly 0. The core's
    products would not do: in MXINT8 the values of 32 positions share a scale, so that a token that
    does not count changes how the others are rounded.

    Parameters
    ----------
    graph : Graph
        A network whose only input is a row of tokens, as it is evaluated.
    parameters : mapping of str to array
    tokens : int64 array, shape (positions,)
        Tokens of a sample.
    num_tokens : int
        Tokens that there are.
    positions : sequence of int
        Positions whose results are compared; none is the last one.

    Raises
    ------
    UserError
        If a result changes, or PyTorch is not installed.
    """
    torch = require("torch", "the check that no position depends on a later token")
    weights = {name: torch.from_numpy(np.array(value)) for name, value in parameters.items()}
    (name,), output, batch = graph.inputs, graph.outputs[0], graph.batch
    assert batch is not None

    def results(rows: NDArray[np.int64]) -> NDArray[Any]:
        with torch.no_grad():
            found = forward(graph, weights, {name: torch.from_numpy(rows)})[output]
        values: NDArray[Any] = found.numpy()
        return values

    # Rows are compared with the same rows, since the order of a product's sums may depend on them.
    rows = np.tile(tokens, (batch, 1))
    expected = results(rows)
    rng = np.random.default_rng(0)
    for first in range(0, len(positions), batch):
        some = positions[first : first + batch]
        changed = rows.copy()
        for row, at in enumerate(some):
            by = rng.integers(1, max(num_tokens, 2), len(tokens) - at - 1)
            changed[row, at + 1 :] = (changed[row, at + 1 :] + by) % num_tokens
        found = results(changed)
        for row, at in enumerate(some):
            before, after = (values[row, : at + 1] for values in (expected, found))
            if not np.array_equal(before, after, equal_nan=True):
                raise UserError(
                    f"{graph.name} is not causal: what it gives for position {at + 1} or one "
                    "before it changes with the tokens behind, so it cannot continue a row of them"
                )
