"""Profiles and pipelines in PyTorch: from measured times to the losses of one process."""

import csv
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import fpgapipe
from fpgapipe.network.frontends.profile import CSV_COLUMNS
from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.operators import (
    Activation,
    Binary,
    Detach,
    Dropout,
    Embedding,
    Flatten,
    Linear,
)
from fpgapipe.network.operators.tensors import DType, Tensor

pytest.importorskip("torch")

import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.host.torch_pipeline.run_plan import TOLERANCE
from fpgapipe.host.torch_pipeline.stages import (
    check_split,
    make_parts,
    parts_of,
    tensors_between,
)
from fpgapipe.host.torch_pipeline.workers import train_alone


def skipping(samples: int = 4, main: int = 0):
    """A network whose first layer's result is read by the last; other processes may refuse it."""
    if main and os.getpid() != main:
        raise fpgapipe.UserError("this process has no network")
    net = GraphBuilder("skipping", samples)
    x = net.input("x", Tensor((samples, 1, 4, 4)))
    a = net.add("flatten", Flatten(1), x)
    b = net.add("one", Linear(12), a)
    c = net.add("relu", Activation("relu"), b)
    d = net.add("two", Linear(12), c)
    e = net.add("sum", Binary("add"), d, b)
    net.add("three", Linear(5), e)
    return net.build()


def tied(samples: int = 4):
    """Two layers with one weight."""
    net = GraphBuilder("tied", samples)
    x = net.input("x", Tensor((samples, 8)))
    a = net.add("one", Linear(8, bias=False), x)
    net.add("two", Linear(8, bias=False), a, shared={"weight": "one.weight"})
    return net.build()


def tokens(samples: int = 4):
    """A network of tokens, of which a later layer reads some again."""
    net = GraphBuilder("tokens", samples)
    x = net.input("x", Tensor((samples, 6), DType.INT64))
    a = net.add("words", Embedding(9, 4), x)
    b = net.add("others", Embedding(9, 4), x)
    c = net.add("sum", Binary("add"), a, b)
    d = net.add("flatten", Flatten(1), c)
    net.add("classes", Linear(3), d)
    return net.build()


def dropping(samples: int = 4):
    """A network with dropout."""
    net = GraphBuilder("dropping", samples)
    x = net.input("x", Tensor((samples, 1, 4, 4)))
    a = net.add("drop", Dropout(0.5), net.add("flatten", Flatten(1), x))
    net.add("one", Linear(5), a)
    return net.build()


def plan_of(
    path: Path, stages, schedule: str = "1f1b", replicas: int = 1, samples: int | None = 4
) -> Path:
    """A file of a plan with some stages of measured layers."""
    stages = [{"layers": list(stage), "replicas": replicas} for stage in stages]
    found = {"format": "fpgapipe-profile-plan", "network": "net", "schedule": schedule}
    found |= {"micro_batches": 4, "samples": samples, "stages": stages, "minibatch_time_s": 1.0}
    path.write_text(json.dumps(found))
    return path


def test_tensors_between_layers():
    graph = skipping()
    between = dict(zip(("", *graph.layers), tensors_between(graph), strict=True))
    assert between[""] == ("x",)
    assert between["relu"] == ("one", "relu")
    assert between["two"] == ("one", "two")
    assert between["three"] == ("three",)
    assert parts_of(graph) == [("flatten",), ("one",), ("relu", "two", "sum"), ("three",)]


@pytest.mark.parametrize("network", ["lenet5", "resnet-mini", "char-gpt", "char-lstm"])
def test_parts_compute_what_the_network_does(network):
    graph = fpgapipe.load_network(network, 2)
    values = initial_parameters(graph, 1)
    weights = {name: torch.from_numpy(value.copy()) for name, value in values.items()}
    inputs, _ = random_inputs(graph)
    expected = forward(graph, weights, inputs)[graph.outputs[0]]
    x = tuple(inputs.values())
    for part in make_parts(graph, parts_of(graph), values):
        y = part.eval()(*x)
        x = y if isinstance(y, tuple) else (y,)
    assert torch.equal(x[0], expected)


def random_inputs(graph):
    from fpgapipe.network.initial_values import random_batch

    inputs, labels = random_batch(graph, 3)
    return {name: torch.from_numpy(value) for name, value in inputs.items()}, labels


def test_from_a_profile_to_equal_losses(cli, tmp_path):
    profile, plan = tmp_path / "lenet5.csv", tmp_path / "plan.json"
    options = ["--samples", "4", "--repeats", "2", "--processes", "2"]
    code, out, err = cli("profile", "lenet5", *options, "-o", profile)
    assert code == 0, err
    assert "all passes of a micro-batch" in out
    rows = list(csv.DictReader(profile.read_text().splitlines()))
    assert list(rows[0]) == [*CSV_COLUMNS, "samples"]
    assert rows[-1]["layer"] == list(fpgapipe.load_network("lenet5", 4).layers)[-1]
    assert float(rows[0]["backward_input_s"]) == 0.0  # nobody reads the gradient of the samples
    assert all(float(row["forward_s"]) > 0 and row["samples"] == "4" for row in rows)

    options = ["--devices", "2", "--straight", "--schedule", "zb-h1", "--micro-batches", "4"]
    code, _, err = cli("plan", "--profile", profile, *options, "-o", plan)
    assert code == 0, err
    code, out, err = cli(
        *("run", plan, "--backend", "torch", "--processes", "2", "--steps", "3", "--check"),
        *("--device", "cpu", "--json"),
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["difference"] <= TOLERANCE
    assert found["batch"] == 16
    assert found["predicted_s"] == json.loads(plan.read_text())["minibatch_time_s"]
    assert len(found["steps"]) == 3
    assert found["steps"][0]["loss"] != found["steps"][2]["loss"]


def test_tensors_that_skip_a_stage(tmp_path):
    stages = [("flatten", "one"), ("relu",), ("two", "sum", "three")]
    plan = plan_of(tmp_path / "plan.json", stages, "gpipe")
    found = fpgapipe.run_plan(plan, network=skipping, steps=3, device="cpu", checks=True)
    assert found.is_right
    assert found.stages == 3
    assert "its losses are the same" in str(found)


def test_stages_that_share_a_weight(tmp_path):
    plan = plan_of(tmp_path / "plan.json", [("one",), ("two",)], "zb-h1")
    found = fpgapipe.run_plan(plan, network=tied, steps=4, device="cpu", checks=True)
    assert found.is_right
    assert found.steps[0].loss != found.steps[-1].loss


def test_wrong_losses_are_told(tmp_path, monkeypatch):
    plan = plan_of(tmp_path / "plan.json", [("flatten", "one"), ("three",)])

    def off(training, count):
        steps = train_alone(training, count)
        return [type(each)(each.loss * (1 + 4 * TOLERANCE), each.seconds) for each in steps]

    monkeypatch.setattr("fpgapipe.host.torch_pipeline.workers.train_in_pipeline", off)
    found = fpgapipe.run_plan(plan, network=skipping, steps=2, device="cpu", checks=True)
    assert not found.is_right
    assert "NOT the same" in str(found)


def test_a_plan_of_boards(tmp_path, monkeypatch):
    monkeypatch.delenv("FPGAPIPE_ANSWERS")
    cluster = fpgapipe.chain_of(fpgapipe.load_board("u280"), 2)
    planned = fpgapipe.plan(
        "vgg-mini", cluster, batch=8, micro_batches=4, schedule="1f1b-as", array=(16, 16)
    )
    assert len(planned.plan.stages) == 2
    path = tmp_path / "plan.json"
    path.write_text(planned.plan.to_json())
    found = fpgapipe.run_plan(path, steps=2, device="cpu", checks=True)
    assert found.is_right
    assert found.predicted_s is None


def random_network(seed: int, samples: int = 2):
    """A network with several ways, some of which have nothing to learn."""
    rng = np.random.default_rng(seed)
    net = GraphBuilder(f"random{seed}", samples)
    there = [net.input("x", Tensor((samples, 4))), net.input("y", Tensor((samples, 4)))]
    for number in range(int(rng.integers(3, 9))):
        one, other = (there[int(index)] for index in rng.integers(0, len(there), 2))
        name, kind = f"l{number}", rng.integers(0, 5)
        if kind == 0:
            there.append(net.add(name, Activation("tanh"), one))
        elif kind == 1:
            there.append(net.add(name, Binary("add"), one, other))
        elif kind == 2:
            there.append(net.add(name, Detach(), one))
        else:
            there.append(net.add(name, Linear(4), one))
    net.add("last", Linear(3), there[-1])
    return net.build(["last"])


def split_gradients(graph, cuts, values):
    """Gradients as PyTorch's stages find them in two halves, and those of a whole backward pass."""
    inputs, labels = random_inputs(graph)
    parts = make_parts(graph, cuts, values)
    between = tensors_between(graph)
    ends = np.cumsum([0, *map(len, cuts)])
    known, seen = dict(inputs), []
    for number, part in enumerate(parts):
        takes = [known[name] for name in (between[ends[number]] if number else graph.inputs)]
        x = [each.detach().requires_grad_(each.requires_grad) for each in takes]
        y = part.train()(*x)
        y = y if isinstance(y, tuple) else (y,)
        seen.append((part, x, y))
        known |= dict(zip(between[ends[number + 1]], y, strict=True))
    loss = torch.nn.functional.cross_entropy(seen[-1][2][0], torch.from_numpy(labels))
    gradients, found = None, {}
    for number, (part, x, y) in reversed(list(enumerate(seen))):
        outputs = [loss] if gradients is None else list(y)
        if number == 0:
            for output, gradient in zip(y, gradients, strict=True):
                if gradient is not None:
                    output.backward(gradient, retain_graph=True)
        else:
            gradients, groups = stage_backward_input(outputs, gradients, x, part.parameters())
            stage_backward_weight(part.parameters(), groups)
        for name, place in part.places.items():
            gradient = getattr(part, place).grad
            found[name] = torch.zeros(()) if gradient is None else gradient
    (whole,) = make_parts(graph, [tuple(graph.layers)], values)
    torch.nn.functional.cross_entropy(
        whole.train()(*inputs.values()), torch.from_numpy(labels)
    ).backward()
    expected = {
        name: torch.zeros(()) if (g := getattr(whole, place).grad) is None else g
        for name, place in whole.places.items()
    }
    return found, expected


def test_split_backward_passes_are_right_or_refused():
    """PyTorch finds every gradient of what is accepted, and not those of all that is refused."""
    accepted = refused = wrong = 0
    for seed in range(100):
        graph = random_network(seed)
        names = list(graph.layers)
        for cut in range(1, len(names)):
            cuts = [tuple(names[:cut]), tuple(names[cut:])]
            try:
                check_split(graph, cuts)
                accepted += 1
                is_refused = False
            except fpgapipe.UserError:
                refused += 1
                is_refused = True
            found, expected = split_gradients(graph, cuts, initial_parameters(graph, seed))
            same = all(
                torch.allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)
                for name in expected
            )
            assert same or is_refused, (seed, cuts)
            wrong += not same
    assert accepted > 150
    assert refused
    assert wrong


def test_a_process_that_fails(tmp_path):
    plan = plan_of(tmp_path / "plan.json", [("flatten", "one"), ("three",)])
    network = partial(skipping, main=os.getpid())
    with pytest.raises(fpgapipe.UserError, match=r"(?s)rank . of the pipeline has failed.*no netw"):
        fpgapipe.run_plan(plan, network=network, steps=2, device="cpu")


@pytest.mark.parametrize(
    ("network", "stages", "change", "fault"),
    [
        (skipping, [("flatten", "one"), ("three",)], {"schedule": "pipedream"}, "before a mini-b"),
        (skipping, [("flatten", "one"), ("three",)], {"schedule": "fbp-as"}, "two engines"),
        (skipping, [("flatten", "one"), ("three",)], {"schedule": "zb-auto"}, "zb-auto"),
        (skipping, [("flatten", "one"), ("three",)], {"replicas": 2}, "stage 0 is on 2 devices"),
        (skipping, [("flatten", "one"), ("three",)], {"samples": None}, "--samples"),
        (skipping, [("flatten", "one"), ("other",)], {}, "no layer 'other'"),
        (skipping, [("three",), ("one",)], {}, "'one' ends stage 1"),
        (skipping, [("flatten", "one"), ("sum",)], {}, "ends them too early"),
        (tokens, [("words",), ("classes",)], {}, "a tensor of int64"),
        (dropping, [("drop",), ("one",)], {}, "at random"),
        (skipping, [("flatten",), ("three",)], {"schedule": "zb-h1"}, "stage 1 gives 'three'"),
    ],
)
def test_refusals(tmp_path, network, stages, change, fault):
    plan = plan_of(tmp_path / "plan.json", stages, **change)
    with pytest.raises(fpgapipe.UserError, match=fault):
        fpgapipe.run_plan(plan, network=network, steps=1, device="cpu", checks=True)


def test_a_number_of_processes_or_samples_that_is_not_the_plans(tmp_path):
    plan = plan_of(tmp_path / "plan.json", [("flatten", "one"), ("three",)])
    with pytest.raises(fpgapipe.UserError, match="for 2 processes"):
        fpgapipe.run_plan(plan, network=skipping, processes=3)
    with pytest.raises(fpgapipe.UserError, match="of 4 samples, not 8"):
        fpgapipe.run_plan(plan, network=skipping, samples=8)
    with pytest.raises(fpgapipe.UserError, match="samples, and a mini-batch"):
        fpgapipe.run_plan(
            plan_of(tmp_path / "large.json", [("flatten", "one"), ("three",)], samples=10_000),
            network=skipping,
            steps=1,
            device="cpu",
        )


def test_options_that_do_not_go_with_a_plan(cli, tmp_path):
    plan = plan_of(tmp_path / "plan.json", [("flatten", "one"), ("three",)])
    for arguments, fault in (
        (["--backend", "torch", "--clip-norm", "1"], "--clip-norm does not go with a file"),
        (["--backend", "model"], "--backend torch"),
        ([], "--backend torch"),
        (["--backend", "torch", "--check", "model"], "--check torch"),
    ):
        code, _, err = cli("run", plan, *arguments)
        assert code == 2
        assert fault in err
    code, _, err = cli("run", tmp_path, "--processes", "2")
    assert code == 2
    assert "--processes is for files of plans" in err
    for text, fault in (
        ("{", "no JSON"),
        ("[]", "plan"),
        ('{"format": "fpgapipe-profile-plan"}', ""),
    ):
        plan.write_text(text)
        code, _, err = cli("run", plan, "--backend", "torch")
        assert code == 2, err
        assert fault in err
    assert cli("run", tmp_path / "none.json", "--backend", "torch")[0] == 2


def test_samples_of_a_profile(tmp_path):
    path = tmp_path / "net.csv"
    header = ",".join((*CSV_COLUMNS, "samples"))
    path.write_text(f"{header}\na,1,1,1,1,1,8\nb,1,1,1,1,1,8\n")
    assert fpgapipe.plan_profile(path, 2, straight=True).to_dict()["samples"] == 8
    path.write_text(f"{header}\na,1,1,1,1,1,8\nb,1,1,1,1,1,4\n")
    with pytest.raises(fpgapipe.UserError, match="samples is 4, and 8 in the row before"):
        fpgapipe.plan_profile(path, 2, straight=True)


def test_a_process_that_measures_beside_and_fails():
    with pytest.raises(fpgapipe.UserError, match="measures beside has ended"):
        fpgapipe.profile(partial(skipping, main=os.getpid()), device="cpu", processes=2)


def test_a_profile_of_several_outputs():
    def network(samples: int):
        net = GraphBuilder("two", samples)
        x = net.input("x", Tensor((samples, 8)))
        net.add("one", Linear(3), x)
        net.add("two", Linear(3), x)
        return net.build()

    with pytest.raises(fpgapipe.UserError, match="has 2 outputs"):
        fpgapipe.profile(network)


def test_a_device_that_is_not_there(tmp_path):
    plan = plan_of(tmp_path / "plan.json", [("flatten", "one"), ("three",)])
    for device, fault in (("cuda", "needs 2 GPUs"), ("tpu", "cpu, cuda or auto")):
        if device == "cuda" and torch.cuda.device_count() > 1:
            continue
        with pytest.raises(fpgapipe.UserError, match=fault):
            fpgapipe.run_plan(plan, network=skipping, device=device)
