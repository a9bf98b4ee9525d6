"""Networks whose batch is fixed, in plan and build."""

import json

import pytest
from build_cases import tiny

from fpgapipe.errors import UserError


@pytest.fixture
def fixed_batch(monkeypatch):
    """A network whose batch is fixed, as that of an ONNX model may be."""

    def fix(size):
        def load(network, samples=None):
            if samples in (None, size):
                return tiny(size)
            raise UserError(f"the batch is fixed at {size}, not {samples}")

        monkeypatch.setattr("fpgapipe.network.load.load_network", load)

    return fix


def test_a_batch_that_the_network_fixes(cli, fixed_batch):
    fixed_batch(4)
    for command in (("build", "--network", "own"), ("plan", "own")):
        code, _, err = cli(*command, "--board", "u280", "--batch", 6)
        message = "error: the batch is fixed at 4, not 6; or take as many --micro-batches as make "
        assert (code, err) == (2, message + "each of 4 samples\n")


@pytest.mark.parametrize(
    ("size", "batch", "count"), [(4, 4, 1), (4, 8, 2), (2, 4, 2), (1, 2, 2), (2, 2, 1), (1, 1, 1)]
)
def test_micro_batches_are_those_of_a_fixed_batch(size, batch, count, cli, fixed_batch):
    fixed_batch(size)
    code, out, err = cli("plan", "own", "--board", "u280", "--batch", batch, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["num_microbatches"] == count


def test_a_fixed_batch_is_built(cli, fixed_batch, tmp_path):
    fixed_batch(4)
    common = ("--board", "u280", "--devices", 2, "--array", "8x8", "--batch", 4, "--no-verify")
    common += ("--no-hardware",)
    code, _, err = cli("build", "--network", "own", *common, "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["num_microbatches"] == 1
