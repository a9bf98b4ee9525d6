"""A small network on two devices, and what is needed to train it."""

import numpy as np
from build_cases import plan_of
from test_pipeline import CORE, cut

from fpgapipe.host.backends.base import StepResult, StepRunner
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.build.build import write_build
from fpgapipe.host.data.data import load_data
from fpgapipe.host.runtime.settings import Settings
from fpgapipe.host.runtime.training import Trainer
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

MICROBATCH, COUNT = 4, 2


def small_network(batch: int = MICROBATCH):
    """Two products with normalisation and dropout between them."""
    net = Network("small", batch)
    x = net.max_pool(net.image(1, 8, 8), 2)
    x = net.relu(net.batch_norm(net.conv(x, 8, 4, bias=False)))
    net.linear(net.dropout(net.flatten(x), 0.25), 10)
    return net.build()


def small_pipeline(num_devices=2, kind="1f1b-as", **options):
    graph = small_network()
    schedule = make_schedule(kind, num_devices, COUNT)
    return build_pipeline(graph, [CORE] * num_devices, cut(graph, num_devices), schedule, **options)


def small_model(pipeline=None, seed=0):
    pipeline = pipeline or small_pipeline()
    return ModelBackend(pipeline, initial_parameters(pipeline.graph, seed))


class CountingBackend(StepRunner):
    """A backend whose steps take no time and depend on everything that a step depends on."""

    name = "model"

    def __init__(self):
        self.graph = small_network()
        self.num_microbatches = COUNT
        self.memories = [np.zeros(64, np.uint8)]
        self._weights, self._momenta = self.memories[0].view(np.float32).reshape(2, 8)

    def close(self):
        pass

    def step(self, inputs, labels, scalars, *, progress=None):
        (images,) = inputs.values()
        if progress:
            progress(1)
        rate, momentum = np.array(scalars[:2], np.uint32).view(np.float32)
        gradient = images.reshape(8, 8, -1).mean(axis=(0, 2), dtype=np.float32) * labels
        self._momenta *= momentum
        self._momenta += gradient + np.float32(scalars[15])
        self._weights -= rate * self._momenta
        return StepResult(float(np.abs(self._weights).sum()), int(labels.max()) % 8, None)

    def infer(self, inputs, scalars, *, progress=None):
        raise AssertionError("this backend is there to be trained")

    def parameters(self, suffix=""):
        return {"w": self._momenta if suffix else self._weights}

    def state(self):
        return {"w": self._weights.copy(), "w.momentum": self._momenta.copy()}

    def set_state(self, state):
        if state.keys() != {"w", "w.momentum"}:
            raise ValueError(f"state must have w and its momentum, not {list(state)}")
        self._weights[:], self._momenta[:] = state["w"], state["w.momentum"]


def counting(folder, settings=None, **options):
    """A trainer of such a backend; 12 steps an epoch."""
    samples = load_data("random", small_network()).train.some(slice(100))
    options = {"build": "b", "checkpoint_every": 2, **options}
    return Trainer(CountingBackend(), samples, settings or Settings(steps=15), folder, **options)


def small_build(folder, monkeypatch, *, train=True, schedule="1f1b-as"):
    """A build of it for two devices, its Verilog left out."""
    monkeypatch.setattr(
        "fpgapipe.hw.rtl.core_verilog.device_verilog", lambda core: "module top; endmodule"
    )
    return _built(folder, (8, 8), schedule if train else "gpipe", train)


def verilog_build(folder):
    """A build of it for two small devices with their Verilog, which can be simulated."""
    return _built(folder, (4, 4), "1f1b-as", True)


def _built(folder, array, schedule, train):
    plan, graph, cluster = plan_of(
        load=small_network,
        batch=MICROBATCH * COUNT,
        microbatches=COUNT,
        array=array,
        scratchpad_bytes=1 << 17,
        schedules=(schedule,),
        train=train,
    )
    return write_build(plan, graph, cluster, folder)
