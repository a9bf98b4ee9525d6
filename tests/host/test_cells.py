"""Packed cells, asked for by ``--cells``: where they go, what they change, and who refuses them."""

import json

import numpy as np
import pytest

import fpgapipe
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.lowering.program.step import build_step
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.load import load_network
from fpgapipe.partition.plan import Plan

ASKED = {"batch": 8, "array": (8, 8)}


@pytest.fixture(scope="module")
def chain():
    return fpgapipe.chain_of(fpgapipe.load_board("u280"), 1)


def test_a_plan_has_the_cells_that_are_asked_for(cli, chain, tmp_path):
    plain = fpgapipe.plan("digits-cnn", chain, **ASKED)
    packed = fpgapipe.plan("digits-cnn", chain, **ASKED, cells="packed")
    assert plain.plan.nodes[0].core.form is Form.PLAIN
    assert packed.plan.nodes[0].core.form is Form.PACKED
    # The array fills sooner, and does the same.
    assert packed.plan.predicted.minibatch_s < plain.plan.predicted.minibatch_s
    (tmp_path / "plan.json").write_text(packed.plan.to_json())
    assert Plan.read(tmp_path / "plan.json") == packed.plan

    words = ("--board", "u280", "--devices", 1, "--array", "8x8", "--batch", 8)
    code, text, err = cli("plan", "digits-cnn", *words, "--cells", "packed", "--json")
    assert code == 0, err
    assert json.loads(text) == json.loads(json.dumps(packed.to_dict()))


def test_a_build_has_the_cells_that_are_asked_for(chain, tmp_path):
    built = fpgapipe.build(
        "digits-cnn", chain, tmp_path / "packed", **ASKED, cells="packed", verify=False,
        hardware=False,
    )  # fmt: skip
    assert [node.core.form for node in built.build.plan.nodes] == [Form.PACKED]


def test_a_training_step_has_the_same_bytes(chain):
    graph = load_network("digits-cnn", 8)
    images = []
    for cells in Form:
        core = fpgapipe.plan("digits-cnn", chain, **ASKED, cells=cells).plan.nodes[0].core
        program = build_step(graph, core)
        image = program.image(initial_parameters(graph, 0))
        program.set_batch(image, *random_batch(graph, 0))
        CoreModel(core, image).run(program.instructions)
        images.append(program.parameters(image))
    for name, values in images[0].items():
        np.testing.assert_array_equal(values, images[1][name])


def test_who_refuses_packed_cells(chain):
    small = fpgapipe.chain_of(fpgapipe.load_board("arty-a7-100t"), 1)
    message = r"packed cells need parts with DSP48E2; arty-a7-100t has DSP48E1$"
    for array in ((4, 4), None):
        with pytest.raises(fpgapipe.UserError, match=message):
            fpgapipe.plan("digits-cnn", small, batch=8, array=array, cells="packed")
    with pytest.raises(fpgapipe.UserError, match=r"^cells must be plain or packed, not 'dense'$"):
        fpgapipe.plan("digits-cnn", chain, **ASKED, cells="dense")
    with pytest.raises(
        fpgapipe.UserError, match=r"^packed cols must be even and at least 4, not 5$"
    ):
        fpgapipe.plan("digits-cnn", chain, batch=8, array=(8, 5), cells="packed")


def test_measured_times_have_no_cells(cli, tmp_path):
    code, _, err = cli("plan", "--profile", tmp_path / "times", "--cells", "packed")
    assert code == 2
    assert "--cells does not go with --profile, which has no boards" in err
