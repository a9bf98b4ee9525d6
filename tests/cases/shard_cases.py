"""Programs of devices that compute one stage together, for tests."""

from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.shards.degrees import sharers_of
from fpgapipe.lowering.shards.stages import Stages
from fpgapipe.partition.schedule.schedule_kinds import make_schedule


def one_stage(graph, degrees, num_devices):
    """All layers on all devices."""
    return Stages((tuple(graph.layers),), (num_devices,), degrees)


def in_parts(graph, cores, degrees, count, options=None):
    """Programs of a step of `count` micro-batches on devices that have parts of all layers."""
    schedule = make_schedule("1f1b-as", 1, count // sharers_of(degrees))
    return build_pipeline(
        graph, cores, one_stage(graph, degrees, len(cores)), schedule, options=options
    )
