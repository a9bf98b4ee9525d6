"""Four small CNNs in a ring of four devices, against one model a device.

Prints one JSON object. `accuracy` has, for each model, the accuracy after training in the ring, and
after training alone on shuffled samples of the whole digits set, with the same settings; both run
in the bit-exact model. `time` has the cycles of an epoch: visits, hops, and the streams that one
model a device needs for the shards of the other devices, which here pass from device to device as
models do in the ring. They are measured on simulated devices in short rounds (one mini-batch a
visit), in which every byte of every memory must equal the model, and by the cycle model. `bytes`
has what an epoch moves from devices to the next. ``--predict`` leaves the simulated devices out.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.backends.simulated_devices import SimulatedDevices
from fpgapipe.host.build.wires import wire_specs
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.samples import Dataset
from fpgapipe.host.ring.ring_build import RingBuild, make_ring_build
from fpgapipe.host.ring.ring_training import RingResult, RingTrainer
from fpgapipe.host.ring.shards import shard_size
from fpgapipe.host.runtime.settings import Settings
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.ring.hop import BUFFER_BYTES, hop_programs
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.pricing.plan_cores import memory_specs
from fpgapipe.partition.strategies.plan_ring import hop_cycles, plan_ring, ring_cost
from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster

DEVICES, CLASSES = 4, 10


def small_cnn(batch: int, channels: tuple[int, ...], width: int, *, normalised: bool) -> Graph:
    """Convolutions of 3 x 3 on digits of 8 x 8, a pooling, and two linear layers."""
    net = Network(f"cnn-{'-'.join(map(str, channels))}-{width}", batch)
    x = net.image(1, 8, 8)
    for each in channels:
        x = net.conv(x, each, 3, padding=1)
        x = net.relu(net.batch_norm(x) if normalised else x)
    x = net.flatten(net.max_pool(x, 2))
    net.linear(net.relu(net.linear(x, width)), CLASSES)
    return net.build()


LOADS = (
    lambda batch: small_cnn(batch, (8, 16), 32, normalised=False),
    lambda batch: small_cnn(batch, (16,), 64, normalised=False),
    lambda batch: small_cnn(batch, (8, 8, 16), 32, normalised=True),
    lambda batch: small_cnn(batch, (4, 8), 16, normalised=False),
)


def streamed(build: RingBuild, shard_bytes: int, *, simulate: bool) -> dict[str, int | None]:
    """Cycles in which each device passes a shard to the next one."""
    size = page(shard_bytes)
    places = [(Placed(n * size, n * size + shard_bytes // 4 * 4),) for n in range(DEVICES)]
    programs = hop_programs(places, DEVICES * size)
    predicted = hop_cycles(build.plan, build.cluster, programs)
    if not simulate:
        return {"cycle_model": predicted, "rtl": None}
    entry = page(DEVICES * size + BUFFER_BYTES)
    images = []
    rng = np.random.default_rng(0)
    for program in programs:
        code = np.frombuffer(encode(program), np.uint8)
        image = rng.integers(0, 256, page(entry + code.size), np.uint8)
        image[entry : entry + code.size] = code
        images.append(image)
    cluster = CoreCluster(
        build.plan.spread.cores,
        [image.size for image in images],
        memory_specs(build.plan.spread),
        Placement.chain(DEVICES).wires,
        wire_specs(build.plan.spread, build.cluster),
        threads=2,
    )
    devices = SimulatedDevices(cluster)
    try:
        devices.load(images)
        devices.links_up()
        cycles = devices.run([entry] * DEVICES, [scalar_bits()] * DEVICES)
        for number, (place,) in enumerate(places):
            after = devices.drivers[(number + 1) % DEVICES].memory
            assert after is not None
            sent = images[number][place.begin : place.end]
            assert np.array_equal(after[place.begin : place.end], sent), "a shard is damaged"
    finally:
        devices.close()
    return {"cycle_model": predicted, "rtl": cycles}


def trained(build: RingBuild, data: Dataset, epochs: int, **options: Any) -> RingResult:
    """Outcome of all models, trained with the same settings."""
    settings = [Settings(epochs=epochs)] * len(build.graphs)
    with tempfile.TemporaryDirectory() as folder:
        trainer = RingTrainer(build, data, settings, Path(folder), **options)
        return trainer.run(shuffled=options.get("backend") != "sim")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()
    cluster = chain_of(load_board("u280"), DEVICES).spec
    models = [(load(1).name, load) for load in LOADS]
    plan = plan_ring(models, given.batch, cluster, array=(8, 8))
    data = load_data("digits", LOADS[0](given.batch))
    build = make_ring_build(plan, LOADS, cluster)
    result = trained(build, data, given.epochs)
    shard = shard_size(len(data.train.labels), DEVICES, given.batch)
    cost = ring_cost(plan, models, cluster, given.epochs, shard)
    clk_hz = plan.clk_hz
    step = {"cycle_model": round(max(each.step_s for each in cost.models) * clk_hz), "rtl": None}
    hops = [build.predicted_hop(0, done) for done in range(DEVICES)]  # models differ in size
    hop = {"cycle_model": sum(hops) // DEVICES, "rtl": None}
    stream = streamed(build, cost.shard_bytes, simulate=not given.predict)
    if not given.predict:
        few = Dataset(data.train.some(slice(DEVICES * given.batch)), data.validation)
        found = trained(build, few, 1, backend="sim", checks=True, threads=2)
        assert not found.difference, found.difference
        step["rtl"], hop["rtl"] = found.visit_cycles // DEVICES, found.hop_cycles // DEVICES
    by = "cycle_model" if given.predict else "rtl"
    visits = DEVICES * cost.visit_steps * step[by]
    sent = sum(sum(place.size_bytes for place in places) for places in build.groups[0].lasting)
    times = {
        "ring": visits + DEVICES * hop[by],
        "one_model_a_device_waiting": visits + (DEVICES - 1) * stream[by],
        "one_model_a_device_streaming": DEVICES * max(cost.visit_steps * step[by], stream[by]),
    }
    print(
        json.dumps(
            {
                "devices": DEVICES,
                "epochs": given.epochs,
                "batch": given.batch,
                "shard_samples": shard,
                "visit_steps": cost.visit_steps,
                "step_cycles": step,
                "hop_cycles": hop,
                "stream_cycles": stream,
                "time": {"cycles_per_epoch": times, "measured_by": by},
                "bytes": {
                    "ring": DEVICES * sent,
                    "one_model_a_device": DEVICES * (DEVICES - 1) * cost.shard_bytes,
                    "pays_from_shard_samples": cost.pays_from_samples,
                },
                "accuracy": [
                    {
                        "network": each.network,
                        "ring": each.accuracy,
                        "one_model_a_device": each.shuffled_accuracy,
                    }
                    for each in result.models
                ],
                "mean_accuracy": {
                    "ring": float(np.mean([each.accuracy for each in result.models])),
                    "one_model_a_device": float(
                        np.mean([each.shuffled_accuracy for each in result.models])
                    ),
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
