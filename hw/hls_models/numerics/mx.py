"""MXINT8: blocks of 32 integers that share a power of two as their scale.

An element `q` of a block with the scale code `c` stands for ``q * 2**-6 * 2**(c - 127)``. The code
255 makes all elements of its block NaN.

Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0, 2023.
"""

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.numerics import fp32
from fpgapipe.hw.hls_models.numerics.fp32 import CODE_BIAS, CODE_NAN

MX_BLOCK = 32
"""Number of elements that share a scale."""

ELEMENT_FRACTION_BITS = 6
"""Fraction bits of an element."""

ELEMENT_LIMIT = 127
"""Largest magnitude of an element; -128 is not used, so that every element can be negated."""

BLOCK_BYTES = MX_BLOCK + 2
"""Bytes of a block in memory: the elements, the code, and a zero byte that makes the size even, as
the scratchpad requires."""

QUANTISE_CYCLES = 5
"""Latency of the quantisation of a block."""

HALVES_CYCLES = 6
"""Latency of the quantisation of half a block, where blocks arrive in halves."""


def quantise(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """Quantise blocks along the last axis.

    The scale is the largest power of two that is not above the largest magnitude of the block.
    Elements are rounded to nearest, ties to even, then saturated. Subnormals count as zeros.

    Parameters
    ----------
    x : float32 array, shape (..., MX_BLOCK)

    Returns
    -------
    elements : int8 array, shape (..., MX_BLOCK)
        Integers in -127..127; all are zero in a block that contains an infinity or a NaN.
    codes : uint8 array, shape (...)
        The E8M0 codes: 0 for a block of zeros, 255 for one that contains an infinity or a NaN.

    Raises
    ------
    TypeError
        If `x` does not hold float32.
    ValueError
        If the last axis does not have the size of a block.
    """
    x = fp32.flush(x)
    if x.ndim == 0 or x.shape[-1] != MX_BLOCK:
        raise ValueError(f"blocks must have shape (..., {MX_BLOCK}), not {x.shape}")
    codes = ((x.view(np.uint32) >> np.uint32(23)) & np.uint32(255)).max(axis=-1).astype(np.uint8)
    # The exponent bits of 2**(6 + 127 - code) are set directly. It is a normal FP64 number, as is
    # every product except zero, so all products are exact.
    steps = ((CODE_BIAS + ELEMENT_FRACTION_BITS + 1023 - codes.astype(np.int64)) << 52).view(
        np.float64
    )
    with np.errstate(all="ignore"):
        scaled = np.rint(x * steps[..., np.newaxis])
    scaled = np.clip(scaled, -ELEMENT_LIMIT, ELEMENT_LIMIT)
    scaled[codes == CODE_NAN] = 0
    return scaled.astype(np.int8), codes


def dequantise(elements: NDArray[np.int8], codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Compute the exact numbers that blocks stand for.

    Parameters
    ----------
    elements : integer array, shape (..., MX_BLOCK)
    codes : uint8 array, shape (...)

    Returns
    -------
    float64 array, shape (..., MX_BLOCK)
    """
    exponent = np.asarray(codes).astype(np.int64) - CODE_BIAS - ELEMENT_FRACTION_BITS
    scale = ((exponent + 1023) << 52).view(np.float64)
    scale = np.where(np.asarray(codes) == CODE_NAN, np.nan, scale)
    values: NDArray[np.float64] = np.asarray(elements) * scale[..., np.newaxis]
    return values


def pack(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Quantise blocks along the last axis, in the layout that they have in memory.

    Parameters
    ----------
    x : float32 array, shape (..., MX_BLOCK)

    Returns
    -------
    uint8 array, shape (..., BLOCK_BYTES)
        Elements, the code, and a zero.
    """
    elements, codes = quantise(x)
    packed = np.zeros((*codes.shape, BLOCK_BYTES), np.uint8)
    packed[..., :MX_BLOCK] = elements.view(np.uint8)
    packed[..., MX_BLOCK] = codes
    return packed


def unpack(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Compute the numbers of blocks in memory as FP32; exact, except that subnormals become zeros.

    Parameters
    ----------
    packed : uint8 array, shape (..., BLOCK_BYTES)
        Blocks as they are in memory; the last byte of each is ignored. An element may be -128,
        which is -infinity in a block with the code 254.

    Returns
    -------
    float32 array, shape (..., MX_BLOCK)
    """
    elements = np.ascontiguousarray(packed[..., :MX_BLOCK]).view(np.int8)
    with np.errstate(all="ignore"):
        return fp32.flush(dequantise(elements, packed[..., MX_BLOCK]).astype(np.float32))


def dot(
    elements_a: NDArray[np.int8],
    codes_a: NDArray[np.uint8],
    elements_b: NDArray[np.int8],
    codes_b: NDArray[np.uint8],
) -> NDArray[np.float32]:
    """Compute the dot product of two blocks: the sum of 32 products, which FP32 holds exactly.

    Parameters
    ----------
    elements_a, elements_b : int8 array, shape (..., MX_BLOCK)
    codes_a, codes_b : uint8 array, shape (...)

    Returns
    -------
    float32 array, shape (...)
        The sums; infinity above the range of FP32, zero below it, NaN if a block is NaN.
    """
    products = np.asarray(elements_a).astype(np.int64) * np.asarray(elements_b)
    return fp32.from_sum(products.sum(axis=-1), codes_a, codes_b)
