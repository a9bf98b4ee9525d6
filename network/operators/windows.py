"""Sliding windows, which convolution and pooling have in common."""

from collections.abc import Sequence

from fpgapipe.network.operators.tensors import ShapeError

Padding = tuple[tuple[int, int], ...]
"""Numbers of elements added before and after the data, for each spatial axis."""


def per_axis(value: int | Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """Repeat a single number for all spatial axes, or check that there is one for each.

    Raises
    ------
    ShapeError
        If there are too many or too few numbers.
    """
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank:
        raise ShapeError(f"{what} must have {rank} numbers, one for each spatial axis, not {value}")
    return values


def same_padding(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    upper: bool = True,
) -> Padding:
    """Padding for which the output has ``ceil(size / stride)`` elements on each axis.

    If the number of elements to add is odd, the extra one goes after the data (`upper`) or before
    it.
    """
    padding = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max(((size + s - 1) // s - 1) * s + (k - 1) * d + 1 - size, 0)
        small, large = total // 2, total - total // 2
        padding.append((small, large) if upper else (large, small))
    return tuple(padding)


def window_counts(
    kind: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Padding,
    dilation: Sequence[int],
    ceil_mode: bool = False,
) -> tuple[int, ...]:
    """Number of window positions on each spatial axis.

    With `ceil_mode` a last, partly filled window counts, unless it would begin beyond the data and
    the padding before it.

    Raises
    ------
    ShapeError
        If a window is larger than the padded input.
    """
    counts = []
    for axis, (size, k, s, (before, after), d) in enumerate(
        zip(sizes, kernel, stride, padding, dilation, strict=True)
    ):
        room = size + before + after - d * (k - 1) - 1
        count = -(-room // s) + 1 if ceil_mode else room // s + 1
        if ceil_mode and (count - 1) * s >= size + before:
            count -= 1
        if count < 1:
            raise ShapeError(
                f"{kind} window of {d * (k - 1) + 1} elements exceeds the padded input of "
                f"{size + before + after} on spatial axis {axis}"
            )
        counts.append(count)
    return tuple(counts)
