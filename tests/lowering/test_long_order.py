"""The order and the waits of long programs as machine code equal those of the definition."""

import numpy as np
import pytest

pytest.importorskip("numba")

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program import compiled_order, long_order
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
def test_machine_code_changes_no_instruction(kind, num_stages, train, monkeypatch):
    monkeypatch.setattr(long_order, "MANY", 1 << 60)
    defined = programs(kind, num_stages, train=train)
    monkeypatch.setattr(long_order, "MANY", 0)
    assert programs(kind, num_stages, train=train) == defined


def test_too_few_semaphores_are_an_error(monkeypatch):
    """Then the definition says which pairs of queues need them."""
    monkeypatch.setattr(long_order, "MANY", 0)
    monkeypatch.setattr(
        "fpgapipe.lowering.program.assemble.semaphores_of_core", lambda links, engines: 13
    )
    with pytest.raises(NotImplementedError, match="program needs over 13 semaphores, for STORE"):
        programs("1f1b-as", 2)


def test_spans_beyond_those_of_a_table_are_looked_up():
    """What is written may lie behind all that is read, and the other way round."""
    near, far = np.array([64]), np.array([64, 1 << 30])
    table = long_order._table(2, np.array([0]), near, far)
    last = (1 << 30) - 64, 1 << 30
    assert compiled_order.last(table, 1, *last, 0, -1, np.zeros(1, np.int64)) == 0
    assert table.fine.shape[1] << compiled_order.FINE_BITS >= last[1]
    compiled_order.add(table, 0, 0, 64, 7)
    assert compiled_order.last(table, 0, 0, 64, 0, -1, np.zeros(1, np.int64)) == 7
