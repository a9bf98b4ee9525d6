"""Fixed maps of rows on the model of a core, against NumPy in FP64."""

import numpy as np
import pytest
from kernel_cases import REGION, drawn, error, execute

from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.kernels.images.axis_map import RowMap, map_rows, runs_of
from fpgapipe.lowering.tiling.kernel import Region, Tensor
from fpgapipe.network.operators.axis_map import averages, cubic, interpolation, selection


def dense(rows):
    """The map as a matrix."""
    found = np.zeros((len(rows.taps), rows.size))
    for row, taps in enumerate(rows.taps):
        for index, factor in taps:
            found[row, index] = factor
    return found


def half_pixel(size, wanted):
    return (np.arange(wanted) + 0.5) * size / wanted - 0.5


def odd(size):
    """Rows with no tap, one and several, in no order."""
    rng = np.random.default_rng(size)
    taps = []
    for _ in range(2 * size):
        places = np.sort(rng.choice(size, rng.integers(0, min(size, 5) + 1), replace=False))
        taps.append(tuple((int(place), float(rng.normal())) for place in places))
    return taps


MAPS = {
    "twice": RowMap(6, interpolation(half_pixel(6, 12), 6)),
    "more": RowMap(7, interpolation(half_pixel(7, 10), 7)),
    "fewer": RowMap(11, interpolation(np.arange(4) * 10 / 3, 11)),
    "averages": RowMap(7, averages(7, 3)),
    "one": RowMap(1, interpolation(np.zeros(5), 1)),
    "whole": RowMap(40, averages(40, 1)),
    "cubic": RowMap(5, cubic(half_pixel(5, 13), 5, -0.75)),
    "steps": RowMap(9, selection(range(1, 9, 3))),
    "mirrored": RowMap(5, selection([2, 1, 0, 1, 2, 3, 4, 3])),
    "padded": RowMap(3, ((), (), *selection(range(3)), ()), value=1.5),
    "odd": RowMap(9, tuple(odd(9))),
}


SMALL = Region(0, 1 << 15)
"""A region into which little goes at a time."""


@pytest.mark.parametrize(
    ("outer", "inner", "region"),
    [(1, 1, REGION), (3, 5, REGION), (33, 16, REGION), (7, 50, SMALL), (1, 3_001, SMALL)],
    ids=str,
)
@pytest.mark.parametrize("name", MAPS)
def test_maps_both_ways(name, outer, inner, region):
    rows = MAPS[name]
    shapes = (outer, rows.size, inner), (outer, len(rows.taps), inner)
    x, y, dy, dx = (Tensor(each, shapes[each in ("y", "dy")]) for each in ("x", "y", "dy", "dx"))
    kernels = [map_rows("f", rows, x, y, region), map_rows("g", rows.transposed(), dy, dx, region)]
    values = {"x": drawn(shapes[0]), "dy": drawn(shapes[1], 1)}
    found = execute(kernels, [x, y, dy, dx], values)
    matrix = dense(rows)
    expected = np.einsum("rs,osi->ori", matrix, values["x"].astype(np.float64))
    expected[:, [not taps for taps in rows.taps]] = rows.value
    assert error(found["y"], expected) < 1e-6
    backward = np.einsum("rs,ori->osi", matrix, values["dy"].astype(np.float64))
    assert error(found["dx"], backward) < 1e-6


@pytest.mark.parametrize("formats", [(BF16, BF16), (BF16, FP32), (FP32, BF16)], ids=str)
@pytest.mark.parametrize("name", ["more", "odd", "padded", "mirrored"])
def test_formats(name, formats):
    rows = MAPS[name]
    x = Tensor("x", (4, rows.size, 7), formats[0])
    y = Tensor("y", (4, len(rows.taps), 7), formats[1])
    found = execute([map_rows("f", rows, x, y, REGION)], [x, y], {"x": drawn(x.shape)})
    expected = np.einsum("rs,osi->ori", dense(rows), found["x"].astype(np.float64))
    expected[:, [not taps for taps in rows.taps]] = rows.value
    assert error(found["y"], expected) < (1e-6 if formats[1] is FP32 else 4e-3)


def test_equal_factors_share_instructions():
    """Enlarging by 2 takes an instruction for each phase, and one for both ends."""
    runs = runs_of(MAPS["twice"], (0, 12))
    assert [(run.first, run.step, run.count) for run in runs] == [(0, 11, 2), (1, 2, 5), (2, 2, 5)]
    assert len(runs_of(RowMap(100, selection(range(0, 100, 3))), (0, 34))) == 1


def test_what_does_not_fit_is_refused():
    x, y = Tensor("x", (2, 9, 4)), Tensor("y", (2, 3, 5))
    with pytest.raises(ValueError, match="a map from 9 to 3 rows does not fit"):
        map_rows("f", MAPS["steps"], x, y, REGION)
