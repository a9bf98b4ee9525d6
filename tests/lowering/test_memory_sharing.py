"""Tensors share memory when their lifetimes allow, and none reads what another has overwritten."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from memory_cases import check_sharing
from step_cases import SMALL_CORE, every_operator
from test_fbp import CORE, network
from test_microbatches import ORDERS, run, tasks_of
from test_pipeline import cut

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.memory import sharing
from fpgapipe.lowering.memory.layout import memory_bytes
from fpgapipe.lowering.memory.memory_map import LABELS, LOSS
from fpgapipe.lowering.memory.sharing import Category, Life, _placed, fullest, share
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.partition.schedule.schedule_kinds import make_schedule


def pipeline_of(graph, kind, count=4, stages=2, **more):
    schedule = make_schedule(kind, stages, count)
    return build_pipeline(graph, [CORE] * stages, cut(graph, stages), schedule, **more).parts


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-as", "zb-h2", "fbp-as"])
def test_no_kernel_reads_what_another_tensor_has_overwritten(kind):
    graph = network()
    apart = pipeline_of(graph, kind, options=StepOptions(apart=True))
    for part, wide in zip(pipeline_of(graph, kind), apart, strict=True):
        assert check_sharing(part) > 200
        assert part.memory_bytes < wide.memory_bytes
        assert not wide.shared


@pytest.mark.parametrize("order", ORDERS)
def test_of_every_operator_no_kernel_reads_what_is_gone(order):
    program = build_step(every_operator(2), SMALL_CORE, tasks=tasks_of(ORDERS[order]))
    assert check_sharing(program) > 1000


def test_the_check_finds_a_tensor_that_is_overwritten(monkeypatch):
    monkeypatch.setattr(Life, "meets", lambda self, other: False)
    with pytest.raises(AssertionError, match=r"reads .*, overwritten by|: \{.*\} at word"):
        check_sharing(pipeline_of(network(), "1f1b-as")[0])


def test_the_check_finds_a_wait_that_is_missing():
    program = pipeline_of(network(), "1f1b-as")[0]
    found = program.instructions
    waits = np.where(found.opcodes == Opcode.LOAD, found.waits & ~(1 << 10), found.waits)
    assert (waits != found.waits).any()
    program = replace(program, instructions=found.having(waits=waits))
    with pytest.raises(AssertionError, match="before it is written"):
        check_sharing(program)


def test_results_do_not_depend_on_places():
    graph = every_operator(2)
    (shared, memory), (apart, wide) = (
        run(graph, "gpipe", StepOptions(apart=apart)) for apart in (False, True)
    )
    assert shared.outcome(memory) == apart.outcome(wide)
    for suffix in ("", ".gradient", ".momentum"):
        expected = apart.parameters(wide, suffix)
        for name, values in shared.parameters(memory, suffix).items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-as", "zb-h2"])
def test_the_memory_of_many_microbatches_is_known_from_a_few(kind):
    graph = network()
    few = pipeline_of(graph, kind, 4)
    for part, whole in zip(few, pipeline_of(graph, kind, 9), strict=True):
        assert memory_bytes(part.demand) == part.memory_bytes
        assert memory_bytes(part.demand.repeated(whole.tasks)) == whole.memory_bytes


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-as"])
def test_results_make_room_in_a_step_that_trains(kind):
    """The host reads losses alone; with places of their own for all tensors, results as well."""
    graph = network()
    *_, last = pipeline_of(graph, kind)
    *_, apart = pipeline_of(graph, kind, options=StepOptions(apart=True))
    (name,) = graph.outputs
    assert last.outputs == ()
    assert apart.outputs == (name,)
    few, more = (
        pipeline_of(graph, kind, count)[-1].account[Category.HOST.value] for count in (4, 8)
    )
    assert more - few == 4 * 3 * 4096  # pages of labels, loss, and number of right labels
    inference = pipeline_of(graph, kind, options=StepOptions(train=False))
    assert inference[-1].outputs == (name,)


def test_what_the_host_reads_and_writes_has_places_of_its_own():
    program = build_step(every_operator(2), SMALL_CORE, tasks=tasks_of(ORDERS["gpipe"]))
    assert program.shared.keys() <= program.tensors.keys()
    lasting = [*program.inputs, LABELS, LOSS]
    names = {program.of_microbatch(name, 1) for name in lasting} | program.constants.keys()
    assert not names & program.shared.keys()
    assert sum(program.account.values()) == program.memory_bytes
    memory = np.zeros(program.memory_bytes, np.uint8)
    name = next(iter(program.shared))
    with pytest.raises(ValueError, match=f"^tensor {name} shares its place in memory with others"):
        program.read(memory, name)
    with pytest.raises(ValueError, match="shares its place"):
        program.write(memory, name, np.zeros(1, np.float32))


def lives(*given):
    """Tensors of some pages that live from one kernel to another."""
    return [
        Life(name, 4096 * pages, at, live := (1 << end) - (1 << begin), live, Category.GRADIENTS)
        for at, (name, pages, begin, end) in enumerate(given)
    ]


def test_places_are_shared_by_tensors_that_never_live_together():
    given = lives(("a", 2, 0, 2), ("b", 1, 1, 4), ("c", 2, 3, 5), ("d", 1, 5, 6))
    places, end = share(given, 4096)
    assert end == 4096 * 4
    assert places["a"].begin == places["c"].begin == places["d"].begin == 4096
    assert places["b"].begin == 4096 * 3
    assert [life.name for life in fullest(given)] == ["a", "b"]


def test_small_tensors_keep_places_of_their_own():
    given = lives(("a", 200, 0, 1), ("b", 1, 2, 3), ("c", 1, 4, 5), ("d", 1, 6, 7))
    places, end = share(given, 0)
    assert end == 4096 * 202  # two of 203 pages are less than a hundredth
    assert places["b"].begin == 0


def test_the_order_that_leaves_least_unused_is_taken(monkeypatch):
    """Like a pipeline's activations: of several sizes, each for a while, one after the other."""
    monkeypatch.setattr(sharing, "SMALL", 0.0)
    rng = np.random.default_rng(1)
    better = 0
    for _ in range(50):
        firsts = rng.integers(0, 60, 40)
        given = lives(
            *(
                (f"t{number}", int(rng.integers(2, 30)), int(first), int(first + length))
                for number, (first, length) in enumerate(
                    zip(firsts, rng.integers(3, 20, 40), strict=True)
                )
            )
        )
        places, end = share(given, 0)
        for one, other in combinations(given, 2):
            if one.meets(other):
                a, b = places[one.name], places[other.name]
                assert a.end <= b.begin or b.end <= a.begin
        large_first = sorted(given, key=lambda life: (-life.size_bytes, life.live & -life.live))
        _, of_largest = _placed(large_first, 0)
        assert end <= of_largest
        better += end < of_largest
    assert better > 10
