"""The losses of a micro-batch: cross-entropy of samples, tokens or pixels, or losses of targets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import Constant
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import loss, target_loss
from fpgapipe.lowering.memory.memory_map import CORRECT, LABELS, LOSS, WEIGHTS, LossTensors
from fpgapipe.lowering.units.layouts import PLAIN, channels_last, host_layout
from fpgapipe.lowering.units.step_options import COUNTER_REGISTERS, Scalar
from fpgapipe.network.logits import Logits
from fpgapipe.network.losses import target_shape

if TYPE_CHECKING:
    from collections.abc import Collection

    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Graph
    from fpgapipe.network.losses import Loss


def loss_tensors(graph: Graph, loss: Loss, computed: Collection[str]) -> tuple[LossTensors, ...]:
    """The tensors of the losses of those outputs that a device computes.

    Where the network has a single output, the tensors have names without the output's.
    """
    found = []
    counter = 0
    for output, own in loss.of_each(graph).items():
        if output in computed:
            labels, weights, value, correct = (
                name if len(graph.outputs) == 1 else f"{name} of {output}"
                for name in (LABELS, WEIGHTS, LOSS, CORRECT)
            )
            found.append(
                LossTensors(
                    output,
                    own.weight,
                    labels,
                    value,
                    correct if own.has_classes else None,
                    counter if own.is_counted else None,
                    weights if own.class_weights else None,
                    own.class_weights,
                )
            )
        counter += own.is_counted
    return tuple(found)


def add_loss(step: MicroBatch, tensors: LossTensors, all_microbatches: int) -> None:
    """Add the loss of an output and its gradient, as the mean over all labels of the mini-batch.

    The gradient has the loss's weight, the value has not.

    Parameters
    ----------
    step : MicroBatch
        Micro-batch whose forward pass is there.
    tensors : LossTensors
        The output, and the tensors of its loss.
    all_microbatches : int
        Number of micro-batches of the mini-batch, on all devices.
    """
    output = tensors.output
    own = step.options.loss.of(output)
    if tensors.correct is None:
        _add_target_loss(step, tensors, own, all_microbatches)
        return
    found = Logits.of(step.graph, output)
    # The classes of a row lie one behind the other: those of pixels, too, are last in memory.
    layout = channels_last(found.shape) if len(found.shape) == 4 else PLAIN
    shape = found.labels, found.classes
    logits = replace(step.taken(output, layout), shape=shape)
    dlogits = step.tensor(f"{output}.dlogits", shape, FP32)
    labels, result, correct = (
        step.of_host(name, count)
        for name, count in (
            (tensors.labels, found.labels),
            (tensors.loss, 1),
            (tensors.correct, 1),
        )
    )
    step.fix(loss.class_numbers(found.classes), loss.class_numbers_content(found.classes))
    counting = None
    if tensors.counter is not None:
        first = COUNTER_REGISTERS * tensors.counter
        counting = loss.Counting(
            Constant(register=Scalar.LABELS + first),
            Constant(register=Scalar.MINUS_LABEL_SHARE + first),
            all_microbatches,
            own.weight,
        )
    step.add(
        loss.cross_entropy(
            tensors.loss,
            logits,
            labels,
            result,
            step.region,
            gradient=dlogits,
            correct=correct,
            scale=own.weight / (found.labels * all_microbatches),
            smoothing=own.smoothing,
            counting=counting,
            weights=step.of_host(tensors.weights, found.labels) if tensors.weights else None,
        )
    )
    step.give(output, dlogits, layout)


def _add_target_loss(
    step: MicroBatch, tensors: LossTensors, loss: Loss, all_microbatches: int
) -> None:
    """Add a loss of targets, as the mean over all elements of the mini-batch."""
    output = tensors.output
    shape = target_shape(step.graph, output)
    layout = host_layout(shape)
    # The host writes targets as it reads results.
    own = step.taken(output, layout)
    x = replace(own, shape=(own.elements,))
    gradient = step.tensor(f"{output}.dloss", own.shape, FP32)
    targets, result = (
        step.of_host(name, count)
        for name, count in ((tensors.labels, x.elements), (tensors.loss, 1))
    )
    kinds = {
        "mse": target_loss.mean_squared_error,
        "bce": target_loss.binary_cross_entropy,
    }
    step.add(
        kinds[loss.kind](
            tensors.loss,
            x,
            targets,
            result,
            step.region,
            gradient=gradient,
            scale=loss.weight / (x.elements * all_microbatches),
        )
    )
    step.give(output, gradient, layout)
