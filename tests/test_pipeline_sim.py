"""Steps over several simulated devices: every byte that matters is that of one device's model."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from step_cases import every_operator
from test_pipeline import CORE, COUNT, SAMPLES, SCALARS, batch_of, cut, left_behind, on_one

from fpgapipe.host.core_bench import build_device
from fpgapipe.host.pipeline import build_pipeline
from fpgapipe.host.step_bench import initial_parameters
from fpgapipe.host.step_program import StepOptions
from fpgapipe.hw.hls_models.registers import RegisterMap
from fpgapipe.partition.schedule_kinds import make_schedule
from fpgapipe.sim_tb.cluster import Cluster, Node, cable
from fpgapipe.sim_tb.native import NativeDevice
from fpgapipe.sim_tb.phy import WireSpec

pytestmark = [pytest.mark.sim, pytest.mark.slow]  # a core with vector engine and two links

GOOD = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
BAD = replace(GOOD, bytes_per_cycle=Fraction(7, 3), bit_error_rate=1e-5, drop_rate=0.02)


@pytest.mark.parametrize(
    ("num_devices", "kind", "wire"),
    [
        (2, "1f1b-as", GOOD),
        (2, "gpipe", BAD),
        (3, "zb-h1", GOOD),
        (3, "1f1b-as", BAD),
        (4, "gpipe", GOOD),
        (4, "zb-h1", BAD),
    ],
    ids=str,
)
def test_same_bits_as_on_one_device(num_devices, kind, wire):
    graph = every_operator(SAMPLES)
    registers = RegisterMap(CORE)
    schedule = make_schedule(kind, num_devices, COUNT)
    pipeline = build_pipeline(graph, [CORE] * num_devices, cut(graph, num_devices), schedule)
    images = pipeline.images(initial_parameters(graph, 0))
    pipeline.set_batch(images, *batch_of(graph))
    library, _, _ = build_device(CORE)
    nodes = [
        Node(f"d{number}", NativeDevice(library, memory_bytes=image.size), registers)
        for number, image in enumerate(images)
    ]
    cables = [
        each
        for number in range(num_devices - 1)
        for each in cable(
            (number, int(number > 0)), (number + 1, 0), replace(wire, seed=10 * number)
        )
    ]
    with Cluster(nodes, cables, threads=2) as cluster:
        for number, (node, image) in enumerate(zip(nodes, images, strict=True)):
            node.device.memory[:] = image
            settings = {
                **{f"SCALAR{each}": bits for each, bits in enumerate(SCALARS)},
                **{f"LINK{link}_SEED": 100 * number + link for link in range(2)},
                **{f"LINK{link}_ENABLE": 1 for link in range(2)},
                "PROGRAM_LO": pipeline.parts[number].entry,
                "MEMORY_LIMIT_LO": image.size,
                "IRQ_ENABLE": registers["IRQ_ENABLE"].writable,
            }
            for name, value in settings.items():
                cluster.write_register(number, registers.offset(name), value)
        for number in range(num_devices):
            cluster.write_register(number, registers.offset("CONTROL"), 1)
        cluster.run(3_000_000)
        statuses = [
            cluster.read_register(number, registers.offset("STATUS"))
            for number in range(num_devices)
        ]
    done = registers["STATUS"].field("done").mask
    assert all(status & done for status in statuses)
    memories = [node.device.memory for node in nodes]
    found = left_behind(pipeline, memories, StepOptions())
    for name, value in on_one(graph).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
