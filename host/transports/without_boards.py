"""The devices of a build without boards: simulated ones, or models."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fpgapipe.host.build.build import Build
    from fpgapipe.host.driver.transport import Transport

SIMULATED = ("sim", "model")
"""Backends without boards, and what agents say of devices that they simulate."""


def without_boards(build: Build, backend: str) -> list[Transport]:
    """Simulated devices, or models, with the memory that the checks need."""
    from fpgapipe.host.driver.allocation import PAGE_BYTES
    from fpgapipe.host.driver.bringup import TRIED_BYTES

    cores, wiring = build.cores, build.pipeline.wiring
    sizes = [
        -(-max(part.memory_bytes, TRIED_BYTES) // PAGE_BYTES) * PAGE_BYTES
        for part in build.pipeline.parts
    ]
    if backend == "model":
        from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport

        models = ModelledCluster(cores, sizes, wiring)
        return [ModelledTransport(models, number) for number in range(len(cores))]
    from fpgapipe.host.transports.simulated import simulated_transports
    from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster

    cluster = CoreCluster(cores, sizes, build.memories, wiring, build.wires)
    return [*simulated_transports(cluster)]
