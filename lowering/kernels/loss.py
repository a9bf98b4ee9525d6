"""Softmax with cross-entropy: value and gradient.

Each row of logits has a label: that of a sample, of a token or of a pixel. A tensor of class
numbers is compared with the labels to find the element of each row's class. The losses of the rows
are kept on chip and added up at the end, so that the division of the batch into pieces changes no
bit of a result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    VECTOR_BYTES,
    Addend,
    Choice,
    Constant,
    Factor,
    Initial,
    Left,
    Outcome,
    Right,
    Second,
    Source,
    Target,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.channels import padded, small
from fpgapipe.lowering.tiling.elementwise import flat_tile
from fpgapipe.lowering.tiling.kernel import (
    Buffer,
    Move,
    Piece,
    Region,
    Step,
    Tensor,
    VectorKernel,
)
from fpgapipe.lowering.tiling.nest import VectorLoop, nest
from fpgapipe.lowering.tiling.rows import MINUS_Y, Rows, piece_rows, reduction_buffers

MOST_CLASSES = 1 << 16
"""Largest number of classes: a loop has no more iterations, and FP32 holds the numbers exactly."""

_NONE = Constant(0.0)


def class_numbers(classes: int) -> Tensor:
    """The tensor of class numbers that `cross_entropy` reads; one tensor serves all layers."""
    return small(f"class numbers {classes}", 1, classes)


def class_numbers_content(classes: int) -> NDArray[np.float32]:
    """Contents of the tensor of class numbers: 0, 1, 2, ..., also in the padding at the end."""
    return np.arange(padded(classes), dtype=np.float32).reshape(1, -1)


def check_classes(classes: int, rows: int = 1) -> None:
    """Refuse too many classes, or too many rows of logits in a micro-batch."""
    for count, what in ((classes, "classes"), (rows, "labels in a micro-batch")):
        if not 1 <= count <= MOST_CLASSES:
            raise ValueError(f"cross-entropy must have 1..{MOST_CLASSES} {what}, not {count}")


@dataclass(frozen=True)
class Counting:
    """How many labels of a mini-batch count, where rows with a label below 0 are ignored.

    Where rows have weights, the sum of these takes the place of the number of labels.

    Attributes
    ----------
    labels, minus_share : Constant
        Registers with the number of labels that count, and with the reciprocal of its negative.
    microbatches : int
        Number of micro-batches of the mini-batch. The loss of each is so many times its part of the
        loss of the mini-batch, which is then the mean over the micro-batches.
    weight : float
        Weight of the loss, by which the number of labels in the registers is divided.
    """

    labels: Constant
    minus_share: Constant
    microbatches: int
    weight: float = 1.0


def cross_entropy(
    name: str,
    logits: Tensor,
    labels: Tensor,
    loss: Tensor,
    region: Region,
    *,
    gradient: Tensor | None = None,
    correct: Tensor | None = None,
    scale: float | None = None,
    smoothing: float = 0.0,
    counting: Counting | None = None,
    weights: Tensor | None = None,
) -> VectorKernel:
    """Compute the mean loss of a batch, and its gradient.

    ``loss = mean(log(sum(exp(logits))) - logits[label])``, and
    ``gradient = (softmax(logits) - (1 for the label, else 0)) * scale``. Logits of -infinity have
    probability 0. As in PyTorch, a logit of +infinity or NaN makes the results of its row NaN.

    With label smoothing the label stands for ``1 - smoothing``, and every class for a further
    ``smoothing / classes``.

    Parameters
    ----------
    name : str
    logits : Tensor
        Tensor of ``batch x classes``; the rows of the batch may be tokens or pixels.
    labels : Tensor
        Class numbers, FP32, one for each row.
    loss : Tensor
        FP32 tensor for one number.
    region : Region
    gradient : Tensor, optional
        Tensor for the gradient, of the shape of the logits.
    correct : Tensor, optional
        FP32 tensor for the number of rows in which no logit is larger than the label's.
    scale : float, optional
        Factor of the gradient, ``1 / batch`` if left out.
    smoothing : float
        Share of a label that all classes have in equal parts.
    counting : Counting, optional
        Registers of the number of labels, if rows with a label below 0 are ignored. They decide
        about the mean instead of `batch` and `scale`.
    weights : Tensor, optional
        FP32 tensor of a factor for each row; there must be registers, and no smoothing.

    Raises
    ------
    ValueError
        If there are more than `MOST_CLASSES` classes or rows, or the region is too small for a row.
    """
    batch, classes = logits.shape
    check_classes(classes, batch)
    for tensor in (labels, loss, *filter(None, (correct, weights))):
        if tensor.format is not FP32:
            raise ValueError(
                f"cross-entropy tensor {tensor.name} must be FP32, not {tensor.format.value}"
            )
    table = class_numbers(classes)
    assert weights is None or (counting and not smoothing), "weights are added up in registers"
    sources = {"logits": logits, "labels": labels} | ({"weights": weights} if weights else {})
    targets = {"gradient": gradient} if gradient else {}
    # An FP32 gradient is computed in place from the probabilities.
    in_place = gradient is not None and gradient.format is FP32

    def buffers(rows: int) -> dict[str, Buffer]:
        found = {
            each: Buffer(rows * (tensor.elements // batch) * tensor.element_bytes + 64)
            for each, tensor in (sources | targets).items()
        }
        if not in_place:
            found["work"] = Buffer(4 * rows * classes, kept=True)
        for each in ("maximum", "sum", "own", "share", *more):
            found[each] = Buffer(4 * rows, kept=True)
        return found | {
            "table": Buffer(table.size_bytes, kept=True),
            **reduction_buffers(rows, classes),
            "losses": Buffer(4 * batch, kept=True),
            "hits": Buffer(4 * batch, kept=True),
            "result": Buffer(64, kept=True),
            "count": Buffer(64, kept=True),
        }

    more = ["all"] * bool(smoothing) + ["weight"] * bool((smoothing and counting) or weights)
    rows = piece_rows(batch, classes, buffers, region)
    scale = 1 / batch if scale is None else scale

    pieces = []
    for first in range(0, batch, rows):
        count = min(rows, batch - first)
        tiles = {
            each: flat_tile(
                tensor, first * (tensor.elements // batch), count * (tensor.elements // batch)
            )
            for each, tensor in (sources | targets).items()
        }
        view = _Samples(
            count,
            classes,
            {each: tile.shift for each, tile in tiles.items()},
            {each: tensor.format for each, tensor in (sources | targets).items()},
            first=first,
            work="gradient" if in_place else "work",
            smoothing=smoothing,
            counting=counting,
            is_weighted=weights is not None,
        )
        steps = [*view.losses(counts=correct is not None)]
        if gradient:
            steps += view.gradient(scale)
        loads = [Move(tiles[each], each) for each in sources]
        stores = [Move(tiles[each], each) for each in targets]
        if first == 0:
            loads.append(Move(flat_tile(table, 0, table.elements), "table"))
        if first + count == batch:
            if counting:
                steps += _total("losses", "result", batch, counting.minus_share)
                steps.append(_times("result", -counting.microbatches / counting.weight))
            else:
                steps += _total("losses", "result", batch, Constant(1 / batch))
            stores.append(Move(flat_tile(loss, 0, 1), "result"))
            if correct:
                steps += _total("hits", "count", batch, Constant(1.0))
                stores.append(Move(flat_tile(correct, 0, 1), "count"))
        pieces.append(Piece(tuple(steps), tuple(loads), tuple(stores)))
    return VectorKernel(name, buffers(rows), tuple(pieces), region)


@dataclass(frozen=True)
class _Samples(Rows):
    """The samples of a piece, one row each.

    Attributes
    ----------
    work : str
        Name of the FP32 buffer of exponentials.
    smoothing, counting
        As for `cross_entropy`.
    is_weighted : bool
        Whether the rows have weights.
    """

    work: str = "work"
    smoothing: float = 0.0
    counting: Counting | None = None
    is_weighted: bool = False

    def losses(self, *, counts: bool) -> Iterator[Step]:
        """Instructions that compute the losses of the rows and leave the exponentials in `work`."""
        own: dict[str, Any] = {"test": (Left.Y, Outcome.EQUAL, Right.COEFFICIENT), "then": Choice.X}
        yield self.each("logits", self.work, "labels", "table", otherwise=Choice.ZERO, **own)
        yield from self.reduce(self.work, "own")
        if self.smoothing:
            yield from self.reduce("logits", "all")
        yield from self.exponentials("logits", self.work)
        if self.smoothing:
            yield self.row("maximum", "own", "share", **_minus(1 - self.smoothing))
            yield self.row("share", "all", "share", **_minus(self.smoothing / self.width))
        else:
            yield self.row("maximum", "own", "share", **MINUS_Y)
        at = 4 * self.first
        yield self.row("sum", None, "losses", at, function=Function.LOG)
        yield self.row("losses", "share", "losses", at, at, addend=Addend.Y)
        if self.is_weighted:
            yield self.row("losses", "weights", "losses", at, at, factor=Factor.Y)
        if counts:
            yield self.row(
                "own",
                "maximum",
                "hits",
                at,
                test=(Left.X, Outcome.EQUAL, Right.Y),
                then=Choice.CONSTANT,
                otherwise=Choice.ZERO,
                constants=(_NONE, _NONE, _NONE, Constant(1.0)),
            )
        if self.counting:
            for each in ("losses", "hits") if counts else ("losses",):
                yield self._counted(each, at)

    def _counted(self, numbers: str, at: int = 0) -> Step:
        """Set numbers of the rows that are ignored to 0."""
        return self.row(
            numbers,
            "labels",
            numbers,
            at,
            at,
            test=(Left.Y, Outcome.LESS, Right.CONSTANT),
            then=Choice.ZERO,
            otherwise=Choice.X,
        )

    def gradient(self, scale: float) -> Iterator[Step]:
        """Instructions that compute the gradient from the exponentials."""
        counting = self.counting
        if counting and (self.smoothing or self.is_weighted):
            # All rows are first computed as one label would have it, then times their weights.
            yield from self.shares(self.work, self.work)
            least = -self.smoothing / self.width
            yield self._without_label(self.work, Constant(self.smoothing - 1), least)
            if self.is_weighted:
                times = (_NONE, counting.minus_share)
                yield self.row("weights", None, "weight", factor=Factor.CONSTANT, constants=times)
            else:
                alike = (_NONE, _NONE, _NONE, _NONE, counting.minus_share)
                settings = {"factor": Factor.CONSTANT, "initial": Initial.CONSTANT}
                yield self.row("labels", None, "weight", constants=alike, **settings)
            yield self._counted("weight")
            yield self.each(self.work, "gradient", "weight", factor=Factor.Y, negate_x=True)
            return
        if counting:
            yield self.row(
                "sum",
                None,
                "share",
                factor=Factor.CONSTANT,
                constants=(_NONE, counting.labels),
                function=Function.RECIPROCAL,
            )
            yield self._counted("share")
            yield self.each(self.work, self.work, "share", factor=Factor.Y)
            yield self._without_label("gradient", counting.minus_share)
            return
        yield from self.shares(self.work, self.work, scale)
        least = -scale * self.smoothing / self.width
        yield self._without_label("gradient", Constant(-scale * (1 - self.smoothing)), least)

    def _without_label(self, target: str, added: Constant, least: float = 0.0) -> Step:
        """Add a number to the element of each row's class, and `least` to all."""
        more: dict[str, Any] = {"initial": Initial.CONSTANT} if least else {}
        return self.each(
            self.work,
            target,
            "labels",
            "table",
            addend=Addend.CONSTANT,
            constants=(added, _NONE, _NONE, _NONE, Constant(least)) if least else (added,),
            test=(Left.Y, Outcome.EQUAL, Right.COEFFICIENT),
            then=Choice.S,
            otherwise=Choice.X,
            **more,
        )


def _minus(times: float) -> dict[str, Any]:
    """Settings for ``X - Y * times``."""
    constants = (_NONE, _NONE, Constant(times))
    return {"second": Second.CONSTANT, "negate_second": True, "constants": constants}


def _times(x: str, factor: float) -> Step:
    """Multiply a single number."""
    constants = (_NONE, Constant(factor))
    op = nest([], [], Source(0), Target(0, u_limit=1), factor=Factor.CONSTANT, constants=constants)
    return Step(op, x, x)


def _total(x: str, target: str, number: int, factor: Constant) -> Iterator[Step]:
    """Add up contiguous numbers, and multiply the sum by `factor`."""
    op = nest(
        [],
        [VectorLoop(-(-number // LANES), (VECTOR_BYTES, 0, LANES))],
        Source(0, u_limit=number),
        Target(0),
    )
    yield Step(op, x, "lanes")
    op = nest(
        [],
        [VectorLoop(min(number, LANES), (4, 0, 0))],
        Source(0, broadcast=True),
        Target(0, u_limit=1),
        factor=Factor.CONSTANT,
        constants=(_NONE, factor),
    )
    yield Step(op, "lanes", target)
