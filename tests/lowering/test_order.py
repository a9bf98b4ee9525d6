"""The order and the waits of programs: as machine code, too, and what spans of memory overlap."""

import random

import numpy as np
import pytest

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program import hazards, order
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.load import load_network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

CUT = 7  # layers of the first of two stages


def programs(kind, num_stages, *, train=True):
    """Instructions, and their kernels, of all devices."""
    core = CoreSpec(
        8,
        8,
        2,
        scratchpad=ScratchpadSpec(8, 1 << 17),
        vector=VectorSpec(16),
        links=(LinkEngineSpec(16),) * 2,
    )
    graph = load_network("resnet-mini", 2)
    names = list(graph.layers)
    layers = [names] if num_stages == 1 else [names[:CUT], names[CUT:]]
    schedule = make_schedule(kind, num_stages, 3)
    options = StepOptions(train=train)
    found = build_pipeline(graph, [core] * num_stages, layers, schedule, options=options)
    return [(part.instructions, part.kernel_of) for part in found.parts]


@pytest.mark.parametrize(
    ("kind", "num_stages", "train"),
    [("1f1b-as", 2, True), ("zb-h1", 2, True), ("fbp-as", 2, True), ("gpipe", 1, False)],
)
@pytest.mark.parametrize("reduces", [False, True])
def test_machine_code_changes_no_instruction(kind, num_stages, train, reduces, monkeypatch):
    """Also where waits are left out that others imply."""
    pytest.importorskip("numba")
    find = hazards._waits
    monkeypatch.setattr(hazards, "_waits", lambda *given, **_: find(*given, reduces=reduces))
    monkeypatch.setattr(hazards, "MANY", 1 << 60)
    plain = programs(kind, num_stages, train=train)
    monkeypatch.setattr(hazards, "MANY", 0)
    assert programs(kind, num_stages, train=train) == plain


@pytest.mark.parametrize("many", [0, 1 << 60])
def test_too_few_semaphores_are_an_error(many, monkeypatch):
    monkeypatch.setattr(hazards, "MANY", many)
    monkeypatch.setattr(
        "fpgapipe.lowering.program.assemble.semaphores_of_core", lambda links, engines: 13
    )
    with pytest.raises(NotImplementedError, match="program needs over 13 semaphores, for STORE"):
        programs("1f1b-as", 2)


class Touched:
    """A table of the last accesses to spans that are known beforehand."""

    def __init__(self, spans):
        begin, end = np.array(spans).T
        self._table = hazards.new_table(2, begin, end, end)
        self._is_odd = np.arange(len(spans)) % 2

    def add(self, span, number):
        order.add(self._table, 1, *span, number)

    def last(self, span, *, odd=False):
        return order.last(self._table, 1, *span, -1, 0 if odd else -1, self._is_odd)


@pytest.mark.parametrize("size", [1 << 14, 1 << 21, 1 << 27])
def test_what_was_touched_last(size):
    rng = random.Random(size)
    begins = [rng.choice([rng.randrange(size), (1 << 24) - 1]) for _ in range(300)]  # of buckets
    spans = [(begin, begin + 1 + int(2 ** rng.uniform(0, 25))) for begin in begins]
    touched = Touched(spans)
    known = []
    for number, span in enumerate(spans):
        expected = [n for low, high, n in known if low < span[1] and span[0] < high]
        assert touched.last(span) == max(expected, default=-1)
        odd = [n for n in expected if n % 2]
        assert touched.last(span, odd=True) == max(odd, default=-1)
        if number % 3:
            touched.add(span, number // 4)
            known.append((*span, number // 4))


def test_what_was_touched_across_buckets():
    edge = 1 << 24
    touched = Touched([(edge - 64, edge + 65)])
    touched.add((edge - 64, edge + 64), 5)
    assert touched.last((edge - 1, edge)) == 5
    assert touched.last((edge, edge + 1)) == 5
    assert touched.last((edge + 64, edge + 65)) == -1


def test_spans_beyond_those_of_a_table_are_looked_up():
    """Spans that are written may lie behind all that are read, and the other way round."""
    near, far = np.array([64]), np.array([64, 1 << 30])
    table = hazards.new_table(2, np.array([0]), near, far)
    last = (1 << 30) - 64, 1 << 30
    assert order.last(table, 1, *last, 0, -1, np.zeros(1, np.int64)) == 0
    assert table.buckets[0] << order.FINE_BITS >= last[1]
    order.add(table, 0, 0, 64, 7)
    assert order.last(table, 0, 0, 64, 0, -1, np.zeros(8, np.int64)) == 7
