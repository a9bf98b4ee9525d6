"""Random networks on several devices, and in simulated hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import semaphores_of_core
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.shards.degrees import Degrees, sharers_of
from fpgapipe.lowering.shards.stages import Stages
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.partition.schedule.schedule_kinds import make_schedule, num_engines_of
from fpgapipe.sim_tb.native.phy import WireSpec

from .checks import SMALL, Subject, Wrong, held, left_behind, on_one, reference, scalars

SCHEDULES = ("gpipe", "1f1b", "1f1b-as", "fbp-as", "1f1b-sno", "1f1b-so", "zb-h1", "zb-h2")
"""Schedules whose weights are those of one device, bit for bit."""

WIRE = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
CYCLES = 0.02
"""Largest difference between simulated cycles and those of the cycle model, as a share."""

Left = dict[str, NDArray[Any]]


def stages_of(subject: Subject, num_stages: int) -> list[list[str]]:
    """Layers of stages that end at random between layers that may be cut."""
    groups = [list(names) for names in layers_together(subject.imported)]
    num_stages = min(num_stages, len(groups))
    ends = sorted(subject.draw.sample(range(1, len(groups)), num_stages - 1))
    bounds = zip([0, *ends], [*ends, len(groups)], strict=True)
    return [[name for names in groups[begin:end] for name in names] for begin, end in bounds]


def run(subject: Subject, pipeline: PipelineProgram, count: int) -> Left:
    """State after a step in the model."""
    with ModelBackend(pipeline, subject.weights) as backend:
        result = backend.step(*subject.batch(count), scalars())
        return left_behind(backend, result) | backend.state()


def shares_weights(subject: Subject) -> bool:
    """Whether layers share a weight, whose gradients devices add up in an order of their own."""
    names = [each.name for layer in subject.imported.layers.values() for each in layer.parameters]
    return len(names) > len(set(names))


def equal(what: str, found: Left, expected: Left, without: str = "\n") -> None:
    """Compare bit for bit all values but those with a word in their names."""
    if found.keys() != expected.keys():
        raise Wrong(f"{what}: not the same tensors, {sorted(found.keys() ^ expected.keys())}")
    for name, value in expected.items():
        if without not in name and not np.array_equal(found[name], value, equal_nan=True):
            gap = np.abs(found[name].astype(np.float64) - value).max()
            raise Wrong(f"{what}: {name} differs by up to {gap:.3g}")


def check_cuts(subject: Subject) -> None:
    """Programs of several devices leave the weights of one device.

    A pipeline's weights have the same bits, and so have those of devices that share samples, with
    one micro-batch each; replicas of a pipeline have those of whole devices. Where layers
    themselves are cut, and where layers share a weight, the order of sums is another one.
    """
    refusals = []
    for check in (check_pipeline, check_data, check_replicas, check_shards, check_hybrid):
        try:
            check(subject)
        except (UserError, NotImplementedError) as error:
            refusals.append(f"{check.__name__.removeprefix('check_')}: {error}")
    if refusals:
        raise UserError(refusals[0])


def plain(subject: Subject) -> StepOptions:
    """Options of a step without clipping, since devices add up norms in their own order."""
    return replace(subject.options(), clip_norm=None)


def check_pipeline(subject: Subject) -> None:
    """Random stages under a random schedule."""
    draw = subject.draw
    count, kind = draw.randint(1, 4), draw.choice(SCHEDULES)
    layers = stages_of(subject, draw.randint(2, 4))
    if num_engines_of(kind) > 1:
        subject = replace(subject)
        subject.core = replace(subject.core, num_engines=2)  # which tiles in its own way
    core, options = subject.core, plain(subject)
    schedule = make_schedule(kind, len(layers), count)
    pipeline = build_pipeline(
        subject.imported, [core] * len(layers), layers, schedule, options=options
    )
    what = f"{len(layers)} stages under {kind}, {count} micro-batches"
    used = {n for p in pipeline.parts for i in p.instructions for n in (*i.wait, *i.signal)}
    if used and max(used) >= semaphores_of_core(len(core.links), core.num_engines):
        raise Wrong(f"{what}: too many semaphores")
    if shares_weights(subject):
        close(subject, what, pipeline, count)
    else:
        equal(
            what,
            run(subject, pipeline, count),
            run(subject, on_one(subject, options, count), count),
        )


def in_one_stage(
    subject: Subject, cores: Sequence[CoreSpec], degrees: Mapping[str, Degrees], count: int
) -> PipelineProgram:
    """Programs of a step of `count` micro-batches on devices that have parts of all layers."""
    graph, sharers = subject.imported, sharers_of(degrees)
    if count % sharers:
        raise UserError(f"{count} micro-batches cannot be shared equally by {sharers} devices")
    stages = Stages.of([list(graph.layers)], [len(cores)], degrees)
    schedule = make_schedule("1f1b-as", 1, count // sharers)
    return build_pipeline(graph, cores, stages, schedule, options=plain(subject))


def check_data(subject: Subject) -> None:
    """Devices that share the samples, with a micro-batch each."""
    num_devices = subject.draw.randint(2, 3)
    options = plain(subject)
    degrees = dict.fromkeys(subject.imported.layers, Degrees(sample=num_devices))
    cores = [subject.core] * num_devices
    pipeline = in_one_stage(subject, cores, degrees, num_devices)
    what = f"samples shared by {num_devices} devices"
    if shares_weights(subject):
        close(subject, what, pipeline, num_devices, ".running_")
    else:
        alone = run(subject, on_one(subject, options, num_devices), num_devices)
        equal(what, run(subject, pipeline, num_devices), alone, ".running_")


def check_replicas(subject: Subject) -> None:
    """Replicas of random stages, and devices that share the samples in the same way."""
    draw = subject.draw
    replicas, rounds = draw.randint(2, 3), draw.randint(1, 2)
    kind = draw.choice(["gpipe", "1f1b-as", "1f1b-sno", "zb-h1"])
    layers = stages_of(subject, draw.randint(2, 3))
    count, num_devices = replicas * rounds, replicas * len(layers)
    pipeline = build_pipeline(
        subject.imported,
        [subject.core] * num_devices,
        replace(Stages.of(layers), replicas=replicas),
        make_schedule(kind, len(layers), rounds),
        options=plain(subject),
    )
    what = f"{replicas} replicas of {len(layers)} stages under {kind}, {count} micro-batches"
    if shares_weights(subject):
        close(subject, what, pipeline, count, ".running_")
    else:
        degrees = dict.fromkeys(subject.imported.layers, Degrees(sample=replicas))
        whole = in_one_stage(subject, [subject.core] * replicas, degrees, count)
        equal(what, run(subject, pipeline, count), run(subject, whole, count))


KINDS: dict[str, Callable[[int], Degrees]] = {
    "c": lambda size: Degrees(channel=size),
    "i": lambda size: Degrees(input=size),
    "r": lambda size: Degrees(height=size),
    "s": lambda size: Degrees(size),
}


def drawn_degrees(
    subject: Subject, sizes: dict[str, int], build: Callable[[dict[str, Degrees]], PipelineProgram]
) -> tuple[str, PipelineProgram]:
    """Cut some layers at random, as far as that can be built."""
    groups = [list(names) for names in layers_together(subject.imported)]
    letters = ["w"] * len(groups)
    degrees = {name: Degrees() for names in groups for name in names}
    best = build(degrees)
    places = [number for number, names in enumerate(groups) if sizes[names[0]] > 1]
    subject.draw.shuffle(places)
    for place in places[:5]:
        letter = subject.draw.choice("ccirs")
        names = groups[place]
        tried = degrees | dict.fromkeys(names, KINDS[letter](sizes[names[0]]))
        try:
            best = build(tried)
        except (UserError, NotImplementedError):
            continue
        degrees, letters[place] = tried, letter
    return "".join(letters), best


def close(
    subject: Subject, what: str, pipeline: PipelineProgram, count: int, without: str = "\n"
) -> None:
    """Compare a step with that of one device, but for the order of sums."""
    options = plain(subject)
    alone = on_one(subject, options, count)
    expected = run(subject, alone, count)
    with ModelBackend(alone, subject.weights) as backend:
        before = backend.state()
    again = partial(reference, subject, before, subject.batch(count), 0, options, count)
    names = {name for name in again().keys() & expected.keys() if without not in name}
    held(what, run(subject, pipeline, count), {name: expected[name] for name in names}, again)


def check_shards(subject: Subject) -> None:
    """Layers cut by channels, input channels, rows or samples, on all devices."""
    draw = subject.draw
    size, count = draw.randint(2, 3), draw.randint(1, 2)
    cores = [subject.core] * size
    letters, pipeline = drawn_degrees(
        subject,
        dict.fromkeys(subject.imported.layers, size),
        lambda degrees: in_one_stage(subject, cores, degrees, count),
    )
    close(subject, f"layers cut by {size} as {letters}:", pipeline, count)


def check_hybrid(subject: Subject) -> None:
    """Stages of which some are groups of devices."""
    draw = subject.draw
    count, kind = draw.randint(1, 3), draw.choice(["gpipe", "1f1b-as", "1f1b-sno", "zb-h1"])
    layers = stages_of(subject, 2)
    sizes = [draw.randint(1, 2) for _ in layers]
    options = plain(subject)
    schedule = make_schedule(kind, len(layers), count)
    cores = [subject.core] * sum(sizes)
    letters, pipeline = drawn_degrees(
        subject,
        {name: size for names, size in zip(layers, sizes, strict=True) for name in names},
        lambda degrees: build_pipeline(
            subject.imported, cores, Stages.of(layers, sizes, degrees), schedule, options=options
        ),
    )
    close(subject, f"stages of {sizes} devices as {letters} under {kind}:", pipeline, count)


def check_hardware(subject: Subject) -> None:
    """A step in simulated hardware has the bits of the model, and the cycles of the cycle model."""
    small = replace(subject)
    small.core = SMALL
    options = small.options()
    draw = small.draw
    count = draw.randint(1, 2)
    layers = stages_of(small, draw.choice([1, 1, 2]))
    schedule = make_schedule("1f1b-as", len(layers), count)
    cores = [small.core] * len(layers)
    pipeline = build_pipeline(small.imported, cores, layers, schedule, options=options)
    samples = small.batch(count)
    wires = [WIRE] * (len(layers) - 1)
    with (
        ModelBackend(pipeline, small.weights) as model,
        SimulatorBackend(pipeline, small.weights, MemorySpec(), wires) as hardware,
    ):
        for step in range(2):
            expected = model.step(*samples, scalars(step))
            found = hardware.step(*samples, scalars(step))
            if (found.loss, found.correct) != (expected.loss, expected.correct):
                raise Wrong(f"loss {found.loss:.6g} in hardware for {expected.loss:.6g}")
            pairs = zip(hardware.memories, model.memories, strict=True)
            differ = sum(int(np.count_nonzero(one != other)) for one, other in pairs)
            if differ:
                raise Wrong(f"{differ:,} bytes differ between hardware and model")
    programs = [part.instructions for part in pipeline.parts]
    planned = predict_cluster(programs, cores, pipeline.wiring).cycles
    assert found.cycles is not None, "the simulator counts cycles"
    if abs(found.cycles - planned) > CYCLES * planned:
        raise Wrong(f"{found.cycles:,} cycles, the cycle model says {planned:,.0f}")
