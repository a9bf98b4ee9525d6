"""Matrix products through the array: operands from a file, sums and cycles to another.

Not a test of its own: the host prepares the operands and compares the sums.
"""

from pathlib import Path
from typing import Any

import cocotb
import numpy as np

from fpgapipe.hw.hls_models.systolic import SystolicSpec
from fpgapipe.sim_tb.stream import StreamDriver, StreamSink, parameters, reset, start


@cocotb.test()
async def run_products(dut: Any) -> None:
    """Run every product of ``operands.npz``, one after the other, without pauses."""
    given = parameters()
    folder = Path(given.pop("folder"))
    spec = SystolicSpec(**given)
    operands = np.load(folder / "operands.npz", allow_pickle=False)
    results = {}
    await start(dut)
    for i in range(len(operands.files) // 2):
        weights, activations = operands[f"weights{i}"], operands[f"activations{i}"]
        results[f"sums{i}"], results[f"cycles{i}"] = await _product(dut, spec, weights, activations)
        # The last tile is still active: a reset makes the next product begin like a first one.
        await reset(dut)
    np.savez(folder / "results.npz", **results)


async def _product(dut: Any, spec: SystolicSpec, weights: Any, activations: Any) -> Any:
    """Sums of all tiles and the cycles from the first weights in to the last sums out."""
    bits = spec.operand_bits
    columns = StreamDriver(dut, "i_weights", fields=[bits] * spec.rows)
    vectors = StreamDriver(dut, "i_activations", fields=[bits] * spec.rows + [1])
    sums = StreamSink(dut, "o", fields=[spec.acc_bits] * spec.cols)
    m = activations.shape[1]
    last = np.zeros(activations.shape[:2], np.int64)
    last[:, -1] = 1
    words = np.concatenate([activations, last[:, :, None]], axis=2)
    cocotb.start_soon(columns.send(weights.reshape(-1, spec.rows).tolist()))
    cocotb.start_soon(vectors.send(words.reshape(-1, spec.rows + 1).tolist()))
    received = await sums.receive(len(activations) * m)
    shape = (len(activations), m, spec.cols)
    return np.array(received).reshape(shape), sums.cycles[-1] - columns.cycles[0] + 1
