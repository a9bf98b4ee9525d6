"""The cost model: convolutions, layers, cores and profiles."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import board_names, load_board
from fpgapipe.hw.hls_models.cycles.gemm import gemm_cost
from fpgapipe.hw.hls_models.numerics.element_format import FP32, MXINT8
from fpgapipe.hw.hls_models.resources.core_resources import COEFFICIENTS, core_resources
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.device import DeviceSpec, DieResources, MemoryGroupSpec
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.lowering.products import conv_parts, conv_passes
from fpgapipe.lowering.products.conv_parts import Tiling
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layers.depthwise_unit import is_depthwise
from fpgapipe.network.frontends.profile import read_csv_profile, read_pipedream
from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.operators import (
    Activation,
    Affine,
    Binary,
    Conv,
    CrossEntropy,
    Embedding,
    Flatten,
    Linear,
    Pass,
    Pool,
    Reshape,
    Softmax,
)
from fpgapipe.network.operators.tensors import DType, Tensor
from fpgapipe.network.zoo import NETWORKS, built_in
from fpgapipe.partition.cost.cores import NO_SAVINGS, SMALL_SAVINGS, Savings, on_part, wider_cores
from fpgapipe.partition.cost.cost import (
    CostModel,
    Formats,
    activation_bytes,
    candidate_cores,
    core_fits,
    core_of,
    layer_costs,
    measured_costs,
)
from fpgapipe.partition.cost.work_products import products


def device(**options):
    """A device of one die with 64 bytes of memory a cycle at 100 MHz."""
    settings = {
        "name": "bench",
        "part": "none",
        "dsp_kind": "DSP48E2",
        "clk_hz": 1e8,
        "dies": (DieResources("die", 10**6, 10**6, 2000, 500, 5000),),
        "memories": (MemoryGroupSpec("ddr", "ddr4", 1, 2**30, 6.4e9, 1e-6),),
        "ports": (),
        "host_bytes_per_s": 1e9,
    }
    return DeviceSpec(**(settings | options))


def core(rows=32, cols=32, lanes=16, **options):
    pad = ScratchpadSpec(4, 1 << 18)
    return CoreSpec(rows, cols, scratchpad=pad, vector=VectorSpec(lanes, -(-lanes // 4)), **options)


def node(memory_bytes_per_cycle=64.0, **options):
    """A core at 100 MHz with 64 bytes of memory a cycle."""
    return NodeSpec(core(**options), 1e8, memory_bytes_per_cycle, 100)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: core(rows=12), "core rows must divide 32, not 12"),
        (lambda: NodeSpec(core(), 0), "core clock must be finite and above 0 Hz, not 0"),
        (
            lambda: node(-1.0),
            "memory_bytes_per_cycle of a core must be at least 0 and finite, not -1.0",
        ),
        (
            lambda: Formats(state=MXINT8),
            "state must be BF16 or FP32, not ElementFormat.MXINT8",
        ),
    ],
)
def test_refuses_cores(build, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build()


# Convolutions


def conv_layer(size, channels, conv, batch=1):
    builder = GraphBuilder("net", batch)
    shape = (batch, channels, *([size] * len(conv.kernel)))
    before = builder.add("before", Conv(channels, (1, 1), (1, 1), ((0, 0),) * 2, (1, 1)),
                         builder.input("x", Tensor(shape)))  # fmt: skip
    builder.add("conv", conv, before)
    graph = builder.build()
    return graph, graph.layers["conv"]


def square_conv(out, kernel, stride=1, padding=0, dilation=1):
    return Conv(out, (kernel,) * 2, (stride,) * 2, ((padding, padding),) * 2, (dilation,) * 2)


def test_strided_input_gradient_has_a_product_for_each_phase():
    graph, layer = conv_layer(56, 64, square_conv(128, 3, stride=2, padding=1))
    found = products(graph, layer, Formats())[Pass.INPUT_GRADIENT]
    # Of each axis, even positions meet the middle tap, odd ones the outer two.
    assert sorted((p.m.size, p.k.taps) for p in found) == [(784, n) for n in (1, 2, 2, 4)]
    assert sum(p.macs for p in found) == layer.macs
    assert sum(p.left_bytes for p in found) == pytest.approx(2 * layer.output.elements, abs=4)


def test_input_gradient_of_a_strided_pointwise_convolution_skips_what_nothing_read():
    graph, layer = conv_layer(8, 4, square_conv(16, 1, stride=2))
    (only,) = products(graph, layer, Formats())[Pass.INPUT_GRADIENT]
    assert (only.m.size, only.k.size, only.n.size) == (16, 16, 4)
    assert products(graph, layer, Formats())[Pass.FORWARD][0].left_bytes == 2 * 16 * 4
    cost = layer_costs(graph, node())[-1].input_gradient
    zeros = (64 - 16) * 4
    loss = 2 * 2 * 16 * 16  # the results are those of the network
    assert cost.memory_bytes == 2 * (16 * 16 + 16 * 4 + zeros) + 2 * 64 + loss


@given(
    st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3)
)
def test_phases_meet_every_pair_of_position_and_tap_once(size, kernel, stride, padding, dilation):
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        return
    graph, layer = conv_layer(size, 2, square_conv(3, kernel, stride, padding, dilation))
    pairs = sum(
        (x + padding - tap * dilation) % stride == 0 for x in range(size) for tap in range(kernel)
    )
    found = products(graph, layer, Formats())[Pass.INPUT_GRADIENT]
    assert sum(p.m.size * p.k.taps for p in found) == pairs**2


@pytest.mark.parametrize("array", [(32, 64), (32, 192), (16, 32), (4, 4)])
@pytest.mark.parametrize(
    ("channels", "conv"),
    [
        (3, square_conv(64, 7, stride=2, padding=3)),
        (64, square_conv(64, 3, padding=1)),
        (70, square_conv(200, 3, stride=2, padding=1)),
        (20, square_conv(40, 3, padding=2, dilation=2)),
        (20, square_conv(40, 3)),
        (32, square_conv(31, 2)),
        (256, square_conv(100, 1)),
    ],
)
def test_products_stream_what_programs_stream_past_as_many_tiles(channels, conv, array):
    graph, layer = conv_layer(14, channels, conv)
    whole = Tiling(m=1 << 20, n_tiles=1 << 20, k=1 << 20)
    core = CoreSpec(*array)
    for which, each in {
        "forward": Pass.FORWARD, "input": Pass.INPUT_GRADIENT, "weight": Pass.WEIGHT_GRADIENT,
    }.items():  # fmt: skip
        formulas = [
            (p.m.size, p.k.tiles(core.rows) * p.n.tiles(core.cols))
            for p in products(graph, layer, Formats())[each]
        ]
        programs = [
            (
                sum(map(made.vectors, made.rows(whole))),
                sum(map(made.depth, made.slices(whole)))
                * sum(map(made.array_tiles, made.columns(whole))),
            )
            for made in conv_passes.products(
                conv_of(layer), which, core, conv_parts.Formats(), own_window=False
            )
        ]
        assert sorted(formulas) == sorted(each for each in programs if all(each))


def test_weight_gradient_reduces_over_positions():
    graph, layer = conv_layer(56, 64, square_conv(64, 3, padding=1))
    (only,) = products(graph, layer, Formats())[Pass.WEIGHT_GRADIENT]
    assert only.macs == layer.macs
    cost = gemm_cost(only, NodeSpec(CoreSpec(32, 32), 1e8))
    assert cost.compute_cycles == 33 + (3136 // 32) * 2 * 576 + 64


# Layers


def small_network():
    builder = GraphBuilder("small", 2)
    x = builder.input("x", Tensor((2, 3, 8, 8)))
    labels = builder.input("labels", Tensor((2,), DType.INT64))
    x = builder.add("conv1", square_conv(32, 3, padding=1), x)
    x = builder.add("relu1", Activation("relu"), x)
    x = builder.add("conv2", square_conv(32, 3, padding=1), x)
    x = builder.add("pool", Pool("max", (2, 2), (2, 2), ((0, 0),) * 2, (1, 1)), x)
    x = builder.add("flatten", Flatten(), x)
    x = builder.add("fc", Linear(10), x)
    builder.add("loss", CrossEntropy(), x, labels)
    return builder.build()


def test_layers_of_a_small_network():
    costs = {each.name: each for each in layer_costs(small_network(), node())}
    conv1, conv2, fc = costs["conv1"], costs["conv2"], costs["fc"]
    # 128 positions, three vectors of nine places each, one column of tiles
    assert conv1.forward.gemm_cycles == 33 + 3 * 128 + 64
    assert conv1.input_gradient.cycles == 0
    assert conv1.forward.macs == 128 * 27 * 32
    assert conv2.forward.gemm_cycles == conv2.input_gradient.gemm_cycles == 33 + 9 * 128 + 64
    assert conv2.weight_gradient.gemm_cycles == 33 + 4 * 288 + 64
    assert conv2.forward.seconds == conv2.forward.cycles / 1e8
    assert conv2.output_bytes == conv2.gradient_bytes == 2 * 4096
    assert costs["loss"].gradient_bytes == 0
    learned = 32 * 512 // 32 * 10 + 10
    assert (fc.weight_bytes, fc.optimiser_bytes) == (4 * learned, 12 * learned)
    assert fc.operand_bytes == 2 * (5120 + 160)
    assert fc.update.memory_bytes == 20 * learned
    assert fc.update.vector_cycles == -(-3 * learned // 16)


def test_features_that_are_kept():
    costs = {each.name: each for each in layer_costs(small_network(), node())}
    assert costs["conv1"].kept == (("x", 2 * 384),)
    assert costs["relu1"].kept == ()  # the next layer keeps its result
    assert costs["conv2"].kept == (("relu1", 2 * 4096),)
    assert costs["pool"].kept == (("pool.indices", 2 * 1024),)
    assert costs["fc"].kept == (("pool", 2 * 1024),)  # flattening renames it
    assert costs["loss"].kept == (("loss.softmax", 40), ("labels", 16))
    assert activation_bytes(costs.values()) == 768 + 8192 + 2048 + 2048 + 56


def test_relu_runs_with_the_product_before_it():
    costs = {each.name: each for each in layer_costs(small_network(), node())}
    assert costs["relu1"].fused_into == "conv1"
    assert costs["relu1"].total_s == 0
    # The sums are written and read in FP32, since the core applies bias and ReLU in a pass behind.
    sums = 4 * 4096
    assert costs["conv1"].forward.memory_bytes == 2 * 384 + 4 * 27 * 32 + 2 * sums + 2 * 4096


def test_gradients_of_weights_are_added_where_there_are_several_micro_batches():
    graph = small_network()
    alone, several = (
        {each.name: each for each in CostModel(graph, accumulates=more).costs(node())}
        for more in (False, True)
    )
    for name in ("conv1", "conv2", "fc"):
        weights = alone[name].weight_bytes - 4 * (10 if name == "fc" else 32)
        before, after = alone[name].weight_gradient, several[name].weight_gradient
        assert after.memory_bytes - before.memory_bytes == 3 * weights
        assert several[name].forward == alone[name].forward


def test_functions_by_table_take_the_lanes_that_have_one():
    builder = GraphBuilder("net", 1)
    x = builder.add("fc", Linear(64), builder.input("x", Tensor((1, 64))))
    builder.add("sigmoid", Activation("sigmoid"), x)
    costs = {each.name: each for each in layer_costs(builder.build(), node(lanes=16))}
    assert costs["sigmoid"].forward.vector_cycles == 64 // 4


def test_an_embedding_is_a_product_with_rows_of_a_single_one():
    builder = GraphBuilder("net", 2)
    builder.add("table", Embedding(500, 40), builder.input("x", Tensor((2, 8), DType.INT64)))
    graph = builder.build()
    found = products(graph, graph.layers["table"], Formats())
    assert [found[each][0].macs for each in found] == [16 * 500 * 40] * 2
    (cost,) = layer_costs(graph, node())
    assert cost.forward.vector_cycles == 16 * 500 // 16


def test_what_runs_with_a_layer_and_the_loss_take_lanes():
    """A scale, the softmax of half of the elements, and the loss of the last layer's results."""
    builder = GraphBuilder("net", 1)
    x = builder.add("fc", Linear(64), builder.input("x", Tensor((1, 64, 64))))
    x = builder.add("scale", Affine(0.5), x)
    x = builder.add("softmax", Softmax(causal=True), x)
    builder.add("last", Linear(32), x)
    costs = {each.name: each for each in layer_costs(builder.build(), node(lanes=16))}
    assert costs["softmax"].fused_into == "scale"
    seen = 64 * 65 // 2
    assert costs["scale"].forward.vector_cycles == (64 * 64 + 3 * seen) // 16 + seen // 4
    backward = costs["last"].input_gradient, costs["last"].weight_gradient
    assert sum(each.vector_cycles for each in backward) >= 6 * 64 * 32 // 16 + 64 * 32 // 4


def test_relu_is_apart_where_others_read_its_input():
    builder = GraphBuilder("net", 1)
    x = builder.add("fc", Linear(64), builder.input("x", Tensor((1, 64))))
    y = builder.add("relu", Activation("relu"), x)
    builder.add("sum", Binary("add"), x, y)
    costs = {each.name: each for each in layer_costs(builder.build(), node())}
    assert costs["relu"].fused_into is None
    assert costs["relu"].forward.vector_cycles == 64 // 16
    # The gradients of both readers are added where the layer's own gradients begin.
    assert costs["fc"].weight_gradient.vector_cycles == (64 + 64) // 16


@pytest.mark.parametrize(("function", "sums"), [("add", 2), ("mul", 2)])
def test_gradients_of_repeated_tensors_are_sums(function, sums):
    builder = GraphBuilder("net", 1)
    x = builder.add("fc", Linear(64), builder.input("x", Tensor((4, 64))))
    rows = builder.add("rows", Reshape((4, 1, 64)), x)
    columns = builder.add("columns", Reshape((1, 4, 64)), x)
    builder.add("last", Linear(8), builder.add("pairs", Binary(function), rows, columns))
    costs = {each.name: each for each in layer_costs(builder.build(), node())}
    assert costs["pairs"].forward.vector_cycles == 16 * 64 // 16
    back = costs["pairs"].input_gradient
    assert back.vector_cycles == sums * 16 * 64 // 16
    reads = 2 * (sums * 16 * 64 + (2 * 4 * 64 if function == "mul" else 0))
    assert back.memory_bytes == reads + 2 * 2 * 4 * 64


def test_features_in_fp32():
    graph = small_network()
    costs = CostModel(graph, Formats(FP32)).costs(node())
    assert costs[0].output_bytes == 4 * 4096


def test_two_engines_share_the_memory():
    graph = built_in("lenet5", 8)
    one, two = (
        sum(each.forward.cycles for each in layer_costs(graph, node(1.0, num_engines=n)))
        for n in (1, 2)
    )
    assert 1.5 * one < two < 2.5 * one


def test_two_engines_as_one_have_the_columns_of_both():
    graph = built_in("lenet5", 8)
    two = CostModel(graph).costs(node(cols=16, num_engines=2), as_one=True)
    assert two == CostModel(graph).costs(node(cols=32))


def test_resnet50_is_faster_than_a_model_that_charges_fill_and_drain_for_every_tile():
    graph = built_in("resnet50")
    convs = {name for name, layer in graph.layers.items() if layer.op == "conv"}
    costs = [each for each in layer_costs(graph, node()) if each.name in convs]
    cycles = sum(each.forward.cycles for each in costs)
    macs = sum(graph.layers[name].macs for name in convs)
    assert sum(each.forward.macs for each in costs) == macs
    # SCALE-Sim 3.0.0, 32x32 weight stationary, counts 5,979,656 cycles for fewer products (3.41 G).
    assert macs / 1024 < cycles < 5_979_656


@pytest.mark.parametrize("name", ["resnet50", "digits-cnn"])
def test_time_grows_with_the_batch_but_not_faster(name):
    cycles = [
        sum(each.forward.cycles for each in layer_costs(built_in(name, batch), node()))
        for batch in (1, 2, 8)
    ]
    assert cycles[0] < cycles[1] < 2.05 * cycles[0]
    assert cycles[1] < cycles[2] < 4.05 * cycles[1]


@pytest.fixture(scope="module")
def boards():
    return {name: load_board(name).device_spec() for name in board_names()}


# Two operand readers, which handle 32 elements of FP32 however small the array is, a vector engine
# and the scratchpad's ports take more LUTs than these have. They have room for small cores only.
TOO_SMALL = {"arty-a7-100t", "pynq-z2", "ulx3s"}
TOO_SMALL_FOR_TWO = {"kv260"}


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("name", sorted(TOO_SMALL))
def test_small_boards_have_small_cores(name, random, boards):
    cores = [each.core for each in candidate_cores(boards[name], random=random)]
    assert (4, 4) in {(core.rows, core.cols) for core in cores}
    for core in cores:
        assert not core_fits(boards[name], core)
        assert core.scratchpad.port_bytes < 64
        assert not core.counters
        assert core.vector.random or not random
    with pytest.raises(ValueError, match=f"^no core fits {name}: lut: needs"):
        candidate_cores(boards[name], num_engines=2)


def test_a_kv260_with_two_links_holds_a_small_core_of_16x16(boards):
    device = boards["kv260"]
    tried = (NO_SAVINGS, *SMALL_SAVINGS)
    sized = [core_of(device, 16, 16, num_links=2, savings=savings).core for savings in tried]
    fitting = [core for core in sized if not core_fits(device, core)]
    assert fitting
    assert sized[0] not in fitting


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_has_costs_on_every_board(network, boards):
    graph = built_in(network)
    model = CostModel(graph)
    selections = [name for name, layer in graph.layers.items() if layer.op == "embedding"]
    on_vectors = sum(
        layer.macs
        for layer in graph.layers.values()
        if layer.inputs and is_depthwise(layer.operator, layer.input_tensors[0].shape)
    )
    for spec in (boards[name] for name in boards.keys() - TOO_SMALL):
        chosen = candidate_cores(spec)[0]
        costs = model.costs(chosen)
        assert [each.name for each in costs] == list(graph.layers)
        # The array's: depthwise convolutions run on the vector engine. Products that select rows
        # of an embedding's table are none of the network's.
        found = [each.forward.macs for each in costs if each.name not in selections]
        assert sum(found) == graph.totals.macs - on_vectors
        assert sum(each.optimiser_bytes for each in costs) == 12 * graph.totals.parameters
        assert activation_bytes(costs) == sum(each.activation_bytes for each in costs)
        for each in costs:
            for part in (each.forward, each.input_gradient, each.weight_gradient, each.update):
                assert part.cycles >= max(part.memory_cycles, part.vector_cycles)
                assert part.cycles >= part.macs / (chosen.core.rows * chosen.core.cols)
                assert part.seconds == part.cycles / chosen.clk_hz


# Cores


def test_the_largest_core_fits_and_the_next_does_not(boards):
    for spec in (boards[name] for name in boards.keys() - TOO_SMALL):
        for engines in (1, 2):
            if engines == 2 and spec.name in TOO_SMALL_FOR_TWO:
                continue
            cores = candidate_cores(spec, engines, form=Form.PLAIN)
            assert not any(core_fits(spec, each.core) for each in cores)
            best = cores[0].core
            step = 32 if best.cols >= 32 else 1
            assert core_fits(spec, core_of(spec, best.rows, best.cols + step, engines).core)


def test_packed_cells_make_larger_cores(boards):
    device = boards["u280"]
    plain, packed = (candidate_cores(device, form=form) for form in Form)
    assert packed[0].core.cells > plain[0].core.cells
    for core in (each.core for each in packed):
        assert core.form is Form.PACKED
        assert not core_fits(device, core)
    best = packed[0].core
    wider = core_of(device, best.rows, best.cols + 32, savings=Savings(form=Form.PACKED)).core
    assert core_fits(device, wider)


def test_arrays_that_fit_with_savings(boards):
    """A U55C's first node of three lacks 9 DSPs for 32x64, and its second 13,000 flip-flops."""
    first, second, _ = chain_of(load_board("u55c"), 1, 3).spec.devices
    found = {}
    for device, form in product((first, second), (Form.PLAIN, None)):
        assert max(n.core.cols for n in candidate_cores(device, 1, 2) if n.core.rows == 32) == 32
        cores = [node.core for node in wider_cores(device, 1, 2, form=form)]
        assert not any(core_fits(device, core) for core in cores)
        assert form is None or {core.form for core in cores} == {form}
        found[device, form] = [
            (core.cols, core.form, core.vector.lanes, core.vector.function_lanes)
            for core in cores
            if core.rows == 32
        ]
    assert found == {
        (first, Form.PLAIN): [(64, Form.PLAIN, 16, 2)],
        (first, None): [(128, Form.PACKED, 16, 2), (64, Form.PLAIN, 16, 2)],
        (second, Form.PLAIN): [(64, Form.PLAIN, 8, 2)],
        (second, None): [(128, Form.PACKED, 16, 4), (64, Form.PACKED, 16, 4)],
    }


@pytest.mark.parametrize("nodes", range(2, 9))
def test_savings_on_every_share_of_a_board(nodes):
    """Some have room for one or two columns of plain cells; packed ones are four at least."""
    wider = False
    for device in dict.fromkeys(chain_of(load_board("u280"), 1, nodes).spec.devices):
        for engines, links in product((1, 2), (0, 1, 2)):
            cores = [node.core for node in wider_cores(device, engines, links)]
            assert not any(core_fits(device, core) for core in cores)
            wider = wider or bool(cores)
    assert wider


def test_parts_without_their_dsp_have_no_packed_savings(boards):
    for name, form in product(("arty-a7-100t", "ulx3s"), (None, Form.PLAIN)):
        assert wider_cores(boards[name], form=form) == ()


@pytest.mark.parametrize(("name", "kind"), [("arty-a7-100t", "DSP48E1"), ("ulx3s", "MULT18X18D")])
def test_parts_without_their_dsp_have_no_packed_cells(name, kind, boards):
    message = f"^packed cells need parts with DSP48E2; {name} has {kind}$"
    with pytest.raises(ValueError, match=message):
        core_of(boards[name], 8, 8, savings=Savings(form=Form.PACKED))
    with pytest.raises(ValueError, match=message):
        candidate_cores(boards[name], form=Form.PACKED)


def test_dsps_are_cells_lanes_and_functions():
    assert core_resources(on_part(device(), core())).dsp == 32 * 32 + 16 * 4 + 4 * 7
    small = on_part(device(dsp_kind="MULT18X18D"), core(8, 4, lanes=2, num_engines=2))
    assert core_resources(small).dsp == 2 * 8 * 4 + 2 * 8 + 13


def test_every_coefficient_says_how_it_is_known():
    for each in COEFFICIENTS.values():
        assert each.basis in ("derived", "counted")
        assert len(each.reason) > 20


def test_limits_that_a_core_exceeds():
    spec = device(dies=(DieResources("die", 10**6, 10**6, 2000, 500, 1000),))
    (violation,) = core_fits(spec, core())
    assert str(violation) == "dsp: needs 1,116, 1,000 usable"
    assert core_fits(spec, core(cols=28)) == []


def test_an_array_spans_dies_by_whole_columns():
    die = DieResources("a", 10**6, 10**6, 2000, 500, 48 + 92)
    two = device(dies=(die, DieResources("b", 10**6, 10**6, 2000, 500, 48)))
    # 140 + 48 DSPs hold 96 cells and 92 of 16 lanes in number, but columns of 32 only two.
    (violation,) = core_fits(two, core(cols=3))
    assert str(violation) == "columns: needs 3, 2 usable"
    assert core_fits(two, core(cols=2)) == []


def test_what_cannot_be_divided_fits_no_die():
    dies = tuple(DieResources(name, 10**6, 10**6, 1000, 500, 30) for name in "abcd")
    (violation,) = core_fits(device(dies=dies), core(4, 1))
    assert str(violation) == "one die: dsp: needs 92, 30 usable"


def test_no_core_fits():
    spec = device(dies=(DieResources("die", 10**6, 10**6, 2000, 500, 5),))
    with pytest.raises(ValueError, match=r"^no core fits bench: dsp: needs 15, 5 usable$"):
        candidate_cores(spec)


def test_no_memory_costs_no_cycles():
    costs = layer_costs(small_network(), node(0.0))
    assert all(each.forward.memory_cycles == 0 for each in costs)


# Profiles


def test_costs_of_a_profile(tmp_path):
    path = tmp_path / "net.csv"
    path.write_text(
        "layer,forward_s,backward_input_s,backward_weight_s,output_bytes,weight_bytes\n"
        "a,1e-3,2e-3,3e-3,100,40\nb,4e-3,5e-3,6e-3,7,0\n"
    )
    graph = read_csv_profile(path)
    a, b = measured_costs(graph)
    assert (a.forward.seconds, a.backward_s, a.total_s) == (1e-3, 5e-3, 6e-3)
    assert (a.output_bytes, a.gradient_bytes, a.weight_bytes, a.optimiser_bytes) == (
        100, 100, 40, 120,
    )  # fmt: skip
    assert (b.kept, b.activation_bytes, b.gradient_bytes) == ((("a", 100),), 100, 0)
    with pytest.raises(ValueError, match=r"^net: layer 'a' has measured times"):
        layer_costs(graph, node())


def test_costs_of_a_pipedream_profile(tmp_path):
    path = tmp_path / "graph.txt"
    numbers = (
        "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"
    )
    path.write_text(
        f"node1 -- Conv -- {numbers.format(1, 2, 300, 8)}\n"
        f"node2 -- ReLU -- {numbers.format(0.5, 0.25, 300, 0)}\n"
        "\tnode1 -- node2\n"
    )
    first, second = measured_costs(read_pipedream(path))
    assert first.total_s == pytest.approx(3e-3)
    assert first.weight_gradient.seconds == 0
    assert second.activation_bytes == 300


def test_costs_of_a_network_that_was_not_measured():
    with pytest.raises(ValueError, match=r"^small: layer 'conv1' is a conv without measured"):
        measured_costs(small_network())


@pytest.mark.parametrize("name", ["u280", "vcu118", "vcu129", "zcu102", "u50"])
def test_unlike_boards_have_narrow_arrays_in_common(name):
    """A chain of unlike boards may be fastest with the same array on all."""
    shapes = {
        (node.core.rows, node.core.cols)
        for node in candidate_cores(load_board(name).device_spec(), 1, 2)
    }
    assert (32, 32) in shapes
