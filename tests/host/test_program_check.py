"""The comparison of a build's programs with PyTorch: what is wrong is refused by name."""

import json

import pytest
from build_cases import cluster_of, request_for, tiny
from wrong_programs import pad_at_the_wrong_side

from fpgapipe.errors import UserError
from fpgapipe.host.build.build import open_build
from fpgapipe.host.runtime import program_check
from fpgapipe.host.runtime.program_check import Limits, Verification, verify_programs
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network import operators as ops
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.strategies.data_parallel import plan_data_parallel

pytest.importorskip("torch")


def planned(load, batch=2):
    plan, _ = plan_data_parallel(request_for(cluster_of(1), load, batch, 1), "tiny")
    return plan, load(batch), StepOptions()


def grouped(batch):
    net = Network("grouped", batch)
    x = net.relu(net.conv(net.image(3, 9, 9), 32, 3))
    x = net.conv(x, 32, 3, padding=1, groups=4)
    net.linear(net.flatten(net.global_average_pool(x)), 5)
    return net.build()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FPGAPIPE_ANSWERS", "1")


def test_right_programs_are_compared_once(monkeypatch):
    plan, graph, options = planned(tiny)
    found = verify_programs(plan, graph, options, limits=Limits(1e9))
    assert not found.skipped
    assert found.compared >= 3
    assert found.compared + len(found.unverified) <= len(units_of(graph))
    assert str(found).startswith(f"programs verified: {found.compared} groups of layers")
    monkeypatch.setattr(program_check, "compare", lambda *given: pytest.fail("asked again"))
    assert verify_programs(plan, graph, options, limits=Limits(1e9)) == found


def test_a_wrong_program_is_refused_by_its_layers_name(monkeypatch):
    """A fault of the lowering is planted: it pads grouped convolutions at the wrong side."""
    plan, graph, options = planned(grouped)
    pad_at_the_wrong_side(monkeypatch)
    with pytest.raises(UserError, match=r"^layer 'conv2': its program computes something else"):
        verify_programs(plan, graph, options, limits=Limits(1e9))


def test_what_there_is_no_time_for_is_named():
    plan, graph, options = planned(tiny)
    times = iter(range(1000))
    found = verify_programs(plan, graph, options, limits=Limits(1.5), clock=lambda: next(times))
    assert found.compared == 1
    assert set(found.unverified.values()) == {"the 1.5 s for it were over"}
    assert "(the 1.5 s for it were over)" in str(found)


def test_a_normalisation_and_the_sum_behind_it_are_compared():
    """The value that was added came between the two, so that they did not run together."""

    def residual(batch):
        net = Network("residual", batch)
        x = net.conv(net.image(3, 5, 5), 8, 3, padding=1)
        x = net.plus(net.batch_norm(net.conv(x, 8, 3, padding=1)), x)
        net.linear(net.flatten(net.global_average_pool(x)), 5)
        return net.build()

    plan, graph, options = planned(residual)
    assert ["batch_norm", "add"] in [[each.op for each in unit.layers] for unit in units_of(graph)]
    assert not verify_programs(plan, graph, options, limits=Limits(1e9)).unverified


def test_what_has_its_samples_elsewhere_is_compared():
    """A result whose first axis has no samples was refused by the loss, and left out."""

    def heads(batch):
        net = Network("heads", batch)
        x = net.linear(net.reshape(net.image(3, 4, 2), batch, 6, 4), 18)
        x = net.transpose(net.reshape(x, batch, 6, 3, 2, 3), 2, 0, 3, 1, 4)
        x = net.softmax(net.reshape(x, 3 * batch, 2, 6, 3))
        net.linear(net.reshape(x, batch, 108), 5)
        return net.build()

    plan, graph, options = planned(heads)
    found = verify_programs(plan, graph, options, limits=Limits(1e9))
    assert found.compared >= 7
    assert not found.unverified


def test_what_is_scaled_by_a_learned_tensor_is_compared():
    """The scale of the last axis was taken for one of the samples, and shortened as they are."""

    def scaled(batch):
        net = Network("scaled", batch)
        x = net.transpose(net.conv(net.image(3, 12, 4), 33, 3, padding=1), 0, 2, 3, 1)
        scale = net.add("scale", ops.Constant((33,), trainable=True))
        x = net.add("product", ops.Binary("mul"), scale, x)
        places = net.add("places", ops.Constant((1, 12, 4, 33), trainable=True))
        x = net.transpose(net.plus(x, places), 0, 3, 1, 2)
        net.linear(net.flatten(net.global_average_pool(x)), 5)
        return net.build()

    plan, graph, options = planned(scaled)
    assert not verify_programs(plan, graph, options, limits=Limits(1e9)).unverified


@pytest.mark.parametrize("shape", [(3, 1, 1), (2, 1), (2,)], ids=str)
def test_functions_of_learned_tensors_are_compared(shape):
    """As many values as there are samples, or no multiple of them; some scale attention heads."""

    def scaled(batch):
        net = Network("scaled", batch)
        scale = net.unary(net.add("scale", ops.Constant(shape, trainable=True)), "exp")
        rows = shape[0] if len(shape) > 1 else 4
        x = net.reshape(net.image(rows, 2, 2), batch, rows, 2, 2)
        wide = net.add("wide", ops.Reshape((*shape, *(1,) * (3 - len(shape)))), scale)
        x = net.add("product", ops.Binary("mul"), x, scale if len(shape) != 2 else wide)
        net.linear(net.flatten(x), 5)
        return net.build()

    plan, graph, options = planned(scaled)
    assert not verify_programs(plan, graph, options, limits=Limits(1e9)).unverified


def test_learned_positions_are_compared_in_inference():
    """They alone have no samples, which the comparison took the number of."""

    def placed(batch):
        net = Network("placed", batch)
        x = net.embedding(net.tokens("tokens", 8), 32, 16)
        x = net.plus(x, net.add("places", ops.Constant((8, 16), trainable=True)))
        net.linear(net.layer_norm(x), 32)
        return net.build()

    plan, graph, _ = planned(placed)
    options = StepOptions(train=False)
    assert not verify_programs(plan, graph, options, limits=Limits(1e9)).unverified


@pytest.mark.parametrize("function", ["log", "sqrt", "rsqrt"])
def test_functions_of_positive_numbers_are_compared(function):
    """Random numbers were negative, and the function was left out as one of other numbers."""

    def rooted(batch):
        net = Network("rooted", batch)
        x = net.unary(net.linear(net.flatten(net.image(3, 2, 2)), 9), "exp")
        net.linear(net.unary(x, function), 5)
        return net.build()

    plan, graph, options = planned(rooted)
    assert not verify_programs(plan, graph, options, limits=Limits(1e9)).unverified


def test_the_note_of_a_build(tmp_path):
    assert Verification.read(tmp_path).skipped
    note = Verification(3, {"fc1": "too large to compare"})
    note.write(tmp_path)
    assert Verification.read(tmp_path) == note
    (tmp_path / program_check.NOTE).write_text(json.dumps({"compared": "x"}))
    assert "not say" in Verification.read(tmp_path).skipped
    assert str(Verification(skipped="--no-verify")) == "programs not verified: --no-verify"


def test_without_torch_nothing_is_compared(monkeypatch):
    monkeypatch.setattr(program_check.importlib.util, "find_spec", lambda name: None)
    assert "needs torch" in verify_programs(*planned(tiny)).skipped


def test_a_build_folder_may_be_named_by_text(tmp_path):
    """A string ended with a TypeError of an inner function."""
    with pytest.raises(UserError, match="is no build folder"):
        open_build(str(tmp_path))
    with pytest.raises(UserError, match=r"^a build folder must be a path, not int$"):
        open_build(3)
