"""Commands called from Python: one call, and a result that prints and is data."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import fpgapipe
from fpgapipe import UserError
from fpgapipe.host.make import build as making
from fpgapipe.host.make import oracle as oracle_module
from fpgapipe.host.make.planning import rank
from fpgapipe.host.make.run import Asked
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.hw.rtl import core_verilog
from fpgapipe.network.load import load_network
from fpgapipe.partition.strategies import comparison

CHAIN = ("--board", "u280", "--devices", 2)
SMALL = (*CHAIN, "--array", "8x8", "--batch", 8)


@pytest.fixture(scope="module")
def chain():
    return fpgapipe.chain_of(fpgapipe.load_board("u280"), 2)


def told(cli, *words):
    """Output of a command, as text and as JSON."""
    code, text, err = cli(*words)
    assert code == 0, err
    code, value, err = cli(*words, "--json")
    assert code == 0, err
    return text, json.loads(value)


@pytest.mark.parametrize("strategy", ["pipeline", "data"])
def test_a_plan_prints_and_turns_into_what_the_command_says(cli, chain, strategy):
    found = fpgapipe.plan("digits-cnn", chain, batch=8, array=(8, 8), strategy=strategy)
    text, value = told(cli, "plan", "digits-cnn", *SMALL, "--strategy", strategy)
    assert text == f"{found}\n"
    assert value == json.loads(json.dumps(found.to_dict()))
    assert [each["device"] for each in found.to_records()] == ["u280-0", "u280-1"]


def test_a_network_may_be_a_function_and_a_cluster_a_specification(chain):
    asked = []

    def network(samples):
        asked.append(samples)
        return load_network("digits-cnn", samples)

    found = fpgapipe.plan(network, chain.spec, batch=8, array=(8, 8))
    named = fpgapipe.plan("digits-cnn", chain, batch=8, array=(8, 8))
    assert len(asked) == len(set(asked))
    assert found.plan == named.plan
    assert found.graph.batch == found.plan.microbatch


def test_a_slow_host_is_named(chain):
    """The time of a mini-batch leaves out what the host does before it."""
    slow = [replace(each, host_bytes_per_s=1e6) for each in chain.spec.devices]
    found = fpgapipe.plan(
        "digits-cnn", replace(chain.spec, devices=tuple(slow)), batch=8, array=(8, 8)
    )
    assert found.upload_s == 8 * 64 * 2 / 1e6
    assert "before a mini-batch, the host takes 1.02 ms to write its inputs" in str(found)
    quick = replace(found, cluster=chain.spec)
    assert quick.to_dict()["upload_s"] == 8 * 64 * 2 / chain.spec.devices[0].host_bytes_per_s
    assert "the host" not in str(quick)


def test_a_python_user_gets_a_larger_scratchpad_for_a_layer_that_does_not_fit(
    chain, monkeypatch, tmp_path
):
    sizes = []
    write_build = making.write_build

    def write(plan, *args, **options):
        core = plan.nodes[0].core
        sizes.append(core.scratchpad.size_bytes)
        if len(sizes) == 1:
            raise UserError("layer 'conv9' is too large") from NoRoom()
        return write_build(plan, *args, **options)

    monkeypatch.setattr(making, "write_build", write)
    monkeypatch.setattr(core_verilog, "device_verilog", lambda core: "module top; endmodule")
    built = fpgapipe.build("digits-cnn", chain, tmp_path / "b", batch=8, array=(8, 8), verify=False)
    assert sizes[1:] == [2 * sizes[0]]
    assert built.build.plan == fpgapipe.open_build(tmp_path / "b").plan
    assert built.to_dict()["verification"] == "programs not verified: --no-verify"
    assert len(built.to_records()) == 2


def test_a_build_from_python_is_that_of_the_command(cli, chain, tmp_path):
    made = {"batch": 8, "array": (8, 8), "verify": False, "hardware": False}
    built = fpgapipe.build("digits-cnn", chain, tmp_path / "a", **made)
    words = ("build", *SMALL, "--no-verify", "--no-hardware")
    code, text, err = cli(*words, "-o", tmp_path / "b")
    assert code == 0, err
    assert text == f"{built}\n".replace(str(tmp_path / "a"), str(tmp_path / "b"))
    files = sorted(path for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert files
    for path in files:
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


@pytest.fixture(scope="module")
def folder(chain, tmp_path_factory):
    """A small build without hardware."""
    place = tmp_path_factory.mktemp("made") / "b"
    made = {"batch": 8, "micro_batches": 2, "array": (8, 8)}
    return fpgapipe.build(
        "digits-cnn", chain, place, verify=False, hardware=False, **made
    ).build.folder


def test_a_run_goes_on_with_the_settings_of_the_earlier_one(folder, cli):
    """From Python what the command does: what is not given is the earlier run's."""
    first = {"data": "random", "momentum": 0.5, "seed": 3, "steps": 1, "validates": False}
    ran = fpgapipe.run(folder, "model", **first)
    assert "accuracy" not in str(ran)
    assert ran.to_records() == [ran.to_dict()]
    more = fpgapipe.run(folder, "model", resume=True, steps=2, validates=False)
    assert (more.summary.steps, more.summary.ran) == (2, 1)
    settings = json.loads((folder / "run/model/settings.json").read_text())
    assert [settings[name] for name in ("data", "momentum", "seed")] == ["random", 0.5, 3]
    words = ("run", folder, "--backend", "model", "--resume", "--steps", 2, "--no-validation")
    code, out, err = cli(*words, "--json")
    assert code == 0, err
    assert json.loads(out)["loss"] == more.summary.loss


def test_checkpoints_are_listed(chain, tmp_path):
    made = {"batch": 8, "array": (8, 8), "verify": False, "hardware": False}
    folder = fpgapipe.build("digits-cnn", chain, tmp_path / "b", **made).build.folder
    assert fpgapipe.checkpoints(folder).to_records() == []
    for seed in (1, 2):  # the first run becomes the one before
        fpgapipe.run(folder, "model", data="random", seed=seed, steps=2, validates=False)
    newest, earlier = fpgapipe.checkpoints(folder).to_records()
    assert [each["run"] for each in (newest, earlier)] == ["model", "model.before"]
    assert (newest["step"], newest["fault"]) == (2, None)
    path = Path(newest["path"])
    assert newest["bytes"] == path.stat().st_size
    path.write_bytes(path.read_bytes()[:-4])
    found = fpgapipe.checkpoints(folder)
    assert "is damaged" in found.to_records()[0]["fault"]
    assert "is damaged" in str(found)
    with pytest.raises(UserError, match=r"has no build: there is no plan.json"):
        fpgapipe.checkpoints(tmp_path)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"backend": "fpga"}, "a backend must be one of sim, model, torch, .*, not fpga"),
        ({"steps": 1, "epochs": 1}, "--epochs and --steps exclude each other"),
        ({"source": "nowhere"}, "nowhere is not there"),
        ({"waves": "w.fst"}, "--waves records a simulation"),
        ({"clip_norm": 1.0}, "the build does not clip gradients"),
        ({"check": "torch", "cluster_file": "c.yaml"}, "--cluster has addresses of boards"),
    ],
)
def test_what_goes_wrong_with_a_run(folder, asked, message):
    with pytest.raises(UserError, match=message):
        fpgapipe.run(folder, **{"backend": "model", "data": "random", "steps": 1} | asked)


@pytest.mark.parametrize(
    ("name", "value", "is_one"),
    [
        ("momentum", 0.5, True),
        ("momentum", 1e300, False),
        ("momentum", 1, False),
        ("seed", 7, True),
        ("seed", True, False),
        ("seed", 1 << 63, False),
        ("steps", 0, False),
        ("epochs", 2, True),
        ("clip_norm", float("nan"), False),
        ("precision", "bf16", True),
        ("precision", "fp4096", False),
        ("rate_schedule", "zigzag", False),
        ("data", None, False),
    ],
)
def test_a_file_of_settings_is_not_believed(tmp_path, name, value, is_one):
    (tmp_path / "settings.json").write_text(json.dumps({name: value}))
    found = getattr(Asked().after(tmp_path), name)
    assert found == (value if is_one else None)
    assert type(found) is (type(value) if is_one else type(None))


def test_boards_are_brought_up(folder, cli):
    lines = []
    found = fpgapipe.bringup(folder, "model", watch_s=0, on_line=lines.append)
    assert found.passed
    assert str(found).splitlines() == lines
    assert {each["check"] for each in found.to_records()} >= {"identity", "memory"}


def test_a_ring_is_planned(chain, cli, tmp_path):
    asked = {"array": (4, 4), "batch": 8, "samples": 100, "plan_only": True}
    found = fpgapipe.ring(["digits-cnn"] * 2, chain, tmp_path, **asked)
    ring = ("ring", "digits-cnn", "digits-cnn", *CHAIN, "--array", "4x4", "--batch", 8)
    text, value = told(cli, *ring, "--plan", "--samples", 100)
    assert text == f"{found}\n"
    assert value == json.loads(json.dumps(found.to_dict()))
    assert [each["network"] for each in found.to_records()] == ["digits-cnn"] * 2
    assert found.difference is None


RESULTS = [
    (("inspect", "lenet5"), lambda chain: fpgapipe.inspect("lenet5")),
    (("inspect", "gnmt8", "--hardware"), lambda chain: fpgapipe.coverage("gnmt8")),
    (("inspect", "lenet5", "--verify"), lambda chain: fpgapipe.verify("lenet5")),
    (("boards",), lambda chain: fpgapipe.list_boards()),
    (("boards", "zcu102"), lambda chain: fpgapipe.describe_board("zcu102")),
    (("cluster", *CHAIN), fpgapipe.describe_cluster),
    (
        ("schedule", "zb-auto", "--stages", 3, "--micro-batches", 4, "--memory-limit", 6),
        lambda chain: fpgapipe.schedule("zb-auto", 3, 4, memory_limit=6),
    ),
    (
        ("compare", "digits-cnn", *CHAIN, "--batch", 8),
        lambda chain: fpgapipe.compare("digits-cnn", chain, batch=8),
    ),
    (
        ("oracle", "digits-cnn", "--board", "u280", "--array", "8x8", "--devices", "1,2",
         "--strategies", "data,filter", "--batch-per-device", 4),
        lambda chain: fpgapipe.oracle(
            "digits-cnn", [1, 2], board="u280", array=(8, 8), strategies=["data", "filter"],
            batch_per_device=4,
        ),
    ),
    (
        ("oracle", "digits-cnn", "--board", "u280", "--devices", "2", "--model", "paradl"),
        lambda chain: fpgapipe.oracle("digits-cnn", [2], board="u280", model="paradl"),
    ),
]  # fmt: skip
"""Commands, and the calls that do the same."""


@pytest.mark.parametrize(
    ("words", "call"), [pytest.param(*each, id=" ".join(map(str, each[0][:2]))) for each in RESULTS]
)
def test_a_result_is_what_its_command_prints(words, call, chain, cli):
    found = call(chain)
    text, value = told(cli, *words)
    assert text == f"{found}\n"
    assert value == json.loads(json.dumps(found.to_dict()))
    assert all(isinstance(each, dict) for each in found.to_records())


def test_a_schedule_may_be_an_object_or_a_file(tmp_path):
    made = fpgapipe.make_schedule("gpipe", 2, 3)
    found = fpgapipe.schedule(order=made, tf=2.0)
    (tmp_path / "s.csv").write_text(found.to_csv())
    again = fpgapipe.schedule(order=tmp_path / "s.csv", tf=2.0)
    assert again.timeline.makespan_s == found.timeline.makespan_s
    assert found.picture("svg").startswith("<svg")


def test_a_package_needs_boards(chain):
    with pytest.raises(TypeError, match="a package needs the boards of a Cluster"):
        fpgapipe.build("digits-cnn", chain.spec, package="vitis")


def test_inference_is_asked_for_by_the_options_of_the_programs(chain, tmp_path):
    options = fpgapipe.StepOptions(train=False)
    with pytest.raises(UserError, match="--int8 builds networks for inference"):
        fpgapipe.build("digits-cnn", chain, tmp_path / "b", int8="digits")
    built = fpgapipe.build(
        "digits-cnn", chain, tmp_path / "b", batch=8, array=(8, 8), options=options,
        verify=False, hardware=False,
    )  # fmt: skip
    assert built.build.plan.mode == "infer"


def test_an_estimate_is_preferred_only_where_it_cannot_be_slower():
    """Formulas leave out as much as 60 %, so an estimate of 1 s may stand for 1.6 s."""
    by_rank = sorted(
        [("machine", 1.7), ("machine", 1.5), ("estimate", 1.0), ("estimate", 0.5)],
        key=lambda pair: rank(
            SimpleNamespace(predicted=SimpleNamespace(level=pair[0], minibatch_s=pair[1]))
        ),
    )
    assert by_rank == [("estimate", 0.5), ("machine", 1.5), ("estimate", 1.0), ("machine", 1.7)]


def test_answers_that_are_there_stay_when_the_user_ends_the_oracle(monkeypatch):
    def ended(machine, samples, name, devices):
        if name == "pipeline":
            raise KeyboardInterrupt
        return forecast(machine, name, devices)

    forecast = oracle_module.ask
    monkeypatch.setattr(oracle_module, "_of_machine", ended)
    answers = fpgapipe.oracle(
        "digits-cnn", [1, 2], board="u280", array=(8, 8), batch=8, strategies=["data", "pipeline"]
    )
    assert [(each.name, each.devices) for each in answers.found] == [("data", 1), ("data", 2)]
    assert not answers.to_dict()["is_whole"]
    assert str(answers).endswith("the search was ended before all was tried")
    with pytest.raises(KeyboardInterrupt):
        fpgapipe.oracle("digits-cnn", [1], board="u280", array=(8, 8), strategies=["pipeline"])


def test_ways_that_are_there_stay_when_the_user_ends_the_comparison(monkeypatch, chain):
    def ended(request, network):
        raise KeyboardInterrupt

    monkeypatch.setitem(comparison._WAYS, "data parallel", ended)
    found = fpgapipe.compare("digits-cnn", chain, batch=4)
    assert [each.name for each in found.found.entries] == ["one device"]
    assert not found.to_dict()["is_whole"]
    assert str(found).endswith("the search was ended before all was tried")
    monkeypatch.setitem(comparison._WAYS, "one device", ended)
    with pytest.raises(KeyboardInterrupt):
        fpgapipe.compare("digits-cnn", chain, batch=4)


@pytest.mark.parametrize("array", ["16x32", "16", (16,), (16.0, 32), (0, 16), (8, 4096), 8])
def test_an_array_is_a_pair_of_whole_numbers(chain, array):
    with pytest.raises(UserError, match=r"^the array must be a pair of whole numbers, .*\(8, 8\)"):
        fpgapipe.plan("digits-cnn", chain, batch=8, array=array)


@pytest.mark.parametrize("gbits", [0.1, 100])
def test_a_build_says_if_one_device_is_faster(chain, tmp_path, monkeypatch, gbits):
    """Over fast links formulas know that it is not, and its programs are not made."""
    links = [replace(link, line_rate_bits_per_s=gbits * 1e9) for link in chain.spec.links]
    slow = replace(chain.spec, links=tuple(links))
    built = fpgapipe.build(
        "digits-cnn", slow, tmp_path / "build", batch=8, array=(8, 8), strategy="data", verify=False
    )
    if gbits > 1:
        monkeypatch.setattr(making, "best_plan", None)
        assert built.hint is None
    else:
        assert "hint: one u280 with this core is predicted to be " in str(built)
