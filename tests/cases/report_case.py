"""A build with a plausible ``run`` folder, without generating or simulating hardware."""

import functools
import json
import random

import numpy as np
import pytest

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.build.build import write_build
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.network.zoo import built_in
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request

CLK_HZ = 300e6


@functools.cache
def planned(devices, board, train):
    """Plan, network and cluster of digits-cnn on a chain."""
    cluster = chain_of(load_board(board), devices).spec
    load = functools.partial(built_in, "digits-cnn")
    request = Request(
        load, 32, cluster, ("1f1b-as",), 4, array=(8, 8), train=train, all_devices=True
    )
    graph = load(8)
    return (
        as_plan(explore(request).best, graph, "digits-cnn", 32, cluster, train=train),
        graph,
        cluster,
    )


def make_build(folder, *, devices=2, board="u280", train=True, change=lambda *design: design):
    """A build of the plan and network that `change` makes of some; its Verilog is left out."""
    plan, graph, cluster = planned(devices, board, train)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fpgapipe.hw.rtl.core_verilog.device_verilog",
            lambda core: "module top; endmodule",
        )
        return write_build(*change(plan, graph), cluster, folder)


def fill_run(build, *, seed=0):
    """Write measurements and logs as `fpgapipe report --measure` and `fpgapipe run` leave them."""
    run = build.folder / "run"
    run.mkdir(exist_ok=True)
    (run / "measured.json").write_text(json.dumps(measured(build, seed), indent=1))
    for backend, noise in (("model", 0.0), ("sim", 0.0), ("torch", 0.02)):
        folder = run / backend
        folder.mkdir(exist_ok=True)
        epochs = 2 if backend == "sim" else 6
        write_log(folder / "log.jsonl", build.plan.batch, epochs, noise, backend)
        settings = {"data": "digits", "seed": 1, "learning_rate": 0.05, "momentum": 0.9}
        (folder / "settings.json").write_text(json.dumps(settings))
    return build


def measured(build, seed=0):
    """One mini-batch: times of the plan's event simulation, each level a little off."""
    rng = random.Random(seed)
    subject = Subject(build, None, "", ())
    timeline = subject.planned

    def cycles(seconds, factor):
        return round(seconds * factor * CLK_HZ)

    factors = {"event": 1.0, "cycle_model": 1.006, "rtl": 1.011}
    devices = [{"counters": {}, "tasks": [], "layers": []} for _ in build.plan.nodes]
    for lane, task, start, end in timeline.tasks():
        device = timeline.schedule.lanes[lane].device
        times = {name: [cycles(t, f) for t in (start, end)] for name, f in factors.items()}
        devices[device]["tasks"].append(
            {
                "task": str(task),
                "kind": task.kind.token,
                "microbatch": task.microbatch,
                **times,
            }
        )
    total = cycles(timeline.makespan_s, factors["rtl"])
    for device, layers in zip(devices, build.plan.node_layers, strict=True):
        busy = total // 2 + rng.randrange(total // 4)
        device["counters"] = {
            "CYCLES": total,
            "INSTRUCTIONS": 812,
            "LOAD_BUSY": total // 3,
            "LOAD_WAIT_SEMAPHORE": total // 5,
            "LOAD_BYTES": 1_234_560,
            "STORE_BUSY": total // 6,
            "STORE_WAIT_SEMAPHORE": total // 2,
            "STORE_BYTES": 434_176,
            "SCRATCHPAD_WAIT": 2210,
            "GEMM0_BUSY": busy,
            "GEMM0_WAIT_A": busy // 9,
            "GEMM0_WAIT_B": busy // 12,
            "GEMM0_WAIT_RESULT": busy // 20,
            "GEMM0_WAIT_SEMAPHORE": total - busy - total // 10,
            "GEMM0_VECTORS": busy * 7 // 10,
            "VECTOR_BUSY": total // 4,
            "VECTOR_WAIT_SEMAPHORE": total // 2,
            "VECTOR_WAIT_X": total // 30,
            "VECTOR_WAIT_Y": total // 60,
            "VECTOR_WAIT_RESULT": total // 90,
            "VECTOR_VECTORS": total // 9,
            "LINK0_SEND_BUSY": total // 8,
            "LINK0_SEND_WAIT_SEMAPHORE": total // 2,
            "LINK0_SEND_WAIT_LINK": total // 40,
            "LINK0_RECEIVE_BUSY": total // 9,
            "LINK0_RECEIVE_WAIT_SEMAPHORE": 100,
            "LINK0_RECEIVE_WAIT_LINK": total // 20,
            "LINK0_REPLAYS": 0,
            "LINK0_CREDIT_WAIT": 3,
        }
        own = [each for each in subject.units.values() if each[0] in layers]
        for layer in [each[-1] for each in own]:
            for direction in ("F", "dX", "dW"):
                base = rng.randrange(2_000, 90_000)
                device["layers"].append(
                    {
                        "layer": layer,
                        "pass": direction,
                        "closed_form": round(base * 0.95),
                        "cycle_model": base + rng.randrange(-400, 400),
                        "rtl": base,
                    }
                )
    links = []
    for i, node in enumerate(build.plan.nodes[:-1]):
        sizes = (node.sends_bytes, node.returns_bytes)
        for (source, destination), size in zip(((i, i + 1), (i + 1, i)), sizes, strict=True):
            size *= build.plan.num_microbatches
            busy = size // 40
            links.append(
                {
                    "from": source,
                    "to": destination,
                    "bytes": size,
                    "busy_cycles": {
                        "closed_form": busy,
                        "event": busy,
                        "cycle_model": busy + 30,
                        "rtl": busy + 41,
                    },
                    "counters": {},
                }
            )
    levels = {name: cycles(timeline.makespan_s, f) for name, f in factors.items()}
    return {
        "clk_hz": CLK_HZ,
        "minibatch_cycles": {"closed_form": round(levels["event"] * 0.97), **levels},
        "devices": devices,
        "links": links,
    }


def write_log(path, batch, epochs, noise, backend):
    """A log whose loss falls and whose accuracy rises; with noise, another arithmetic's."""
    rng = np.random.default_rng(3)
    other = np.random.default_rng(4)
    lines = []
    for step in range(epochs * 44):
        epoch = step // 44
        loss = 2.3 * np.exp(-step / 45) + 0.06 + 0.12 * rng.random() * np.exp(-step / 90)
        loss += noise * other.standard_normal()
        lines.append(
            {
                "step": step,
                "epoch": epoch,
                "samples": batch,
                "loss": round(float(max(loss, 0.01)), 6),
                "correct": min(batch, round(batch * (1 - 0.9 * float(np.exp(-step / 40))))),
                "cycles": 123_456 if backend == "sim" else None,
                "wall_s": 0.25,
                "backend": backend,
            }
        )
        if step % 44 == 43:
            accuracy = 0.985 - 0.5 * float(np.exp(-epoch * 1.1)) * 0.6 + noise / 10
            value = {"epoch": epoch, "step": step + 1, "accuracy": accuracy, "samples": 360}
            lines.append({"validation": value, "backend": backend})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
