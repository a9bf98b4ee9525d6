"""Functions of two tensors that are repeated to one shape, and sums, on the model of a core."""

import numpy as np
import pytest
from kernel_cases import REGION, SMALL_REGION, drawn, error, execute, same_bits, vectors_of

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.broadcast import BROADCAST, broadcast, expand, sum_of_repeated
from fpgapipe.lowering.tiling.blocks import merged
from fpgapipe.lowering.tiling.kernel import Region, Tensor

TINY = Region(0, 3 << 12)
"""Many pieces, also along axes that are summed."""

SHAPES = [
    ((1,), (1,)),
    ((7,), (1,)),
    ((3, 5, 1, 20), (3, 1, 4, 20)),  # additive attention
    ((2, 9, 1, 130), (2, 1, 9, 130)),
    ((3, 18, 1, 1), (3, 18, 7, 5)),  # gates
    ((2, 5, 150, 18), (2, 1, 1, 18)),
    ((1, 1, 1, 3), (2, 7, 5, 3)),
    ((40, 1), (1, 33)),
    ((1, 33), (40, 1)),
    ((2, 1, 3, 1, 2, 1), (1, 3, 1, 2, 1, 2)),  # more axes than loops
    ((6, 1000), (6, 1)),
    ((1, 1), (5, 2000)),
    ((3, 1, 1), (3, 400, 1)),
    ((1, 90, 2), (70, 1, 2)),
]

FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def summed(values, shape):
    """Sums over the axes of size 1."""
    axes = tuple(n for n, size in enumerate(shape) if size == 1)
    return values.sum(axes, keepdims=True)


@pytest.mark.parametrize("formats", [(FP32, FP32), (BF16, BF16), (BF16, FP32)], ids=str)
@pytest.mark.parametrize("region", [REGION, SMALL_REGION, TINY], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_all_passes(shapes, region, formats):
    whole = np.broadcast_shapes(*shapes)
    a, b = (Tensor(name, shape, formats[0]) for name, shape in zip("ab", shapes, strict=True))
    dy = Tensor("dy", whole, formats[0])
    ys = [Tensor(function, whole, formats[1]) for function in BROADCAST]
    copy = Tensor("copy", whole, formats[0])
    kernels = [broadcast(f"k{y.name}", y.name, a, b, y, region) for y in ys]
    kernels.append(expand("copies", a, copy, region))
    sums = []
    for own, other in ((a, b), (b, a)):
        if own.shape != whole:
            for factor in (None, other):
                name = f"d{own.name}{factor is not None:d}"
                sums.append(Tensor(name, own.shape, formats[1]))
                kernels.append(sum_of_repeated(name, dy, factor, sums[-1], region, negate=own is b))
    given = {"a": drawn(a.shape), "b": drawn(b.shape, 1), "dy": drawn(whole, 2)}
    found = execute(kernels, [a, b, dy, copy, *ys, *sums], given)
    left, right, upstream = (found[name].astype(np.float64) for name in ("a", "b", "dy"))
    near = 1e-6 if formats[1] is FP32 else 4e-3
    for y in ys:
        assert error(found[y.name], FUNCTIONS[y.name](left, right)) < near
    assert same_bits(found["copy"], np.broadcast_to(found["a"], whole))
    for each in sums:
        of_a = each.name[1] == "a"
        factor = (right if of_a else left) if each.name[2] == "1" else 1
        expected = summed(upstream * factor, each.shape) * (1 if of_a else -1)
        # Numbers may cancel in a sum of many.
        size = np.abs(expected).max() / np.abs(upstream * factor).max()
        assert error(found[each.name], expected) < near * max(1, 1 / size)


def test_sums_do_not_depend_on_the_region():
    """Unless it is too small, and kept axes are cut first."""
    shape = 4, 50, 50, 256
    dy, x = Tensor("dy", shape, BF16), Tensor("x", (4, 1, 50, 256), BF16)
    found = []
    for region in (REGION, SMALL_REGION):
        total = Tensor("total", (4, 50, 1, 256))
        kernel = sum_of_repeated("sum", dy, x, total, region, negate=False)
        given = {"dy": drawn(shape), "x": drawn(x.shape, 1)}
        found.append(execute([kernel], [dy, x, total], given)["total"])
    assert same_bits(*found)


def test_many_terms_are_added_in_slices():
    """So errors do not grow with each term, and one sum is no slower than several."""
    dy, total = Tensor("dy", (2, 4096, 16)), Tensor("total", (2, 1, 16))
    kernel = sum_of_repeated("sum", dy, None, total, REGION, negate=False)
    found = execute([kernel], [dy, total], {"dy": np.full(dy.shape, 0.1)})["total"]
    assert error(found, np.full(total.shape, 4096 * np.float64(np.float32(0.1)))) < 1e-6
    vectors, _ = vectors_of([kernel], [dy, total])
    assert vectors < 1.02 * dy.elements / 16


def test_attention_takes_a_vector_for_sixteen_elements():
    shape = 2, 50, 50, 1024
    q, k = Tensor("q", (2, 50, 1, 1024), BF16), Tensor("k", (2, 1, 50, 1024), BF16)
    y = Tensor("y", shape, BF16)
    kernels = [
        broadcast("sum", "add", q, k, y, REGION),
        sum_of_repeated("dq", y, None, q, REGION, negate=False),
        sum_of_repeated("dk", y, None, k, REGION, negate=False),
    ]
    vectors, instructions = vectors_of(kernels, [q, k, y])
    assert vectors < 3.2 * y.elements / 16
    assert instructions < 3 * vectors / 1000


def test_shapes_must_fit_together():
    assert [axis.size for axis in merged([(2, 3, 4), (1, 3, 4)])] == [2, 12]
    with pytest.raises(ValueError, match="an axis must have 4 elements or one, not 3"):
        merged([(2, 4), (2, 3)])
    a, b, y = Tensor("a", (4,)), Tensor("b", (1,)), Tensor("y", (1,))
    with pytest.raises(ValueError, match="an axis must have 1 elements or one, not 4"):
        broadcast("k", "add", a, b, y, REGION)
