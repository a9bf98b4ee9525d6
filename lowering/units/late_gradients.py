"""Weight gradients that are computed once for all micro-batches, before the update.

The gradient of a linear layer's weight is the sum of one product per micro-batch. If a micro-batch
has few vectors, such a product has a single block of its reduction: it writes as many numbers as
the weight has, and a kernel reads them and adds them to the sum of the micro-batches before it. A
late gradient gathers the inputs and the gradients of the outputs of all micro-batches, which are
much smaller, and has one product at last. Each micro-batch keeps a block of its own, so the blocks
and the order of their additions, and with them all bits of the sum, are the same.

A large gradient is not kept: it is computed in slices of output channels, and each slice updates
its weights while the next one is computed. The update of a weight depends on its own gradient
alone, so no bit differs. A step keeps the gradients if it clips them by the norm of all, or if
several devices add them up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.lowering.kernels.parts import Rows, copy_rows
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.tiling.kernel import Tensor

if TYPE_CHECKING:
    from fpgapipe.lowering.products.conv import ConvSpec
    from fpgapipe.lowering.units.microbatch import MicroBatch

ACCUMULATED = 3
"""Transfers of a gradient that adding it to a sum takes: two are read, one is written."""

SLICED_BYTES = 1 << 22
"""Bytes of a gradient from which on it is computed in slices of output channels."""

SLICES = 16
"""Slices of such a gradient. Two buffers hold slices: one is computed while the other is used."""

LEAST_BYTES = 600 * 64
"""Bytes that each micro-batch must save: two kernels more begin and end, and one less."""


def is_late(conv: ConvSpec, count: int, x: Tensor, dy: Tensor, dw: Tensor) -> bool:
    """Whether the gradient of all micro-batches moves fewer bytes if it is computed at last.

    Parameters
    ----------
    conv : ConvSpec
        Product of one micro-batch.
    count : int
        Number of micro-batches.
    x, dy, dw : Tensor
        Input and gradient of the output of a micro-batch, and the gradient of the weight.
    """
    plain = conv.kernel == conv.stride == (1, 1) and conv.pad == (0, 0, 0, 0)
    if count < 2 or not plain or conv.segment_positions > MX_BLOCK:
        return False
    # The operands are written again and read again; a product of each micro-batch reads them too.
    late = dw.size_bytes + count * 2 * (x.size_bytes + dy.size_bytes)
    early = dw.size_bytes * (count + ACCUMULATED * (count - 1))
    return early - late >= count * LEAST_BYTES


def add_late_gradient(
    step: MicroBatch, name: str, conv: ConvSpec, weight: Tensor, x: Tensor, dy: Tensor
) -> None:
    """Gather the operands of a micro-batch, and plan the product of all of them.

    Parameters
    ----------
    step : MicroBatch
    name : str
        Name of the layer.
    conv : ConvSpec
        Product of one micro-batch.
    weight, x, dy : Tensor
        The weight, the input and the gradient of the output.
    """
    count = step.num_microbatches
    gathered = []
    for role, part in (("x", x), ("dy", dy)):
        whole = step.for_all(f"{name}.{role}", part)
        elements, first = part.elements, step.position * part.elements
        read, written = Rows(0, elements), Rows(first, elements)
        gather = f"{name}.{role}.gather"
        kernel = copy_rows(gather, part, whole, (1, elements), read, written, step.region)
        step.add(kernel, is_weight=True)
        gathered.append(whole)
    together = replace(conv, batch=count * conv.batch, segments=count)
    dw = Tensor(f"{weight.name}.gradient", weight.shape)
    size = -(-conv.cout // (MX_BLOCK * SLICES)) * MX_BLOCK

    def sliced() -> None:
        for number, first in enumerate(range(0, conv.cout, size)):
            count = min(size, conv.cout - first)
            own = weight.elements // conv.cout  # elements of an output channel
            largest = step.gradient_buffer(weight, number % 2, (size, own))
            part = replace(largest, shape=(count, own))
            dy_part = step.view(gathered[1], first, (gathered[1].shape[0], count))
            spec = replace(together, cout=count, y_pitch=conv.cout)
            step.add(
                product_kernel(
                    f"{name}.weight", spec, "weight", (gathered[0], dy_part, part),
                    step.product_core, step.memory, step.product_region,
                ),
                is_weight=True,
            )  # fmt: skip
            step.update(weight, first * own, part)

    def product() -> None:
        if (
            weight.size_bytes >= SLICED_BYTES
            and size < conv.cout
            and not step.keeps_gradient(weight)
        ):
            sliced()
            return
        step.add(
            product_kernel(
                f"{name}.weight", together, "weight", (gathered[0], gathered[1], dw),
                step.product_core, step.memory, step.product_region,
            ),
            is_weight=True,
        )  # fmt: skip

    step.add_late(name, product)
