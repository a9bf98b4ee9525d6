"""``fpgapipe inspect --hardware``: what a core runs of a network, and all reasons against."""

import json

from click.testing import CliRunner

from fpgapipe.host.cli.main import cli
from fpgapipe.lowering.units.coverage import coverage_of
from fpgapipe.network import operators as ops
from fpgapipe.network.load import load_network
from fpgapipe.network.zoo.layers import Network


def test_a_network_that_trains():
    found = coverage_of(load_network("digits-cnn", 4))
    assert found.infers
    assert found.trains
    by_op = {each.op: each for each in found.layers}
    assert by_op["conv"].engine == by_op["linear"].engine == "array"
    assert by_op["flatten"].engine == "none"
    assert by_op["relu"].unit in {each.layer for each in found.layers if each.op != "relu"}


def test_reasons_of_all_layers_at_once():
    """A layer that runs forward alone, and one that does not run."""
    net = Network("faulty", 4)
    x = net.activation(net.image(3, 8, 8), "leaky_relu", alpha=-0.1, name="steep")
    x = net.local_response_norm(x, 3, name="local")
    y = net.linear(net.flatten(x), 3)
    found = coverage_of(net.build([y, x]))
    layers = {each.layer: each for each in found.layers}
    assert (layers["steep"].forward, layers["steep"].backward) == (True, False)
    assert "slope of at least 0" in layers["steep"].reasons[0]
    assert (layers["local"].forward, layers["local"].backward) == (False, False)
    assert layers["local"].reasons == ("the core has no local_response_norm",)
    assert layers["local"].unit == ""
    assert not found.infers
    assert not found.trains


def test_a_unit_that_is_refused_refuses_its_layers():
    net = Network("unit", 4)
    x = net.add("norm", ops.BatchNorm(affine=False), net.image(3, 8, 8))
    net.linear(net.flatten(net.relu(x)), 3)
    layers = {each.layer: each for each in coverage_of(net.build()).layers}
    assert [layers[name].forward for name in ("norm", "relu1")] == [False, False]
    assert layers["relu1"].reasons == layers["norm"].reasons


def test_the_command():
    run = CliRunner().invoke
    text = run(cli, ["inspect", "digits-cnn", "--hardware"])
    assert text.exit_code == 0, text.output
    assert "A core of enough room runs and trains digits-cnn." in text.output
    found = run(cli, ["inspect", "gnmt8", "--hardware", "--json"])
    data = json.loads(found.output)
    assert data["trains"]
    assert not any(each["reasons"] for each in data["layers"])
    assert data["layers"][0]["op"] == "embedding"
    both = run(cli, ["inspect", "digits-cnn", "--hardware", "--verify"])
    assert both.exit_code != 0


def test_measured_layers_are_of_no_core(tmp_path):
    path = tmp_path / "times.csv"
    head = "layer,forward_s,backward_input_s,backward_weight_s,output_bytes,weight_bytes"
    path.write_text(f"{head}\none,1,1,1,8,8\ntwo,1,1,1,8,8\n")
    found = CliRunner().invoke(cli, ["inspect", str(path), "--hardware"])
    assert found.exit_code == 0, found.output
    assert "The core does not run times" in found.output
