"""Plans priced by the programs that they become."""

from dataclasses import replace

import pytest
from build_cases import plan_of
from run_cases import small_network

from fpgapipe.boards.library import load_board
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.partition.cost.cores import core_of, with_links
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing import machine
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.layer_choice import priced_choice
from fpgapipe.partition.pricing.layer_prices import LayerPrices
from fpgapipe.partition.pricing.machine import lower_plan, price_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.pricing.prediction import PipelineTiming

FEW = 6


def planned(devices=2, count=4, kind="1f1b-as", train=True):
    return plan_of(
        devices,
        load=small_network,
        batch=4 * count,
        microbatches=count,
        schedules=(kind,),
        train=train,
    )


def layers_of(plan):
    return [stage.layers for stage in plan.stages]


@pytest.mark.parametrize("train", [True, False], ids=["training", "inference"])
def test_a_plan_has_the_times_and_bytes_of_its_programs(train):
    plan, graph, cluster = planned(train=train)
    assert plan.predicted.level == "estimate"
    pipeline = lower_plan(plan, graph, cluster)
    priced, timeline = price_plan(plan, graph, cluster)
    timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))
    clk_hz = plan.nodes[0].spec.clk_hz
    assert priced.predicted.level == "machine"
    cycles = timing.cluster.cycles
    assert priced.predicted.minibatch_s == cycles / clk_hz
    assert timeline.makespan_s * clk_hz == pytest.approx(cycles, rel=0.02)
    assert [s.memory_bytes for s in priced.nodes] == [p.memory_bytes for p in pipeline.parts]
    assert price_plan(plan, graph, cluster, pipeline)[0] == priced


def test_concurrent_tasks_take_what_the_cycle_model_of_all_devices_says():
    """The event simulation of two engines on each of four devices is off by more than 1 %."""
    plan, graph, cluster = planned(devices=4, kind="fbp-as")
    priced, timeline = price_plan(plan, graph, cluster)
    pipeline = lower_plan(plan, graph, cluster)
    timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))
    cycles = timing.cluster.cycles
    assert priced.predicted.minibatch_s * plan.clk_hz == pytest.approx(cycles, rel=1e-12)
    assert abs(timeline.makespan_s * plan.clk_hz / cycles - 1) > 1e-3


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-as", "zb-h1"])
def test_a_few_microbatches_tell_the_times_of_many(kind, monkeypatch):
    plan, graph, cluster = planned(count=12, kind=kind)
    whole, _ = price_plan(plan, graph, cluster)
    monkeypatch.setattr(machine, "ENOUGH_LAYERS", FEW * sum(map(len, layers_of(plan))))
    few, _ = price_plan(plan, graph, cluster)
    assert few != whole
    assert few.predicted.minibatch_s == pytest.approx(whole.predicted.minibatch_s, rel=0.005)
    for one, other in zip(few.nodes, whole.nodes, strict=True):
        assert one.memory_bytes == other.memory_bytes
    # What is known of the programs is taken from them.
    exact, _ = price_plan(plan, graph, cluster, lower_plan(plan, graph, cluster))
    assert [s.memory_bytes for s in exact.nodes] == [s.memory_bytes for s in whole.nodes]


def test_a_few_microbatches_are_lowered_with_the_options_of_all(monkeypatch):
    plan, graph, cluster = planned(count=16)
    options = StepOptions(activations=FP32)
    pipeline = lower_plan(plan, graph, cluster, options)
    whole, _ = price_plan(plan, graph, cluster, pipeline, options)
    monkeypatch.setattr(machine, "ENOUGH_LAYERS", FEW * sum(map(len, layers_of(plan))))
    few, _ = price_plan(plan, graph, cluster, pipeline, options)
    assert few.predicted.minibatch_s == pytest.approx(whole.predicted.minibatch_s, rel=0.005)
    assert few.nodes[0].sends_bytes == whole.nodes[0].sends_bytes
    default, _ = price_plan(plan, graph, cluster)
    assert default.nodes[0].sends_bytes < few.nodes[0].sends_bytes


@pytest.mark.parametrize(
    ("devices", "kind"), [(2, "1f1b-as"), (4, "1f1b-as"), (3, "gpipe"), (2, "zb-h1")]
)
def test_updates_that_wait_for_the_norm_are_priced(devices, kind):
    """The total goes to the first stage, and the factor comes back."""
    plan, graph, cluster = planned(devices=devices, count=6, kind=kind)
    clk_hz = plan.nodes[0].spec.clk_hz
    cycles = {}
    for clip_norm in (None, 1.0):
        options = StepOptions(optimiser="adamw", clip_norm=clip_norm)
        pipeline = lower_plan(plan, graph, cluster, options)
        priced, timeline = price_plan(plan, graph, cluster, pipeline, options)
        timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))
        assert priced.predicted.minibatch_s * clk_hz == pytest.approx(
            timing.cluster.cycles, rel=1e-12
        )
        found = timeline.makespan_s * clk_hz
        cycles[clip_norm] = found, timing.cluster.cycles
    (plain, plain_true), (clipped, true) = cycles.values()
    assert clipped > plain
    assert clipped - plain == pytest.approx(true - plain_true, rel=0.02)


@pytest.mark.parametrize("count", [1, 4])
def test_layers_take_what_the_program_takes(count):
    graph, cluster = planned(devices=1, count=count)[1:]
    batch = count * graph.batch
    request = Request(lambda samples: graph, batch, cluster, ("1f1b-as",), count, (8, 8))
    best = explore(request).best
    node, estimates = best.stages[0].node, best.stages[0].costs
    costs = LayerPrices(graph, True, count).costs(estimates, with_links(node, ()))
    seconds = sum(count * cost.total_s + cost.update.seconds for cost in costs)
    plan = as_plan(best, graph, "small", batch, cluster)
    priced, _ = price_plan(plan, graph, cluster)
    assert seconds == pytest.approx(priced.predicted.minibatch_s, rel=0.02)
    assert all(cost.weight_bytes == 0 or cost.update.seconds > 0 for cost in costs)
    (program,) = lower_plan(plan, graph, cluster).parts
    # The first micro-batch, whose gradients begin sums, takes fewer instructions than the others.
    share = sum(cost.program_bytes for cost in costs) / program.demand.program_bytes
    assert 0.99 < share < 1 + 0.01 * count


@pytest.mark.parametrize("kind", ["zb-h1", "fbp-as"])
def test_prices_of_the_machine_make_no_worse_cuts(kind):
    _, graph, cluster = planned(devices=2)
    request = Request(small_network, 16, cluster, (kind,), 4, (8, 8), all_devices=True)
    estimated = as_plan(explore(request).best, graph, "small", 16, cluster)
    found = best_plan(request, "small").plan
    assert found.predicted.level == "machine"
    assert len(found.stages) == 2
    by_formulas = price_plan(estimated, graph, cluster)[0]
    assert found.predicted.minibatch_s <= 1.01 * by_formulas.predicted.minibatch_s


def test_a_scratchpad_without_room_is_doubled():
    device = load_board("u280").device_spec()
    graph = small_network(2)
    node = core_of(device, 4, 4)
    small = replace(node, core=replace(node.core, scratchpad=ScratchpadSpec(2, 1 << 11)))
    found = priced_choice(graph, {device: small}, train=True, count=1)
    assert found is not None
    larger, _ = found[device]
    size_bytes = larger.core.scratchpad.size_bytes
    assert size_bytes > small.core.scratchpad.size_bytes
    assert replace(larger, core=replace(larger.core, scratchpad=small.core.scratchpad)) == small
    limit = size_bytes // 2
    assert not priced_choice(graph, {device: small}, train=True, count=1, scratchpad_bytes=limit)
