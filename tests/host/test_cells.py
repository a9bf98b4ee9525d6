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


def test_a_core_saves_what_its_die_lacks_for_the_array():
    """Die by die: 9 DSPs for 32x64 on the first, 22,000 LUTs on the second, nothing on the third.

    Fewer lanes that apply functions are enough for the first one.
    """
    board = fpgapipe.chain_of(fpgapipe.load_board("u55c"), 1, 3)
    asked = {"batch": 12, "array": (32, 64), "strategy": "data"}
    found = {}
    for cells in (None, "plain"):
        nodes = fpgapipe.plan("digits-cnn", board, **asked, cells=cells).plan.nodes
        cores = [node.core for node in nodes]
        found[cells] = [
            (core.form, core.vector_lanes, core.vector.function_lanes) for core in cores
        ]
    first, last = (Form.PLAIN, 16, 2), (Form.PLAIN, 16, 4)
    assert found == {
        None: [first, (Form.PACKED, 16, 4), last],
        "plain": [first, (Form.PLAIN, 8, 2), last],
    }


def test_an_array_that_does_not_fit_is_refused_with_what_it_lacks_at_least():
    """Numbers are those of the savings that come nearest, and the array is the largest with any."""
    board = fpgapipe.chain_of(fpgapipe.load_board("u55c"), 1, 3)
    message = "32x256 does not fit u55c: dsp: needs 4,142, 2,131 usable; 32x128 does$"
    with pytest.raises(fpgapipe.UserError, match=message):
        fpgapipe.plan("digits-cnn", board, batch=12, array=(32, 256))


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
