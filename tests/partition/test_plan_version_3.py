"""Plans of version 3, as `fpgapipe plan` wrote them, are plans of today with the same programs."""

import json
from pathlib import Path

import pytest

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import FileError
from fpgapipe.host.make.networks import loader
from fpgapipe.lowering.memory.placed import page
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.plan_version_3 import is_version_3
from fpgapipe.partition.pricing.machine import lower_plan

LINES = (Path(__file__).parent.parent / "data/plans_version_3.jsonl").read_text().splitlines()
"""Of lenet5: a pipeline, one with two engines, data-parallel, by filters, hybrid."""

FOUND = [
    ("1f1b-as", (1, 1, 1), 3),
    ("fbp-as", (1, 1), 8),
    ("data-parallel", (2,), 1),
    ("layer-wise", (2,), 1),
    ("hybrid", (2, 1), 6),
]
"""Kind, sizes of the stages, and rounds of each."""

CLOSER_BYTES = {"fbp-as": (28_672, 0), "data-parallel": (0, 8_192)}
"""By kind, how much less memory tensors share now, and sums take that come over a link."""


@pytest.mark.parametrize(("line", "found"), [*zip(LINES, FOUND, strict=True)])
def test_plans_are_read(tmp_path, line, found):
    old = json.loads(line)
    path = tmp_path / "plan.json"
    path.write_text(line)
    plan = Plan.read(path)
    assert (plan.kind, plan.division.sizes, plan.rounds) == found
    assert plan.schedule == (old["schedule"] if len(plan.stages) > 1 else "1f1b-as")
    for node, layers, before in zip(plan.nodes, plan.node_layers, old["stages"], strict=True):
        core, vector = before["core"], node.core.vector
        assert (node.device, list(layers)) == (before["device"], before["layers"])
        assert (node.core.rows, node.core.cols) == (core["rows"], core["cols"])
        assert (vector.lanes, node.spec.clk_hz) == (core["vector_lanes"], core["clk_hz"])
        assert len(node.core.links) == len(core["links"])
        assert node.memory_bytes == before["memory_bytes"]
    for name, each in (old["degrees"] or {}).items():
        assert {axis: getattr(plan.division.degrees[name], axis) for axis in each} == each
    path.write_text(plan.to_json())
    assert Plan.read(path) == plan
    assert not is_version_3(path.read_bytes())
    board = plan.nodes[0].board
    cluster = chain_of(load_board(board), len(plan.nodes)).spec
    programs = lower_plan(plan, loader("lenet5")(plan.microbatch), cluster)
    # The last stage had a page of results for each micro-batch, which are kept no more.
    results = [page(1) * plan.rounds * (node in plan.stages[-1].nodes) for node in plan.nodes]
    closer = CLOSER_BYTES.get(plan.kind, (0,) * len(plan.nodes))
    assert [part.memory_bytes for part in programs.parts] == [
        node.memory_bytes - more - less
        for node, more, less in zip(plan.nodes, results, closer, strict=True)
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"stages": []}, "stages: Tuple should have at least 1 item"),
        ({"batch": 0}, "batch: Input should be greater than or equal to 1"),
        ({"stages": [{"layers": ["a"]}]}, "version: Input should be 4, not 3"),
        ({"stages": 7}, "version: Input should be 4, not 3"),
        ({"version": 2}, "version: Input should be 4, not 2"),
        ({"degrees": {"none": {"sample": 2}}}, "version: Input should be 4, not 3"),
    ],
)
def test_faults_are_told(tmp_path, change, fault):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(LINES[-1]) | change))
    with pytest.raises(FileError) as error:
        Plan.read(path)
    assert any(each.startswith(fault) for each in error.value.faults)
