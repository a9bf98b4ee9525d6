"""The loss of a micro-batch: cross-entropy of samples, tokens or pixels, or a loss of targets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import Constant
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import loss, target_loss
from fpgapipe.lowering.memory.memory_map import CORRECT, LABELS, LOSS
from fpgapipe.lowering.units.layouts import PLAIN, channels_last, host_layout
from fpgapipe.lowering.units.step_options import Scalar
from fpgapipe.network.logits import Logits
from fpgapipe.network.losses import target_shape

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
    if not step.options.loss.has_classes:
        _add_target_loss(step, output, all_microbatches)
        return
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
    counting = loss.Counting(
        Constant(register=Scalar.LABELS),
        Constant(register=Scalar.MINUS_LABEL_SHARE),
        all_microbatches,
    )
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
            smoothing=step.options.loss.smoothing,
            counting=counting if step.options.loss.ignores else None,
        )
    )
    step.give(output, dlogits, layout)


def _add_target_loss(step: MicroBatch, output: str, all_microbatches: int) -> None:
    """Add a loss of targets, as the mean over all elements of the mini-batch."""
    shape = target_shape(step.graph)
    layout = host_layout(shape)
    # The host writes targets as it reads results.
    own = step.taken(output, layout)
    x = replace(own, shape=(own.elements,))
    gradient = step.tensor(f"{output}.dloss", own.shape, FP32)
    targets, result = (
        step.of_host(name, count) for name, count in ((LABELS, x.elements), (LOSS, 1))
    )
    kinds = {
        "mse": target_loss.mean_squared_error,
        "bce": target_loss.binary_cross_entropy,
    }
    step.add(
        kinds[step.options.loss.kind](
            "loss",
            x,
            targets,
            result,
            step.region,
            gradient=gradient,
            scale=1 / (x.elements * all_microbatches),
        )
    )
    step.give(output, gradient, layout)
