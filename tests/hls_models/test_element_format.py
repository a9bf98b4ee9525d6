import numpy as np
import pytest

from fpgapipe.hw.hls_models.numerics import fp32, mx
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32, MXINT8, ElementFormat


def drawn(shape):
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("element", ElementFormat, ids=lambda each: each.value)
@pytest.mark.parametrize("shape", [(1,), (5, 31), (2, 3, 32), (4, 33), (3, 0)], ids=str)
def test_what_is_encoded_comes_back(element, shape):
    values = drawn(shape)
    raw = element.encode(values)
    assert raw.dtype == np.uint8
    assert raw.size == element.size_bytes(shape)
    found = element.decode(raw, shape)
    assert found.shape == shape
    assert found.dtype == np.float32
    np.testing.assert_array_equal(element.encode(found), raw)
    limit = {FP32: 0, BF16: 2**-8, MXINT8: 2**-6}[element]
    assert (np.abs(found - values) <= limit * np.abs(values).max(initial=0)).all()


def test_encodings_are_those_of_the_numerics():
    values = drawn((3, 40))
    np.testing.assert_array_equal(FP32.encode(values).view("<f4"), values.reshape(-1))
    np.testing.assert_array_equal(BF16.encode(values).view("<u2"), fp32.to_bf16(values.reshape(-1)))
    blocks = MXINT8.encode(values).reshape(3, 2, mx.BLOCK_BYTES)
    np.testing.assert_array_equal(blocks[:, 0], mx.pack(values[:, :32]))
    rest = np.zeros((3, 32), np.float32)
    rest[:, :8] = values[:, 32:]
    np.testing.assert_array_equal(blocks[:, 1], mx.pack(rest))


def test_sizes():
    assert [each.size_bytes((3, 40)) for each in (FP32, BF16, MXINT8)] == [480, 240, 6 * 34]
    assert [each.size_bytes(()) for each in (FP32, BF16, MXINT8)] == [4, 2, 34]
    assert [each.has_blocks for each in (FP32, BF16, MXINT8)] == [False, False, True]


def test_refuses():
    with pytest.raises(TypeError, match=r"^elements must be float32, not float64$"):
        BF16.encode(np.zeros(3))
    with pytest.raises(ValueError, match=r"^BF16 of \(3,\) must be 6 bytes, not 4$"):
        BF16.decode(np.zeros(4, np.uint8), (3,))
