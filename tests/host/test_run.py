"""The training loop: what it logs, what Ctrl-C does, and the check that names a difference."""

import json
import logging
import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from run_cases import COUNT, MICROBATCH, counting, small_model, small_network, small_pipeline
from step_cases import SMALL_CORE
from test_backends import GOOD
from test_pipeline import CORE

from fpgapipe.errors import UserError
from fpgapipe.host.backends.base import StepResult
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.samples import Samples
from fpgapipe.host.runtime.check import ExactCheck, first_difference, task_ranks
from fpgapipe.host.runtime.evaluation import Inference
from fpgapipe.host.runtime.numeric_check import NumericCheck
from fpgapipe.host.runtime.run_log import read_log
from fpgapipe.host.runtime.settings import Settings
from fpgapipe.host.runtime.training import Trainer, Watcher
from fpgapipe.host.terminal.interrupts import terminations
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.schedule.schedule_kinds import make_schedule


@pytest.fixture(scope="module")
def data():
    return load_data("random", small_network())


@pytest.fixture(scope="module")
def pipeline():
    return small_pipeline()


def batch_of(data, step=0):
    part = data.train.some(slice(step * 8, step * 8 + 8))
    return {"input": part.images}, part.labels, scalar_bits(step=step)


# ---------------------------------------------------------------------- the loop


def test_what_a_run_leaves_behind(data, pipeline, tmp_path):
    told = []

    class Told(Watcher):
        def step(self, line, done, total):
            told.append((done, total, line))

        def validation(self, line):
            told.append(line)

    samples = data.train.some(slice(16))  # an epoch of two steps
    inference = Inference(small_network(20), CORE, data.validation.some(slice(50)))
    backend = small_model(pipeline)
    settings = Settings(steps=3, learning_rate=0.01, data="random")
    trainer = Trainer(
        backend, samples, settings, tmp_path / "model", evaluate=inference, watcher=Told()
    )
    result = trainer.run()
    log = read_log(tmp_path / "model/log.jsonl")
    steps = [line for line in log if "step" in line]
    validations = [line["validation"] for line in log if "validation" in line]
    assert [list(line) for line in steps] == [
        ["step", "epoch", "samples", "loss", "correct", "labels", "cycles", "wall_s", "backend"]
    ] * 3
    assert [(line["step"], line["epoch"], line["samples"]) for line in steps] == [
        (0, 0, 8), (1, 0, 8), (2, 1, 8),
    ]  # fmt: skip
    assert [(each["epoch"], each["step"], each["samples"]) for each in validations] == [
        (0, 2, 50), (1, 3, 50),
    ]  # fmt: skip
    assert [told[0][2], told[1][2], told[2], told[3][2], told[4]] == log
    assert [each[:2] for each in (told[0], told[1], told[3])] == [(1, 3), (2, 3), (3, 3)]
    assert (result.steps, result.ran, result.last) == (3, 3, steps[-1])
    # The same again, step by step, as the backend alone does it.
    alone = small_model(pipeline)
    batches = [*samples.batches(8, 0, 0), next(samples.batches(8, 0, 1))]
    for step, batch in enumerate(batches):
        scalars = scalar_bits(learning_rate=0.01, weight_decay=1e-4, step=step)
        found = alone.step({"input": batch.images}, batch.labels, scalars)
        assert found == StepResult(steps[step]["loss"], steps[step]["correct"], None)
    for name, value in alone.state().items():
        np.testing.assert_array_equal(backend.state()[name], value, err_msg=name)
    right, count = inference(backend.state())
    assert (
        right / count == validations[-1]["accuracy"] == result.validation["validation"]["accuracy"]
    )


def test_inference_counts_every_sample_once(data):
    """Whatever the batch, also where the last one is not full; PyTorch finds the same."""
    import torch

    from fpgapipe.host.backends.torch_backend import TorchBackend

    del torch
    parameters = initial_parameters(small_network(), 0)
    samples = data.validation.some(slice(25))
    found = {Inference(small_network(n), CORE, samples)(parameters) for n in (10, 25)}
    reference = TorchBackend(small_network(5), parameters, precision="mxint8", device="cpu")
    right = reference.evaluate({"input": samples.images}, samples.labels).correct
    assert found == {(right, 25)}
    assert right < 25


def test_samples_of_validation_are_checked():
    samples = Samples(np.zeros((9, 1, 8, 8), np.float32), np.arange(2, 11))
    with pytest.raises(UserError, match=r"^labels must be 0\.\.9, the classes of small, not 10$"):
        Inference(small_network(20), CORE, samples)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ((9, 1, 8, 9), range(9), "^small takes samples of 1x8x8, not 1x8x9$"),
        ((9, 1, 8, 8), range(8), r"^9 samples need labels of shape \(9,\), not \(8,\)$"),
        ((9, 1, 8, 8), range(2, 11), r"^labels must be 0\.\.9, the classes of small, not 10$"),
        ((9, 1, 8, 8), range(-1, 8), r"^labels must be 0\.\.9, the classes of small, not -1$"),
        ((7, 1, 8, 8), range(7), "^a mini-batch has 8 samples; 7 fill none$"),
    ],
    ids=range(5),
)
def test_samples_are_checked(images, labels, message, tmp_path):
    samples = Samples(np.zeros(images, np.float32), np.array(labels, np.int64))
    backend = counting(tmp_path)._backend
    with pytest.raises(UserError, match=message):
        Trainer(backend, samples, Settings(steps=1), tmp_path)


# ---------------------------------------------------------------------- Ctrl-C


class PressesKey(Watcher):
    """Presses Ctrl-C in the middle of a step, or behind it, where it has to wait."""

    def __init__(self, step, *, inside):
        self.at, self.inside, self.has_pressed = step, inside, False

    def press(self):
        self.has_pressed = True
        os.kill(os.getpid(), signal.SIGINT)

    def cycles(self, step, cycles, shares=()):
        if self.inside and step == self.at:
            self.press()

    def step(self, line, done, total):
        if not self.inside and line["step"] == self.at:
            self.press()


@pytest.mark.parametrize("inside", [True, False])
def test_a_run_that_is_to_end_says_where_it_is(inside, tmp_path, interruptible, caplog):
    """Before it has saved anything, in a line on the terminal and one in the log."""
    caplog.set_level(logging.INFO)
    watcher = PressesKey(5, inside=inside)
    with pytest.raises(KeyboardInterrupt), terminations():
        counting(tmp_path, watcher=watcher).run()
    where = f"step {5 if inside else 6} of 15"
    first, *_, kept = [each for each in caplog.messages if " in step " in each or "is kept" in each]
    assert first.startswith(f"SIGINT: asked to end in {where}")
    assert kept.endswith("is kept; --resume goes on from there")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    told = next(line["progress"] for line in lines if "ending" in line.get("progress", ()))
    assert (told["step"], told["ending"]) == (5 if inside else 6, "SIGINT")


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("step", [0, 5, 14])
def test_ctrl_c_loses_no_step(step, inside, tmp_path, interruptible, monkeypatch):
    whole = counting(tmp_path / "whole")
    whole.run()
    really = os.fsync

    def impatient(file):
        """Pressed again while the checkpoint is being written."""
        if watcher.has_pressed:
            watcher.press()
        really(file)

    monkeypatch.setattr(os, "fsync", impatient)
    watcher = PressesKey(step, inside=inside)
    trainer = counting(tmp_path / "run", watcher=watcher)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    done = step if inside else step + 1
    assert len(read_log(tmp_path / "run/log.jsonl")) == done
    resumed = counting(tmp_path / "run")
    resumed.resume()
    assert resumed.step == done
    resumed.run()
    for name, value in whole._backend.state().items():
        np.testing.assert_array_equal(resumed._backend.state()[name], value)


class TakesLong(Watcher):
    """Lets the time be over in the middle of a step, or behind it."""

    def __init__(self, step, *, inside):
        self.at, self.inside, self.trainer = step, inside, None

    def cycles(self, step, cycles, shares=()):
        if self.inside and step == self.at:
            self.trainer._ends_s = 0.0

    def step(self, line, done, total):
        if not self.inside and line["step"] == self.at:
            self.trainer._ends_s = 0.0


@pytest.mark.parametrize(("step", "inside", "done"), [(3, True, 3), (3, False, 4), (14, False, 15)])
def test_the_end_of_the_time_loses_no_step(step, inside, done, tmp_path):
    whole = counting(tmp_path / "whole")
    whole.run()
    watcher = TakesLong(step, inside=inside)
    trainer = watcher.trainer = counting(tmp_path / "run", watcher=watcher, ends_s=math.inf)
    result = trainer.run()
    assert (result.steps, result.stopped) == (done, done < 15)
    assert next(iter(trainer._checkpoints)).name == f"step-{done:08d}.ckpt"
    resumed = counting(tmp_path / "run")
    resumed.resume()
    assert not resumed.run().stopped
    for name, value in whole._backend.state().items():
        np.testing.assert_array_equal(resumed._backend.state()[name], value)


def test_ctrl_c_in_a_validation_makes_up_for_it(tmp_path, interruptible):
    def evaluate(state):
        if presses:
            presses.pop()
            os.kill(os.getpid(), signal.SIGINT)
        return 3, 4

    presses = [True]
    with pytest.raises(KeyboardInterrupt):
        counting(tmp_path / "run", evaluate=evaluate).run()
    resumed = counting(tmp_path / "run", evaluate=evaluate)
    resumed.resume()
    assert resumed.step == 12
    resumed.run()
    validations = [
        line["validation"] for line in read_log(tmp_path / "run/log.jsonl") if "validation" in line
    ]
    assert [(each["step"], each["accuracy"]) for each in validations] == [(12, 0.75), (15, 0.75)]


def test_a_failing_step_leaves_a_checkpoint(tmp_path):
    trainer = counting(tmp_path / "run")
    trainer._backend.infer = None
    good = trainer._backend.step

    def bad(inputs, labels, scalars, **options):
        good(inputs, labels, scalars, **options)  # half a step is in the memory
        if scalars[15] == 5:
            raise RuntimeError("a wire broke")

        return StepResult(1.0, 0, None)

    trainer._backend.step = bad
    with pytest.raises(RuntimeError, match="a wire broke"):
        trainer.run()
    resumed, whole = counting(tmp_path / "run"), counting(tmp_path / "whole")
    resumed.resume()
    assert resumed.step == 5
    resumed.run()
    whole.run()
    for name, value in whole._backend.state().items():
        np.testing.assert_array_equal(resumed._backend.state()[name], value)


# ---------------------------------------------------------------------- the check


class Flips(ModelBackend):
    """Flips a bit of a tensor's element behind a step."""

    def flip(self, step, device, tensor, element, bit=0):
        self._flip = step, device, tensor, element, bit
        return self

    def step(self, inputs, labels, scalars, *, progress=None):
        result = super().step(inputs, labels, scalars)
        step, device, tensor, element, bit = self._flip
        if scalars[15] == step:
            part = self.pipeline.parts[device]
            known = part.tensors.get(tensor)
            size = known.element_bytes if known else 4
            at = part.places[tensor].begin + size * element + bit // 8
            self.memories[device][at] ^= 1 << bit % 8
        return result


@pytest.mark.parametrize(
    ("device", "tensor", "element", "layer", "index"),
    [
        # A weight of 8 x 1 x 4 x 4 lies as (8, 4, 4, 1): element 37 is [2, 0, 1, 1].
        (0, "conv1.weight", 37, "conv1", (2, 0, 1, 1)),
        (0, "conv1.weight.gradient", 127, "conv1", (7, 0, 3, 3)),
        (0, "batch_norm1.running_var", 3, "batch_norm1", (3,)),
        (1, "linear1.weight.momentum", 79, "linear1", (9, 7)),
        (0, "max_pool1#1", 5, "max_pool1", (0, 1, 1, 0)),
        (1, "loss@1", 0, "loss", (0,)),
    ],
)
def test_a_flipped_bit_is_named(device, tensor, element, layer, index, data, pipeline, tmp_path):
    graph = pipeline.graph
    parameters = initial_parameters(graph, 0)
    second = Flips(pipeline, parameters).flip(1, device, tensor, element)
    trainer = Trainer(
        ModelBackend(pipeline, parameters),
        data.train,
        Settings(steps=4),
        tmp_path / "run",
        check=ExactCheck(second),
    )
    result = trainer.run()
    found = result.difference
    assert (found.step, found.device, found.layer, found.tensor) == (1, device, layer, tensor)
    assert (found.index, found.count, found.backends) == (index, 1, ("model", "model"))
    one, other = (int(value.split("0x")[1][:-1], 16) for value in found.values)
    assert one ^ other == 1
    assert str(found).startswith(f"step 1, device {device}, layer {layer}, tensor {tensor}[")
    # Nothing of the bad step counts: log and checkpoint end before it.
    assert (result.steps, len(read_log(tmp_path / "run/log.jsonl"))) == (1, 1)
    assert (tmp_path / "run/checkpoints/step-00000001.ckpt").exists()


@pytest.mark.parametrize(("apart", "layer"), [(True, "linear1"), (False, "loss")])
def test_what_comes_of_a_difference_is_not_blamed(data, apart, layer):
    """A wrong result of the second device's first layer: all gradients differ, also before it.

    Where the result makes room for others, what is computed from it next is named.
    """
    pipeline = small_pipeline(options=StepOptions(apart=apart))
    part = pipeline.parts[1]
    one, other = small_model(pipeline), small_model(pipeline)
    for backend in (one, other):
        backend.step(*batch_of(data))
    assert first_difference(0, pipeline, (one.memories, other.memories), ("a", "b")) is None
    # Another weight in the second's memory, as a bad cell would give.
    place = part.places["linear1.weight"]
    other.memories[1][place.begin + 3] ^= 0x40
    for backend in (one, other):
        backend.step(*batch_of(data, 1))
    found = first_difference(1, pipeline, (one.memories, other.memories), ("a", "b"))
    assert (found.device, found.layer) == (1, layer)
    if apart:
        assert found.tensor == "linear1@0"
        assert found.count > 100
    assert not np.array_equal(one.memories[0], other.memories[0])


def test_a_difference_in_a_program_is_named(pipeline):
    part = pipeline.parts[0]
    one, other = ([memory.copy() for memory in small_model(pipeline).memories] for _ in range(2))
    from fpgapipe.hw.hls_models.isa.program import encode

    number = len(part.instructions) // 2
    other[0][part.entry + len(encode(part.instructions[:number])) + 1] ^= 8
    found = first_difference(0, pipeline, (one, other), ("sim", "model"))
    layer = part.kernels[part.kernel_of[number]].layer
    assert (found.tensor, found.index, found.layer) == ("program", (number,), layer)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-as", "zb-h1"])
def test_ranks_follow_what_tasks_depend_on(kind):
    lanes = [part.tasks for part in small_pipeline(2, kind).parts]
    ranks = {
        task: rank
        for lane, of_lane in zip(lanes, task_ranks(lanes), strict=True)
        for task, rank in zip(lane, of_lane, strict=True)
    }
    text = {str(task): rank for task, rank in ranks.items()}
    assert make_schedule(kind, 2, COUNT).num_stages == 2
    for index in range(COUNT):
        back = "dX" if kind == "zb-h1" else "B"
        assert text[f"F{index}@0"] < text[f"F{index}@1"] < text[f"{back}{index}@1"]
        assert text[f"{back}{index}@1"] < text[f"{back}{index}@0"] < text["U@0"]


def test_pytorch_with_the_cores_numbers_is_near(data, pipeline, tmp_path):
    from fpgapipe.host.backends.torch_backend import TorchBackend

    graph = pipeline.graph
    parameters = initial_parameters(graph, 0)

    def second():
        return TorchBackend(
            graph, parameters, num_microbatches=COUNT, precision="mxint8", device="cpu"
        )

    check = NumericCheck(second())
    trainer = Trainer(
        ModelBackend(pipeline, parameters),
        data.train,
        Settings(steps=3),
        tmp_path / "run",
        check=check,
    )
    assert trainer.run().difference is None
    assert set(check.worst) == {"loss"} | {
        f"{name}.gradient" for name, value in trainer._backend.parameters(".gradient").items()
    }
    assert max(check.worst.values()) < 0.1
    # A gradient that is off by more than rounding is not: here one element of one.
    good = trainer._backend.parameters

    def bad(suffix=""):
        found = good(suffix)
        found["conv1.weight"] = found["conv1.weight"].copy()
        found["conv1.weight"][2, 0, 1, 3] += 0.05 * np.linalg.norm(found["conv1.weight"])
        return found

    backend = trainer._backend
    state = backend.state()
    result = backend.step(*batch_of(data))
    backend.parameters = bad
    found = NumericCheck(second()).after(0, backend, result, state, *batch_of(data))
    assert (found.device, found.layer, found.tensor) == (0, "conv1", "conv1.weight.gradient")
    assert found.index == (2, 0, 1, 3)
    backend.parameters = good
    wrong = replace(result, loss=result.loss + 0.01)
    found = NumericCheck(second()).after(0, backend, wrong, state, *batch_of(data))
    assert (found.device, found.tensor) == (1, "loss")


def test_a_bias_before_a_normalisation_is_no_difference():
    """Its gradient is zero but for the order of a sum; a wrong one is found all the same."""
    from fpgapipe.host.backends.torch_backend import TorchBackend

    net = Network("biased", 4)
    x = net.relu(net.batch_norm(net.conv(net.image(3, 8, 8), 8, 3, padding=1)))
    net.linear(net.flatten(net.global_average_pool(x)), 5)
    graph = net.build()
    options = StepOptions(activations=FP32)
    schedule = make_schedule("1f1b", 1, 1)
    pipeline = build_pipeline(graph, [SMALL_CORE], [list(graph.layers)], schedule, options=options)
    parameters = initial_parameters(graph, 0)
    second = TorchBackend(graph, parameters, options=options, precision="mxint8", device="cpu")
    images, labels = random_batch(graph, 0)
    with ModelBackend(pipeline, parameters) as backend:
        before = backend.state()
        result = backend.step(images, labels, scalar_bits())
        given = before, images, labels, scalar_bits()
        assert NumericCheck(second).after(0, backend, result, *given) is None
        gradients = backend.parameters(".gradient")
        largest = max(float(np.linalg.norm(each)) for each in gradients.values())
        assert np.linalg.norm(gradients["conv1.bias"]) < 1e-5 * largest
        gradients["conv1.bias"][3] += 1e-3 * largest
        backend.parameters = lambda suffix="": gradients
        found = NumericCheck(second).after(0, backend, result, *given)
        assert (found.layer, found.tensor) == ("conv1", "conv1.bias.gradient")


def test_gradients_that_are_not_kept_are_checked_by_the_momentum(monkeypatch):
    from fpgapipe.host.backends.torch_backend import TorchBackend
    from fpgapipe.lowering.units import late_gradients

    monkeypatch.setattr(late_gradients, "LEAST_BYTES", 0)
    monkeypatch.setattr(late_gradients, "SLICED_BYTES", 4096)
    net = Network("sliced", 2)
    net.linear(net.relu(net.linear(net.flatten(net.image(3, 6, 6)), 100)), 5)
    graph = net.build()
    schedule = make_schedule("1f1b", 1, COUNT)
    pipeline = build_pipeline(graph, [SMALL_CORE], [list(graph.layers)], schedule)
    parameters = initial_parameters(graph, 0)
    second = TorchBackend(
        graph, parameters, num_microbatches=COUNT, precision="mxint8", device="cpu"
    )
    images, labels = random_batch(graph, 0, COUNT)
    with ModelBackend(pipeline, parameters) as backend:
        backend.step(images, labels, scalar_bits())  # there is momentum, then
        before = backend.state()
        result = backend.step(images, labels, scalar_bits())
        assert "linear1.weight" not in backend.parameters(".gradient")
        given = before, images, labels, scalar_bits()
        check = NumericCheck(second)
        assert check.after(0, backend, result, *given) is None
        assert "linear1.weight.gradient" in check.worst
        state = backend.state()
        momentum = state["linear1.weight.momentum"]
        momentum[7, 5] += 0.05 * np.linalg.norm(momentum)
        backend.set_state(state)
        found = NumericCheck(second).after(0, backend, result, *given)
        assert (found.layer, found.tensor) == ("linear1", "linear1.weight.gradient")
        assert found.index == (7, 5)


def test_programs_that_train_do_not_infer(data):
    pipeline = small_pipeline(2, "gpipe")
    images = {"input": data.validation.images[: MICROBATCH * COUNT]}
    with ModelBackend(pipeline, initial_parameters(pipeline.graph, 0)) as backend:
        before = [memory.copy() for memory in backend.memories]
        with pytest.raises(ValueError, match="these programs train"):
            backend.infer(images, scalar_bits())
        assert all(
            (one == other).all() for one, other in zip(before, backend.memories, strict=True)
        )


def test_inference_is_checked_too(data):
    from fpgapipe.host.backends.torch_backend import TorchBackend

    pipeline = small_pipeline(2, "gpipe", options=StepOptions(train=False))
    parameters = initial_parameters(pipeline.graph, 0)
    one, other = (ModelBackend(pipeline, parameters) for _ in range(2))
    images = {"input": data.validation.images[: MICROBATCH * COUNT]}
    results, _ = one.infer(images, scalar_bits())
    assert ExactCheck(other).after_inference(0, one, results, images, scalar_bits()) is None
    reference = TorchBackend(pipeline.graph, parameters, precision="mxint8", device="cpu")
    near = NumericCheck(reference)
    assert near.after_inference(0, one, results, images, scalar_bits()) is None
    wrong = {"linear1": results["linear1"] * np.float32(1.05)}
    found = near.after_inference(0, one, wrong, images, scalar_bits())
    assert (found.layer, found.device) == ("linear1", 1)
    one.memories[1][pipeline.parts[1].places["linear1@1"].begin] ^= 1
    found = ExactCheck(other).after_inference(0, one, results, images, scalar_bits())
    assert (found.tensor, found.index) == ("linear1@1", (0, 0))


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
def test_simulated_devices_beside_the_model(data, pipeline, tmp_path):
    """Every byte of every memory; then a bit that flips in one device's memory between steps."""
    parameters = initial_parameters(pipeline.graph, 0)
    told = []

    class Cosmic(Watcher):
        def cycles(self, step, cycles, shares=()):
            told.append((step, cycles, shares))

        def step(self, line, done, total):
            if done == 3:
                at = pipeline.parts[0].places["conv1.weight"].begin + 2
                backend.memories[0][at : at + 1] = backend.memories[0][at : at + 1] ^ 0x40

    with SimulatorBackend(pipeline, parameters, MemorySpec(), [GOOD]) as backend:
        trainer = Trainer(
            backend,
            data.train,
            Settings(steps=5),
            tmp_path / "sim",
            check=ExactCheck(ModelBackend(pipeline, parameters)),
            watcher=Cosmic(),
        )
        result = trainer.run()
    assert result.last["cycles"] > 1000
    assert told
    assert all(cycles > 0 for _, cycles, _ in told)
    # The share of its program that a device has begun never exceeds all and rises within a step.
    for step in range(4):
        shares = [each for at, _, each in told if at == step]
        assert all(len(each) == 2 and 0 <= min(each) <= max(each) <= 1 for each in shares)
        assert np.all(np.diff(shares, axis=0) >= 0)
    found = result.difference
    assert (found.step, found.device, found.layer) == (3, 0, "conv1")
    assert found.tensor.startswith("conv1")
    assert found.backends == ("sim", "model")
