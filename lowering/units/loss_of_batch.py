"""The loss of a micro-batch: cross-entropy of samples, of their tokens, or of pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import loss
from fpgapipe.lowering.memory.memory_map import CORRECT, LABELS, LOSS
from fpgapipe.lowering.units.layouts import PLAIN, channels_last
from fpgapipe.network.logits import Logits

if TYPE_CHECKING:
    from fpgapipe.lowering.units.microbatch import MicroBatch


def add_loss(step: MicroBatch, all_microbatches: int) -> None:
    """Add the loss and its gradient, as the mean over all labels of the mini-batch.

    Parameters
    ----------
    step : MicroBatch
        Micro-batch whose forward pass is there.
    all_microbatches : int
        Number of micro-batches of the mini-batch, on all devices.
    """
    (output,) = step.graph.outputs
    found = Logits.of(step.graph)
    # The classes of a row lie one behind the other: those of pixels, too, are last in memory.
    layout = channels_last(found.shape) if len(found.shape) == 4 else PLAIN
    shape = found.labels, found.classes
    logits = replace(step.taken(output, layout), shape=shape)
    dlogits = step.tensor(f"{output}.dlogits", shape, FP32)
    labels, result, correct = (
        step.of_host(name, count)
        for name, count in ((LABELS, found.labels), (LOSS, 1), (CORRECT, 1))
    )
    step.fix(loss.class_numbers(found.classes), loss.class_numbers_content(found.classes))
    step.add(
        loss.cross_entropy(
            "loss",
            logits,
            labels,
            result,
            step.region,
            gradient=dlogits,
            correct=correct,
            scale=1 / (found.labels * all_microbatches),
        )
    )
    step.give(output, dlogits, layout)
