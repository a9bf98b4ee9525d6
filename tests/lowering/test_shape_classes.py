"""Units with shapes at the borders of blocks, words and pitches: the model against PyTorch.

A small, fixed part of ``bench/bench_shape_classes.py``, and the faults of
``bench/bench_planted_faults.py``, which show that the comparison can fail.
"""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.lowering.products import conv_passes
from fpgapipe.lowering.products.conv import PASSES, ConvSpec
from fpgapipe.lowering.products.conv_parts import Formats
from fpgapipe.lowering.products.tiled_product import tile_product
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units import registry
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network import operators as ops
from fpgapipe.network.operators import others
from fpgapipe.network.zoo.layers import Network

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
try:
    import product_order
    import shape_classes
    from shape_classes import (
        CANCELLED,
        CORES,
        FAINT,
        NEAR,
        Case,
        WrongError,
        compare,
        draw,
        judge,
        of_model,
        of_torch,
    )
finally:
    sys.path.remove(str(BENCH))

ELSEWHERE = {
    "centre", "quantise", "dequantise", "integer_add", "window_sum", "rescale",
    "halo", "gather", "take", "scatter", "sum-gradients", "shared_batch_norm",
}  # fmt: skip
"""Operators of quantised networks, and of networks that are cut over devices."""


def case_of(net, *, activations=FP32, core=0, train=True):
    """A network as a case."""
    options = StepOptions(activations=activations, train=train)
    return Case("unit", net.name, net.build(), CORES[core], options, 1)


def test_every_unit_is_drawn():
    kinds = {name.split()[-1] for name in shape_classes.UNITS}
    # Examples of other packages may have been tried in this process.
    makers = registry._MAKERS.keys() - {each.kind for each in others._OTHERS.values()}
    assert makers - kinds <= ELSEWHERE


@pytest.mark.parametrize("number", range(len(shape_classes.UNITS)), ids=list(shape_classes.UNITS))
def test_a_case_of_each_unit(number):
    found = judge(draw(0, number), twin=number % 4 == 0)
    assert found["verdict"] in ("right", "refused"), found
    if found["verdict"] == "refused":
        assert found["reason"].startswith("layer '"), found


def test_cases_are_those_of_their_numbers():
    cases = [draw(seed, 1, "grouped") for seed in (3, 3, 4)]
    assert cases[0].text == cases[1].text != cases[2].text
    assert cases[0].graph.to_dict() == cases[1].graph.to_dict()


def test_an_error_of_a_tenth_is_found():
    """Every value of a step that is no remainder of cancelled terms."""
    net = Network("net", 2)
    x = net.relu(net.conv(net.image(2, 5, 4), 33, 1))
    net.linear(net.flatten(net.relu(net.conv(x, 5, 3, padding=1))), 3)
    case = case_of(net)
    right = of_model(case, 0, CORES[0])
    torch = partial(of_torch, case, 0, "mxint8")
    bounds = {"near": NEAR, "floor": CANCELLED[FP32], "noisy": torch, "noisy_below": FAINT}
    assert compare(right, right, **bounds) == 0.0
    rng = np.random.default_rng(0)
    for name, value in right.items():
        noise = np.asarray(rng.standard_normal(np.shape(value)))
        planted = value + 0.1 * np.linalg.norm(value) * noise / np.linalg.norm(noise)
        with pytest.raises(WrongError, match=f"^{name} is off by"):
            compare({**right, name: planted}, right, **bounds)
        with pytest.raises(WrongError, match="nan times"):
            compare({**right, name: value * np.nan}, right, **bounds)


def test_a_bias_whose_gradient_is_rounding_is_right():
    """Twelve biases in front of a batch normalisation of two samples."""
    assert judge(draw(1, 10_611), 1)["verdict"] == "right"


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
def test_batch_normalisation_of_one_sample_of_one_column(activations):
    """PyTorch's own gradient is wrong for the strides that such an image has."""
    net = Network("column", 1)
    x = net.batch_norm(net.conv(net.image(2, 3, 1), 12, 1))
    net.linear(net.flatten(x), 3)
    found = judge(case_of(net, activations=activations))
    assert found["verdict"] == "right", found


def test_batch_normalisation_of_one_value_is_refused_in_training():
    net = Network("alone", 1)
    net.linear(net.batch_norm(net.linear(net.image(4), 5), name="norm"), 3)
    with pytest.raises(UserError, match=r"'norm': .* at least 2 values of a channel"):
        build_step(net.build(), CORES[0])
    assert judge(case_of(net, train=False))["verdict"] == "right"


def test_parameters_that_only_a_comparison_reads_stay_as_they_are():
    net = Network("masked", 2)
    x = net.linear(net.image(4), 6)
    mask = net.add("mask", ops.Compare("lt", 0.1), net.linear(x, 6, name="read"))
    net.linear(net.add("filled", ops.MaskedFill(0.5), x, mask), 3)
    case = case_of(net)
    found = judge(case)
    assert found["verdict"] == "right", found
    assert not of_model(case, 0, case.core)["read.weight"].any()


def order_of(which, rows):
    """Text of `product_order` about a product, in one piece or in many; the last one has 6."""
    core = CoreSpec(rows, 8, acc_depth=256, scratchpad=ScratchpadSpec(4, 1 << 16))
    conv = ConvSpec(70, 70, (3, 2), (2, 1), (1, 0, 1, 1), 4, 3, 2)
    formats = Formats(FP32, FP32, FP32)
    tiled = tile_product(conv, which, core, formats, MemorySpec())
    return product_order.check((conv, which, formats), tiled, core)


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("rows", [32, 4])
def test_sums_have_the_documented_order(which, rows):
    """Block after block of the channels, and all taps of each."""
    assert order_of(which, rows) == ""


def test_sums_in_another_order_are_found(monkeypatch):
    plain = conv_passes._slices
    monkeypatch.setattr(conv_passes, "_slices", lambda *given: plain(*given)[::-1])
    assert "have other bits than sums in the documented order" in order_of("forward", 32)


def test_planted_faults_are_found():
    words = ["packed input", "difference", "transposed: weight"]
    command = [sys.executable, "bench_planted_faults.py", "--cases", "40", "--only", *words]
    ran = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)
    assert ran.returncode == 0, found
    assert [each["verdict"] for each in found["each"]] == ["WRONG"] * 3


def test_without_a_fault_the_same_cases_are_right():
    for number in range(6):
        found = judge(draw(0, number, "grouped"))
        assert found["verdict"] in ("right", "refused"), found
