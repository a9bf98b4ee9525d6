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

        monkeypatch.setattr("fpgapipe.host.make.networks.load_network", load)

    return fix


def test_a_batch_that_the_network_fixes(cli, fixed_batch):
    fixed_batch(4)
    for command in (("build", "--network", "own"), ("plan", "own"), ("compare", "own")):
        code, _, err = cli(*command, "--board", "u280", "--batch", 6)
        message = "error: the batch is fixed at 4, not 6; or take a --batch of micro-batches that "
        assert (code, err) == (2, message + "have 4 samples each\n")


@pytest.mark.parametrize(
    ("size", "batch", "count"), [(4, 4, 1), (4, 8, 2), (2, 4, 2), (1, 2, 2), (2, 2, 1), (1, 1, 1)]
)
def test_micro_batches_are_those_of_a_fixed_batch(size, batch, count, cli, fixed_batch):
    fixed_batch(size)
    code, out, err = cli(
        "plan", "own", "--board", "u280", "--devices", 1, "--batch", batch, "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out)["num_microbatches"] == count


def test_ways_to_train_a_fixed_batch_are_compared(cli, fixed_batch):
    """All ways, in micro-batches of 4; three of them are not shared by two devices."""
    fixed_batch(4)
    given = ("own", "--board", "u280", "--devices", 2, "--json")
    code, out, err = cli("compare", *given, "--batch", 8)
    assert (code, err) == (0, "")
    found = json.loads(out)
    counts = {each["name"]: each["num_microbatches"] for each in found["entries"]}
    assert {"data parallel", "even split", "1f1b-as"} <= set(counts)
    assert counts == dict.fromkeys(counts, 2)
    assert found["refused"] == []
    code, out, err = cli("compare", *given, "--batch", 12)
    assert (code, err) == (0, "")
    reason = "3 micro-batches cannot be shared equally by 2 devices; use a multiple of 2"
    assert json.loads(out)["refused"] == [f"data parallel: {reason}"]


@pytest.mark.parametrize("strategy", ["data", "filter", "spatial", "layerwise"])
def test_strategies_of_a_fixed_batch(strategy, cli, fixed_batch):
    fixed_batch(4)
    given = ("--board", "u280", "--devices", 2, "--batch", 8, "--json", "--strategy", strategy)
    code, out, err = cli("plan", "own", *given)
    assert (code, err) == (0, "")
    assert json.loads(out)["num_microbatches"] == 2


def test_a_fixed_batch_is_built(cli, fixed_batch, tmp_path):
    fixed_batch(4)
    common = ("--board", "u280", "--devices", 2, "--array", "8x8", "--batch", 4, "--no-verify")
    common += ("--no-hardware",)
    code, _, err = cli("build", "--network", "own", *common, "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["num_microbatches"] == 1


def test_degrees_without_programs_are_of_a_whole_mini_batch(cli, tmp_path):
    table = tmp_path / "net.csv"
    table.write_text("Layer, M, N, K,\ng1,64,128,256,\ng2,64,100,128,\n")
    options = ("--strategy", "layerwise", "--board", "u280", "--devices", 2)
    code, _, err = cli("plan", table, *options)
    assert code == 2
    assert err == (
        f"error: {table} has a fixed batch: without programs, --strategy layerwise plans a "
        "mini-batch as a whole, so take --batch 1\n"
    )
    code, out, err = cli("plan", table, *options, "--batch", 1)
    assert code == 0, err
    assert "cannot make this plan" in out
