"""INT8 arithmetic against ONNX's reference and against TOSA's formula."""

import numpy as np
import pytest

from fpgapipe.hw.hls_models.numerics.int8 import (
    Rounding,
    Scale,
    dequantise,
    quantise,
    rescale,
    rescaled,
    thresholds,
)


def tosa_scale_32(value, multiplier, shift, double_round):
    """TOSA 1.0, ``apply_scale_32``, written down from the specification's pseudocode."""
    rounding = 1 << (shift - 1)
    if double_round and shift > 31:
        rounding += (1 << 30) if value >= 0 else -(1 << 30)
    return (value * multiplier + rounding) >> shift


def test_by_hand():
    half = Scale(1, 1)
    even = [rescale(a, half, Rounding.EVEN, -9, 9) for a in (-5, -3, -1, 1, 3, 5, 99)]
    assert even == [-2, -2, 0, 0, 2, 2, 9]
    up = [rescale(a, half, Rounding.UP, -9, 9) for a in (-5, -3, -1, 1, 3, 5, -99)]
    assert up == [-2, -1, 0, 1, 2, 3, -9]
    # With an odd zero point that is added first, ties go to the odd neighbours.
    assert [rescale(a, half, Rounding.EVEN, -9, 9, zero=1) for a in (-1, 1, 3)] == [-1, 1, 1]


def test_scales_are_exact():
    for factor in (1.0, 0.1, 3.5e-5, float(np.float32(0.3)), 12.25):
        assert float(Scale.of(factor).value) == factor
    with pytest.raises(ValueError, match=r"^INT8 scale must be positive and finite, not 0.0$"):
        Scale.of(0.0)
    with pytest.raises(ValueError, match=r"^INT8 multiplier must be positive, not 0$"):
        Scale(0, 3)


def test_tosa():
    rng = np.random.default_rng(0)
    for _ in range(3000):
        multiplier = int(rng.integers(1 << 30, 1 << 31))
        shift = int(rng.integers(2, 63))
        value = int(rng.integers(-(1 << 31), 1 << 31)) >> int(rng.integers(0, 31))
        for double in (False, True):
            expected = tosa_scale_32(value, multiplier, shift, double)
            rounding = Rounding.DOUBLE if double else Rounding.UP
            wide = 1 << 62
            assert rescale(value, Scale(multiplier, shift), rounding, -wide, wide) == expected


def test_onnx():
    rng = np.random.default_rng(1)
    for _ in range(200):
        factor = np.float32(2.0 ** rng.uniform(-14, 0))
        if rng.integers(4) == 0:
            factor = np.float32(2.0 ** rng.integers(-6, 1))  # so that there are ties
        zero = int(rng.integers(-128, 128))
        sums = rng.integers(-(1 << 16), 1 << 16, 50).astype(np.int32)
        expected = np.clip(np.rint(sums * np.float64(factor) + zero), -128, 127) - zero
        scale = Scale.of(factor)
        found = [rescale(int(a), scale, Rounding.EVEN, -128 - zero, 127 - zero, zero) for a in sums]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rounding", Rounding)
def test_thresholds(rounding):
    """Below each threshold a sum becomes less, and from it on at least what belongs to it."""
    rng = np.random.default_rng(2)
    for case in range(60):
        scale = Scale(int(rng.integers(1, 1 << 31)), int(rng.integers(25, 52)))
        if case % 3 == 0:
            scale = Scale(int(rng.integers(1, 8)), int(rng.integers(-2, 6)))
        zero = int(rng.integers(-3, 4)) if rounding is Rounding.EVEN else 0
        low, high = -130, 120
        for j, edge in enumerate(thresholds(scale, rounding, low, high, zero), low + 1):
            assert rescale(edge, scale, rounding, low, high, zero) >= j
            assert rescale(edge - 1, scale, rounding, low, high, zero) < j
        sums = rng.integers(-(1 << 20), 1 << 20, 40)
        expected = [rescale(int(a), scale, rounding, low, high, zero) for a in sums]
        np.testing.assert_array_equal(rescaled(sums, scale, rounding, low, high, zero), expected)


def test_quantise_and_back():
    """ONNX's own evaluator gives the same integers and numbers."""
    pytest.importorskip("onnx", reason="needs the onnx extra")
    rng = np.random.default_rng(3)
    for _ in range(50):
        scale = np.float32(2.0 ** rng.uniform(-6, 2))
        zero = np.int8(rng.integers(-128, 128))
        x = (100 * scale * rng.standard_normal(500)).astype(np.float32)
        x[:100] = (rng.integers(-90, 90, 100) + np.float32(0.5)) * scale
        low, high = -128 - int(zero), 127 - int(zero)
        q, y = _onnx_evaluated(x, scale, zero)
        np.testing.assert_array_equal(quantise(x, scale, low, high), q.astype(np.int32) - zero)
        np.testing.assert_array_equal(dequantise(q.astype(np.int32) - int(zero), scale), y)


def _onnx_evaluated(x, scale, zero):
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [None]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("z", TensorProto.INT8, []),
        ],
        [
            helper.make_tensor_value_info("q", TensorProto.INT8, [None]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [None]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return ReferenceEvaluator(model).run(
        None, {"x": x, "s": np.asarray(scale), "z": np.asarray(zero)}
    )
