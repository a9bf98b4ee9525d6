"""INT8 layers on a core: every integer is that of the exact definition."""

from dataclasses import replace

import numpy as np
import pytest
from step_cases import SMALL_CORE

from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics.int8 import (
    Rounding,
    Scale,
    dequantise,
    quantise,
    rescale,
)
from fpgapipe.lowering.integers.constants import (
    CheckedConstants,
    DirectConstants,
    QuotientConstants,
    Steps,
    search,
)
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.network_units import refusals_of
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network import operators as ops
from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.operators.tensors import Tensor

INFERENCE = StepOptions(train=False)


def run(graph, inputs, core=SMALL_CORE, options=INFERENCE):
    """Results of a network in the bit-exact model."""
    program = build_step(graph, core, options=options)
    memory = program.image({name: np.float32(each) for name, each in graph.values.items()})
    program.set_batch(memory, inputs)
    CoreModel(core, memory).run(program.instructions)
    return program.results(memory)


def drawn_rescale(rng, weights, limits, rounding=Rounding.EVEN, zero=0, bits=None, **more):
    """A rescaling of sums with these weights, whose results are spread over 8 bits."""
    outputs = len(weights)
    flat = np.abs(weights).reshape(outputs, -1)
    reach, terms = int(flat.sum(1).max()), flat.shape[1]
    spread = 40 * max(abs(each) for each in limits) * np.sqrt(terms)
    factors = np.float32(60 / spread * 2.0 ** rng.uniform(-1, 1, outputs))
    scales = [Scale.of(each) for each in factors]
    if bits:
        scales = [Scale(round(float(f) * 2**45), 45) for f in factors]
    return ops.Rescale(
        limits,
        (int(weights.min()), int(weights.max())),
        reach,
        terms,
        (-128 - zero, 127 - zero),
        tuple(int(each) for each in rng.integers(-2000, 2000, outputs)),
        tuple(each.multiplier for each in scales),
        tuple(each.shift for each in scales),
        rounding.value,
        zero if rounding is Rounding.EVEN else 0,
        **more,
    )


def expected_of(totals, rescaling, axis=1):
    """The exact results of sums without their bias."""
    found = np.empty(totals.shape, np.int64)
    moved, target = np.moveaxis(totals, axis, 0), np.moveaxis(found, axis, 0)
    for channel, (m, s) in enumerate(zip(rescaling.multipliers, rescaling.shifts, strict=True)):
        for place, total in np.ndenumerate(moved[channel]):
            target[channel][place] = rescale(
                int(total) + rescaling.bias[channel],
                Scale(m, s),
                Rounding(rescaling.rounding),
                *rescaling.range,
                rescaling.zero,
            )
    return found


def convolved(x, weights, stride, padding):
    """An exact convolution, by a plain loop over its taps."""
    (top, bottom), (left, right) = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    rows = (x.shape[2] - weights.shape[2]) // stride[0] + 1
    columns = (x.shape[3] - weights.shape[3]) // stride[1] + 1
    found = np.zeros((len(x), len(weights), rows, columns), np.int64)
    for i in range(weights.shape[2]):
        for j in range(weights.shape[3]):
            part = x[:, :, i :: stride[0], j :: stride[1]][:, :, :rows, :columns]
            found += np.einsum("nchw,oc->nohw", part, weights[:, :, i, j])
    return found


def simulated(graph, inputs):
    """Results of a network on the gateware, which leaves every byte as the model does."""
    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.model.registers import RegisterMap
    from fpgapipe.sim_tb.native.core_device import build_device, run_program
    from fpgapipe.sim_tb.native.native import NativeDevice

    program = build_step(graph, SMALL_CORE, options=INFERENCE)
    memory = program.image({name: np.float32(each) for name, each in graph.values.items()})
    program.set_batch(memory, inputs)
    timing = MemorySpec()
    with NativeDevice(
        build_device(SMALL_CORE)[0],
        memory_bytes=memory.size,
        bytes_per_cycle=timing.bytes_per_cycle,
        latency_cycles=timing.latency_cycles,
    ) as device:
        device.reset()
        device.memory[:] = memory
        run_program(device, RegisterMap(SMALL_CORE), program.entry, memory.size)
        CoreModel(SMALL_CORE, memory).run(program.instructions)
        np.testing.assert_array_equal(device.memory, memory)
        return program.results(device.memory)


RANGES = {
    "plain": ((-127, 127), (-127, 127)),
    "split inputs": ((-200, 55), (-127, 127)),
    "split weights": ((0, 127), (-128, 127)),
    "both split": ((0, 255), (-255, 255)),
}


@pytest.mark.parametrize("channels", [1, 5, 33])
@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("rounding", [Rounding.EVEN, Rounding.UP])
def test_convolution(ranges, channels, rounding):
    """Convolution, bias, rescaling, maximum pooling, and back to real numbers."""
    check_convolution(ranges, channels, rounding, run)


@pytest.mark.sim
@pytest.mark.parametrize(("ranges", "channels"), [("plain", 33), ("both split", 5)])
def test_convolution_on_gateware(ranges, channels):
    check_convolution(ranges, channels, Rounding.EVEN, simulated)


def check_convolution(ranges, channels, rounding, runner):
    rng = np.random.default_rng(channels)
    limits, spread = RANGES[ranges]
    weights = rng.integers(spread[0], spread[1] + 1, (7, channels, 3, 2))
    weights.reshape(-1)[:2] = spread
    rescaling = drawn_rescale(rng, weights, limits, rounding, zero=-3)
    stride, padding = (2, 1), ((1, 0), (0, 1))
    b = GraphBuilder("convolution", 3)
    x = b.add("q", ops.Quantise(0.1, limits), b.input("x", Tensor((3, channels, 9, 7))))
    conv = ops.Conv(7, (3, 2), stride, padding, (1, 1), 1, False)
    x = b.add("y", rescaling, b.add("conv", conv, x, frozen=("weight",)))
    x = b.add("pool", ops.Pool("max", (2, 3), (2, 2), ((0, 0), (1, 0)), (1, 1)), x)
    b.add("z", ops.Dequantise((0.3,)), x)
    b.set_value("conv.weight", np.float32(weights))
    real = np.float32(rng.uniform(limits[0] * 0.11, limits[1] * 0.11, (3, channels, 9, 7)))
    found = runner(b.build(), {"x": real})["z"]

    integers = quantise(real, 0.1, *limits)
    y = expected_of(convolved(integers, weights, stride, padding), rescaling)
    assert np.unique(y).size > 60  # the results are spread
    padded = np.pad(y, ((0, 0), (0, 0), (0, 0), (1, 0)), constant_values=-999)
    rows, columns = found.shape[2:]
    pooled = np.stack(
        [padded[:, :, i::2, j::2][:, :, :rows, :columns] for i in (0, 1) for j in (0, 1, 2)]
    ).max(0)
    np.testing.assert_array_equal(found, dequantise(pooled, 0.3))


@pytest.mark.parametrize("shape", [(4, 3, 2, 2), (4, 13)])
def test_linear_layers(shape):
    """Two linear layers, the first behind images; with activations in FP32, too."""
    rng = np.random.default_rng(1)
    features = int(np.prod(shape[1:]))
    first = rng.integers(-127, 128, (11, features))
    second = rng.integers(-127, 128, (3, 11))
    one = drawn_rescale(rng, first, (-127, 127), zero=-128)
    two = drawn_rescale(rng, second, one.range)
    b = GraphBuilder("linear", 4)
    x = b.add("q", ops.Quantise(0.5, (-127, 127)), b.input("x", Tensor(shape)))
    x = b.add("flat", ops.Flatten(), x) if len(shape) > 2 else x
    for name, layer, weights in (("one", one, first), ("two", two, second)):
        x = b.add(name, ops.Linear(len(weights), bias=False), x, frozen=("weight",))
        x = b.add(f"{name}.scaled", layer, x)
        b.set_value(f"{name}.weight", np.float32(weights))
    real = np.float32(rng.uniform(-60, 60, shape))
    q = quantise(real, 0.5, -127, 127).reshape(4, -1)
    hidden = expected_of(q @ first.T, one)
    expected = expected_of(hidden @ second.T, two)
    for options in (INFERENCE, replace(INFERENCE, activations=fp32())):
        found = run(b.build(), {"x": real}, options=options)["two.scaled"]
        np.testing.assert_array_equal(found, expected)


def fp32():
    from fpgapipe.hw.hls_models.numerics.element_format import FP32

    return FP32


def test_sums_without_rescaling():
    """Sums leave with all their bits, with a bias and without; with a scale for each channel."""
    rng = np.random.default_rng(2)
    weights = rng.integers(-127, 128, (5, 200))
    reach = int(np.abs(weights).sum(1).max())
    bias = tuple(int(each) for each in rng.integers(-(10**6), 10**6, 5))
    scales = tuple(float(each) for each in np.float32(2.0 ** rng.uniform(-9, 3, 5)))
    q = rng.integers(-127, 128, (6, 200))
    for given in ((), bias):
        b = GraphBuilder("sums", 6)
        x = b.add("q", ops.Quantise(1.0, (-127, 127)), b.input("x", Tensor((6, 200))))
        x = b.add("product", ops.Linear(5, bias=False), x, frozen=("weight",))
        limits = ((-127, 127), (-127, 127))
        x = b.add("sums", ops.Rescale(*limits, reach, 200, (0, 0), given), x)
        b.add("z", ops.Dequantise(scales), x)
        b.set_value("product.weight", np.float32(weights))
        expected = q @ weights.T + np.array(given or 0)
        found = run(b.build(["sums"]), {"x": np.float32(q)})["sums"]
        np.testing.assert_array_equal(found, expected)
        found = run(b.build(["z"]), {"x": np.float32(q)})["z"]
        np.testing.assert_array_equal(found, np.float32(expected) * np.float32(scales))


def test_averages_and_sums_of_two():
    rng = np.random.default_rng(3)
    real = np.float32(rng.uniform(-20, 20, (2, 3, 6, 4)))
    scale = Scale.of(np.float32(0.11))
    b = GraphBuilder("averages", 2)
    image = b.input("x", Tensor(real.shape))
    p = b.add("p", ops.Quantise(0.1, (-127, 127)), image)
    q = b.add("q", ops.Quantise(0.7, (-100, 155)), image)
    both = b.add("both", ops.IntegerAdd((0.1, 0.7), 0.17, (-128, 127)), p, q)
    sums = b.add("sums", ops.WindowSum((3, 3), (2, 1), ((1, 1), (0, 1))), both)
    b.add(
        "mean",
        ops.Rescale(
            (-128, 127), (1, 1), 9, 9, (-128, 127), (), (scale.multiplier,), (scale.shift,)
        ),
        sums,
    )
    found = run(b.build(), {"x": real})["mean"]
    a, c = quantise(real, 0.1, -127, 127), quantise(real, 0.7, -100, 155)
    total = dequantise(a, 0.1) + dequantise(c, 0.7)
    added = quantise(total, 0.17, -128, 127)
    ones = np.zeros((3, 3, 3, 3), np.int64)
    ones[range(3), range(3)] = 1
    windows = convolved(added, ones, (2, 1), ((1, 1), (0, 1)))
    expected = np.clip(np.rint(windows * np.float64(np.float32(0.11))), -128, 127)
    np.testing.assert_array_equal(found, expected)


def test_constants_are_exact_everywhere():
    """Few sums are rescaled by two instructions, many by six, to what the definition says."""
    rng = np.random.default_rng(4)
    kinds = set()
    for bits in (6, 10, 14, 18, 21):
        for rounding in (Rounding.EVEN, Rounding.UP):
            for _ in range(6):
                most = 1 << bits
                factor = 2.0 ** (7 - bits + rng.uniform(-2, 2))
                scale = Scale.of(np.float32(factor))
                if rounding is Rounding.UP:
                    scale = Scale(round(factor * 2**52) >> 20, 32)
                zero = int(rng.integers(-128, 128)) * (rounding is Rounding.EVEN)
                bias = int(rng.integers(-most, most))
                low, high = -128 - zero, 127 - zero
                steps = Steps.of([scale], [bias], rounding, low, high, most=most, zero=zero)
                found = search(steps)
                kinds.add(type(found))
                sums = np.unique(rng.integers(-most, most + 1, 2000))
                expected = [
                    rescale(int(each) + bias, scale, rounding, low, high, zero) for each in sums
                ]
                np.testing.assert_array_equal(found.run(sums[None], low, high)[0], expected)
    assert kinds == {DirectConstants, CheckedConstants}


def test_constants_with_more_bits():
    """A scale whose inverse needs more bits in its second part than make a product exact."""
    scale = Scale(2104747019, 44)
    steps = Steps.of([scale], [-18344], Rounding.UP, -209, 46, most=3851944)
    found = search(steps)
    sums = np.unique(np.concatenate([steps.edges[0], steps.edges[0] - 1])) + 18344
    sums = sums[np.abs(sums) <= steps.most]
    expected = [rescale(int(each) - 18344, scale, Rounding.UP, -209, 46) for each in sums]
    np.testing.assert_array_equal(found.run(sums[None], -209, 46)[0], expected)


def test_a_wrong_constant_is_seen():
    """The next factor has other edges: the search would not have taken it."""
    scale = Scale.of(np.float32(0.3))
    steps = Steps.of([scale], [0], Rounding.EVEN, -128, 127, most=500)
    found = search(steps)
    assert isinstance(found, DirectConstants)
    wrong = replace(found, factors=found.factors * np.float32(1.01))
    sums = np.arange(-500, 501)[None]
    expected = [rescale(int(each), scale, Rounding.EVEN, -128, 127) for each in sums[0]]
    np.testing.assert_array_equal(found.run(sums, -128, 127)[0], expected)
    assert (wrong.run(sums, -128, 127)[0] != expected).any()


def test_quotients():
    rng = np.random.default_rng(5)
    for _ in range(20):
        scale = np.float32(2.0 ** rng.uniform(-12, 4))
        zero = int(rng.integers(-128, 128))
        found = QuotientConstants.of(scale, -128 - zero, 127 - zero)
        x = np.float32(rng.uniform(-300, 300, 3000) * scale)
        x[:200] = np.float32((rng.integers(-120, 120, 200) + 0.5) * scale)
        expected = quantise(x, scale, -128 - zero, 127 - zero)
        np.testing.assert_array_equal(found.run(x), expected)
    assert QuotientConstants.of(0.25, -128, 127).is_exact


def small(rescaling, **conv):
    b = GraphBuilder("small", 1)
    x = b.add("q", ops.Quantise(0.1, (-127, 127)), b.input("x", Tensor((1, 8, 4, 4))))
    operator = ops.Conv(8, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), bias=False, **conv)
    b.add("y", rescaling, b.add("conv", operator, x))
    return b.build()


def test_what_is_refused():
    limits = ((-127, 127), (-127, 127))
    fine = ops.Rescale(*limits, 1000, 8, (-128, 127), (), (1,), (9,))
    assert refusals_of(small(fine), train=False) == []
    reasons = {each.reason for each in refusals_of(small(fine), train=True)}
    assert "INT8 layers have no gradient: build with --mode infer" in reasons
    far = replace(fine, reach=140_000)
    (refusal,) = refusals_of(small(far), train=False)
    assert refusal.reason == (
        "sums of integers must stay within 2**24 = 16777216 (FP32 holds those exactly), and may "
        "reach 17780000; fewer inputs of a result, or smaller weights, would do"
    )
    (refusal,) = refusals_of(small(fine, groups=2), train=False)
    assert "must be those of a convolution with one group" in refusal.reason
    odd = Scale((1 << 30) + 1, 40)
    steps = Steps.of([odd], [1], Rounding.DOUBLE, -128, 127, most=1 << 16)
    with pytest.raises(NotImplementedError, match=r"^no FP32 constants rescale sums of up to "):
        search(steps)
