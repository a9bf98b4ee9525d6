"""Exploration, comparison and planning from profiles, and the commands plan and compare."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from fpgapipe.boards.cluster import chain_of, load_cluster
from fpgapipe.boards.library import load_board
from fpgapipe.host.make.networks import loader
from fpgapipe.lowering.schedule.pytorch_csv import from_pytorch_csv, to_pytorch_csv
from fpgapipe.partition.explore.candidate import device_chain, time_candidate
from fpgapipe.partition.explore.cut_problem import check_memory
from fpgapipe.partition.explore.explorer import ENOUGH_TRIED, explore, splits_of, with_enough_splits
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.schedule.schedule_kinds import (
    compared_schedules,
    make_schedule,
    tried_schedules,
)
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies.comparison import compare
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

NETWORK = "digits-cnn"
MIXED = Path(__file__).parents[2] / "examples/clusters/vcu118-vcu129-chain.yaml"
PROFILE = """\
layer,forward_s,backward_input_s,backward_weight_s,output_bytes,weight_bytes
a,1,1,1,1000,100
b,2,2,2,1000,100
c,1,1,1,1000,100
d,2,2,2,1000,100
"""
SECONDS = ((1, 2, 1, 2), (1, 2, 2.5, 2), (1, 2, 1.25, 2))
VALUES = {"bottleneck": "period_s", "minibatch": "minibatch_time_s"}
KINDS = ("gpipe", "1f1b", "1f1b-as", "fbp-as", "1f1b-sno", "1f1b-so", "zb-h1", "zb-h2", "zb-auto")


def chain(devices=4, board="u280"):
    return chain_of(load_board(board), devices).spec


def with_links(cluster, **fields):
    links = tuple(dataclasses.replace(link, **fields) for link in cluster.links)
    return dataclasses.replace(cluster, links=links)


def with_memory(cluster, total_bytes):
    """Every device with one memory of a size."""
    devices = []
    for device in cluster.devices:
        memory = dataclasses.replace(device.memories[0], count=1, size_bytes=total_bytes)
        devices.append(dataclasses.replace(device, memories=(memory,)))
    return dataclasses.replace(cluster, devices=tuple(devices))


def request(cluster=None, batch=8, network=NETWORK, **fields):
    return Request(loader(network), batch, cluster or chain(), **fields)


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "net.csv"
    path.write_text(PROFILE)
    return path


def check_stages(best, graph):
    """Every layer once, in data-flow order."""
    where = {name: i for i, stage in enumerate(best.stages) for name in stage.layers}
    assert sorted(where) == sorted(graph.layers)
    assert sum(len(stage.layers) for stage in best.stages) == len(where)
    for layer in graph.layers.values():
        assert all(where[name] <= where[layer.name] for name in layer.inputs if name in where)


def test_a_schedule_whose_engines_do_not_fit_is_left_out():
    """An arty-a7-100t has room for a core of one engine, not of two."""
    asked = request(chain(1, "arty-a7-100t"), schedules=("1f1b-as", "fbp-as"), num_microbatches=2)
    found = explore(asked)
    assert found.best.kind == "1f1b-as"
    (why,) = found.refused
    assert why.startswith("fbp-as: no core fits arty-a7-100t: lut: needs ")
    with pytest.raises(PlanError, match=r"^no core fits arty-a7-100t: lut: needs "):
        explore(dataclasses.replace(asked, schedules=("fbp-as",)))


@pytest.mark.parametrize("kind", KINDS)
def test_each_schedule(kind):
    asked = request(schedules=(kind,))
    found = explore(asked)
    best = found.best
    check_stages(best, asked.load(best.microbatch))
    assert best.kind == kind
    assert [each.minibatch_s for each in found.tried] == sorted(
        each.minibatch_s for each in found.tried
    )
    assert all(needed <= 40 * 2**30 for needed in best.memory_bytes)
    assert all(0 <= load <= 1 + 1e-9 for load in best.link_load)
    assert best.period_s * best.num_microbatches <= best.minibatch_s * (1 + 1e-9)


@pytest.mark.parametrize("network", ["resnet18", "lenet5"])
def test_predicted_time_is_that_of_the_simulation(network):
    asked = request(network=network)
    best = explore(asked).best
    check_stages(best, asked.load(best.microbatch))
    positions = [stage.position for stage in best.stages]
    row = device_chain(asked.cluster, positions)
    again = time_candidate(best.kind, best.microbatch, best.num_microbatches, best.stages, row)
    assert again.minibatch_s == best.minibatch_s
    assert again.memory_bytes == best.memory_bytes


def test_automatic_is_as_good_as_each_schedule_and_as_one_device():
    for cluster in (chain(), with_links(chain(), line_rate_bits_per_s=1e6)):
        best = explore(request(cluster, batch=32)).best
        for kind in tried_schedules():
            alone = explore(request(cluster, batch=32, schedules=(kind,))).best
            assert best.minibatch_s <= alone.minibatch_s
        lone = explore(request(chain(1), batch=32)).best
        assert best.minibatch_s <= lone.minibatch_s * (1 + 1e-9)


def test_slow_links_leave_devices_idle():
    assert len(explore(request(with_links(chain(), line_rate_bits_per_s=1e5))).best.stages) == 1


@pytest.mark.parametrize(("batch", "devices"), [(1, 1), (1, 4), (7, 2), (6, 30)])
def test_odd_batches_and_devices(batch, devices):
    asked = request(chain(devices), batch)
    best = explore(asked).best
    check_stages(best, asked.load(best.microbatch))
    assert len(best.stages) <= min(devices, len(asked.load(1).layers))
    assert best.microbatch * best.num_microbatches == batch


def test_unequal_devices_in_either_direction():
    cluster = load_cluster(MIXED).spec
    back = dataclasses.replace(
        cluster,
        devices=cluster.devices[::-1],
        device_names=cluster.device_names[::-1],
        links=tuple(
            dataclasses.replace(link, source=3 - link.source, destination=3 - link.destination)
            for link in cluster.links
        ),
    )
    there = explore(request(cluster, schedules=("1f1b-as",))).best
    assert there.minibatch_s == explore(request(back, schedules=("1f1b-as",))).best.minibatch_s
    positions = [stage.position for stage in there.stages]
    assert positions in (sorted(positions), sorted(positions)[::-1])


def test_devices_without_links():
    cluster = dataclasses.replace(chain(2), links=())
    assert len(explore(request(cluster)).best.stages) == 1
    found = compare(request(cluster, schedules=("1f1b-as",)), NETWORK)
    assert [entry.name for entry in found.entries] == ["one device", "1f1b-as"]
    assert found.refused == (
        "data parallel: devices that follow one another have no link for the sum of gradients",
        "even split: devices that follow one another have no link for what they send",
    )


def test_links_without_latency():
    fast = explore(request(with_links(chain(), latency_s=0.0))).best
    assert fast.minibatch_s <= explore(request()).best.minibatch_s


def test_too_little_memory_names_stage_device_amount_and_remedy():
    with pytest.raises(PlanError) as error:
        explore(request(with_memory(chain(2), 1000)))
    message = str(error.value)
    assert message.startswith("stage ")
    assert " on u280-" in message
    assert " bytes of memory " in message
    assert "1,000 usable" in message
    assert "would help" in message or "would make it fit" in message


def test_more_micro_batches_are_tried_where_fewer_do_not_fit():
    batch = 1 << 18
    asked = request(chain(1), batch, "lenet5", array=(8, 8), schedules=("1f1b-as",))
    assert explore(asked).best.num_microbatches <= ENOUGH_TRIED
    small = dataclasses.replace(asked, cluster=with_memory(asked.cluster, 8_000_000))
    assert explore(small).best.num_microbatches > ENOUGH_TRIED


@pytest.mark.parametrize(
    ("fields", "tried"),
    [({"batch": 4096}, 2), ({"batch": 8}, 1), ({"batch": 4096, "num_microbatches": 2}, 1)],
)
def test_a_search_is_repeated_only_if_there_are_more_micro_batches(fields, tried):
    asked = []

    def find(request):
        asked.append(max(splits_of(request)))
        raise PlanError("does not fit")

    with pytest.raises(PlanError, match="does not fit"):
        with_enough_splits(request(chain(1), **fields), find)
    assert len(asked) == tried
    assert asked == sorted(set(asked))


def test_memory_limits_are_kept():
    free = explore(request(chain(2), batch=64, schedules=("gpipe",))).best
    limit = int(max(free.memory_bytes)) - 1
    cluster = with_memory(chain(2), limit)
    cluster = dataclasses.replace(cluster, name="tight")
    best = explore(request(cluster, batch=64, schedules=("gpipe",))).best
    assert max(best.memory_bytes) <= limit


def test_the_simulated_peak_is_held_against_the_memory():
    best = explore(request(num_microbatches=8)).best
    small = with_memory(chain(), int(best.stages[0].state_bytes))
    with pytest.raises(PlanError, match=r"stage \d on u280-\d needs [\d,]+ bytes of memory, "):
        check_memory(best, small)


def test_plan_reads_back(tmp_path):
    asked = request()
    best = explore(asked).best
    graph = asked.load(best.microbatch)
    plan = as_plan(best, graph, NETWORK, 8, asked.cluster)
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    assert Plan.read(path) == plan
    assert plan.predicted.minibatch_s == best.minibatch_s
    assert [stage.layers for stage in plan.stages] == [stage.layers for stage in best.stages]


def test_blocking_transfers_count_as_link_load():
    best = explore(request(network="lenet5", schedules=("1f1b-sno",), num_microbatches=4)).best
    assert len(best.stages) > 1
    assert len(best.link_load) == 2 * (len(best.stages) - 1)
    assert min(best.link_load) > 0


def test_asynchronous_pipelines_keep_versions_and_count_updates():
    asked = request(network="lenet5", schedules=("pipedream",), num_microbatches=1)
    best = explore(asked).best
    first = best.stages[0]
    depth = len(best.stages)
    kept = first.state_bytes + depth * first.activation_bytes + (depth - 1) * first.weight_bytes
    assert best.memory_bytes[0] == kept
    assert best.period_s >= max(sum(stage.pass_s) for stage in best.stages) * (1 - 1e-9)


# The commands.


def test_plan_command(cli, tmp_path):
    path = tmp_path / "plan.json"
    arguments = ("plan", NETWORK, "--board", "u280", "--devices", "2", "--batch", "8")
    code, out, _ = cli(*arguments, "--json", "-o", path)
    assert code == 0
    value = json.loads(out)
    plan = Plan.read(path)
    assert value["stages"] == json.loads(plan.to_json())["stages"]
    predicted, tried = value["predicted"], min(each["minibatch_s"] for each in value["tried"])
    assert predicted["level"] == "machine"
    assert predicted["minibatch_s"] == pytest.approx(tried, rel=0.15)  # layers one by one
    code, out, _ = cli(*arguments)
    assert code == 0
    assert "the best of each schedule" in out


def test_compare_command(cli):
    """Each row is the answer of `plan` to the same question."""
    asked = (NETWORK, "--board", "u280", "--devices", "2", "--batch", "8")
    code, out, _ = cli("compare", *asked, "--json")
    assert code == 0
    value = json.loads(out)
    entries = {entry["name"]: entry for entry in value["entries"]}
    parallel, alone = entries["data parallel"], entries["one device"]
    hidden = entries["data parallel, overlapped"]
    assert {"even split", *compared_schedules()} <= set(entries)
    for entry in entries.values():
        for base, name in ((parallel, "over_data_parallel"), (alone, "over_one_device")):
            assert entry[name] == base["minibatch_s"] / entry["minibatch_s"]
        assert entry["level"] == "machine"
        assert 0 <= entry["link_load"] <= 1 + 1e-9
        assert entry["samples_per_s"] * entry["minibatch_s"] == pytest.approx(value["batch"])
    code, out, _ = cli("compare", *asked)
    assert code == 0
    assert "over data parallel" in out
    assert "samples/s" in out
    assert hidden["minibatch_s"] < parallel["minibatch_s"]
    assert entries["1f1b-as"]["minibatch_s"] < entries["even split"]["minibatch_s"]
    for name in ("1f1b-as", "fbp-as", "pipedream"):
        plan = predicted("plan", *asked, "--schedule", name, cli=cli)
        late = name == "pipedream"
        count = entries[name]["num_microbatches"]
        seconds = plan["period_s"] * count if late else plan["minibatch_s"]
        assert entries[name]["minibatch_s"] == seconds
    assert (
        parallel["minibatch_s"]
        == predicted("plan", *asked, "--strategy", "data", cli=cli)["minibatch_s"]
    )
    one = ("plan", NETWORK, "--board", "u280", "--devices", "1", "--batch", "8")
    assert alone["minibatch_s"] == predicted(*one, cli=cli)["minibatch_s"]
    tried = [entries[name]["minibatch_s"] for name in tried_schedules()]
    best = predicted("plan", *asked, cli=cli)["minibatch_s"]
    assert best <= 1.01 * min(tried)
    auto = predicted("plan", *asked, "--strategy", "auto", cli=cli)["minibatch_s"]
    assert auto <= min(best, parallel["minibatch_s"])


def predicted(*words, cli):
    """The times of what a command plans."""
    code, out, _ = cli(*words, "--json")
    assert code == 0
    return json.loads(out)["predicted"]


BOARDS = ("--board", "u280", "--devices", "2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a network, or a --profile"),
        ((NETWORK, *BOARDS, "--straight"), "--bandwidth and --straight go with --profile"),
        ((NETWORK, *BOARDS, "--array", "32x4096"), "--array must be ROWSxCOLS"),
        ((NETWORK, *BOARDS, "--array", "32x512"), "does not fit u280"),
        ((NETWORK, *BOARDS, "--array", "1024x1024"), "core rows must divide 32, not 1024"),
        (
            (NETWORK, *BOARDS, "--schedule", "1f1b-az"),
            "there is no schedule named '1f1b-az'; did you mean '1f1b-as'?",
        ),
        ((NETWORK, *BOARDS, "--schedule", "chimera"), "chimera is no schedule of plain stages"),
        ((NETWORK, *BOARDS, "--schedule", "interleaved"), "interleaved is no schedule of plain"),
        ((NETWORK, *BOARDS, "--schedule", "data-parallel"), "is no order of a pipeline: take"),
        ((NETWORK, *BOARDS, "--batch", "8", "--micro-batches", "3"), "cannot be cut into 3 equal"),
        ((NETWORK,), "give a cluster file, or --board and --devices"),
        (("--profile", "x.csv", *BOARDS), "leave out the network, board and cluster"),
        (("--profile", "x.csv"), "--profile needs --devices"),
        (
            ("--profile", "x.csv", "--devices", "2", "--html", "x"),
            "--html does not go with --profile",
        ),
        (("--profile", "x.csv", "--devices", "2"), "--profile needs --bandwidth in bytes/s"),
    ],
)
def test_senseless_options(cli, arguments, message):
    code, _, err = cli("plan", *arguments)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert message in err


def test_profile(cli, profile):
    arguments = ("plan", "--profile", profile, "--devices", "2", "--straight", "--json")
    code, out, _ = cli(*arguments, "--micro-batches", "4")
    assert code == 0
    value = json.loads(out)
    keys = {"stages", "period_s", "minibatch_time_s", "schedule", "optimal"}
    assert keys <= set(value)
    assert [stage["layers"] for stage in value["stages"]] == [["a", "b"], ["c", "d"]]
    assert [stage["replicas"] for stage in value["stages"]] == [1, 1]
    assert [stage["time_s"] for stage in value["stages"]] == [9, 9]
    assert (value["period_s"], value["schedule"], value["optimal"]) == (9, "pipedream", True)
    assert value["minibatch_time_s"] == 36
    code, out, _ = cli(*arguments, "--schedule", "1f1b-as", "--micro-batches", "4")
    assert code == 0
    assert json.loads(out)["minibatch_time_s"] == 18 + 3 * 9


def test_profile_with_replicas(cli, profile):
    code, out, _ = cli(
        "plan", "--profile", profile, "--devices", "4", "--bandwidth", "1e12", "--json"
    )
    assert code == 0
    value = json.loads(out)
    assert sum(stage["replicas"] for stage in value["stages"]) <= 4
    assert value["period_s"] == pytest.approx(18 / 4, rel=1e-3)
    assert [name for stage in value["stages"] for name in stage["layers"]] == ["a", "b", "c", "d"]


def test_profile_as_a_table(cli, profile):
    code, out, _ = cli("plan", "--profile", profile, "--devices", "2", "--straight")
    assert code == 0
    assert "period 9 s" in out


PROFILE_KINDS = (*KINDS, "pipedream")


@pytest.mark.parametrize("kind", PROFILE_KINDS)
@pytest.mark.parametrize("transfers", [("--straight",), ("--bandwidth", "1e3")])
def test_a_profile_has_the_times_of_the_simulation(cli, tmp_path, kind, transfers):
    """Every schedule of boards is one of profiles, with times that simulating its stages gives."""
    path = tmp_path / "net.csv"
    path.write_text(PROFILE.replace("c,1,1,1", "c,1,2.5,1.25"))
    seconds = {name: (f, x, w) for name, f, x, w in zip("abcd", *SECONDS, strict=True)}
    for objective in ("bottleneck", "minibatch"):
        code, out, _ = cli(
            *("plan", "--profile", path, "--devices", "2", "--micro-batches", "4", "--json"),
            *("--schedule", kind, "--objective", objective, *transfers),
        )
        value = json.loads(out)
        assert code == 0
        assert value["optimal"] == (value["gap"] == 0)
        assert value["lower_bound_s"] <= value[VALUES[objective]] * (1 + 1e-9)
        if any(stage["replicas"] > 1 for stage in value["stages"]) or kind == "zb-auto":
            continue
        passes = np.array(
            [np.sum([seconds[name] for name in each["layers"]], axis=0) for each in value["stages"]]
        )
        sent = [each["transfer_s"] for each in value["stages"]]
        num_stages, zeros = len(sent), np.zeros(len(sent))
        times = StageTimes(*passes.T, zeros, np.array(sent), np.array([0, *sent[:-1]]))
        simulated = simulate(make_schedule(kind, num_stages, 4), times)
        expected = simulated.makespan_s
        if kind == "pipedream":  # in the steady state
            expected = max(*simulated.busy_s, *(link.busy_s for link in simulated.links), 0)
        assert value["minibatch_time_s"] == pytest.approx(expected)


def test_a_schedule_from_a_file_is_planned_like_the_kind_that_it_is(cli, tmp_path):
    order = from_pytorch_csv(to_pytorch_csv(make_schedule("zb-h1", 4, 8)))
    named = request(schedules=("zb-h1",), num_microbatches=8, array=(8, 8), all_devices=True)
    kind, read = (
        explore(each).best
        for each in (named, dataclasses.replace(named, schedules=("csv",), order=order))
    )
    assert [each.layers for each in read.stages] == [each.layers for each in kind.stages]
    assert (read.minibatch_s, read.optimal) == (kind.minibatch_s, True)
    small = with_memory(chain(), 1000)
    with pytest.raises(PlanError, match=r"stage \d on u280-\d needs [\d,]+ bytes of memory, "):
        explore(dataclasses.replace(named, schedules=("csv",), order=order, cluster=small))


def test_a_profile_is_planned_with_a_schedule_from_a_file(cli, profile, tmp_path):
    path, other = tmp_path / "order.csv", tmp_path / "other.csv"
    path.write_text(to_pytorch_csv(make_schedule("1f1b-as", 2, 4)))
    other.write_text(to_pytorch_csv(make_schedule("interleaved", 2, 4)))
    plan = ("plan", "--profile", profile, "--straight", "--json")
    code, out, _ = cli(*plan, "--from-csv", path)
    value = json.loads(out)
    assert (code, value["schedule"], value["optimal"]) == (0, "csv", True)
    assert value["minibatch_time_s"] == 18 + 3 * 9
    for arguments, message in (
        (("--from-csv", path, "--devices", "3"), "has 2 stages, and there must be 3"),
        (("--from-csv", path, "--micro-batches", "3"), "has 4 micro-batches, not the 3 asked for"),
        (("--from-csv", path, "--schedule", "gpipe"), "has a schedule of its own: leave out --sch"),
        (("--from-csv", path, "--objective", "bottleneck"), "planned for the time of a mini-batch"),
        (("--from-csv", other), "this one places its stages on lines 1, 2, 1, 2; "),
    ):
        code, _, err = cli(*plan, *arguments)
        assert (code, message in err) == (2, True), err


def test_replicas_are_simulated(cli, tmp_path):
    """One layer on four devices: each takes two of eight micro-batches, and the ring is the end."""
    path = tmp_path / "net.csv"
    path.write_text("\n".join(PROFILE.splitlines()[:2]) + "\n")
    arguments = ("plan", "--profile", path, "--devices", "4", "--bandwidth", "1e3", "--json")
    for kind in ("1f1b-as", "gpipe", "zb-h1"):
        code, out, _ = cli(*arguments, "--schedule", kind, "--micro-batches", "8")
        assert code == 0
        value = json.loads(out)
        assert [stage["replicas"] for stage in value["stages"]] == [4]
        assert value["minibatch_time_s"] == pytest.approx(2 * 3 + 2 * 3 / 4 * 100 / 1e3)


def test_measured_profile(cli):
    path = Path(__file__).parents[1] / "data/vgg16_measured.csv"
    if not path.exists():
        pytest.skip("there is no tests/data/vgg16_measured.csv")
    code, out, _ = cli("plan", "--profile", path, "--devices", "4", "--straight", "--json")
    assert code == 0
    assert json.loads(out)["optimal"] is True


def test_a_network_is_no_profile(cli, tmp_path):
    path = tmp_path / "net.csv"
    path.write_text("Layer,M,N,K\nfc,4,8,8\n")
    code, _, err = cli("plan", "--profile", path, "--devices", "2", "--straight")
    assert code == 2
    assert "is no profile: its layers have shapes, not times" in err


def test_fixed_batch_onnx(tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("w", kind, (8, 4), [0.5] * 32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    ends = [helper.make_tensor_value_info(n, kind, s) for n, s in (("x", (4, 8)), ("y", (4, 4)))]
    model = helper.make_model(helper.make_graph([node], "net", ends[:1], ends[1:], [weight]))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    best = explore(request(batch=4, network=str(path), num_microbatches=1)).best
    assert best.microbatch == 4


@pytest.mark.parametrize("bandwidth", ["1e3", "30"])
def test_replicas_add_up_their_gradients_at_each_late_update(cli, tmp_path, bandwidth):
    """Whichever weights backward passes use: an update comes after each micro-batch."""
    path = tmp_path / "net.csv"
    path.write_text(PROFILE)
    found = []
    for kind in ("pipedream", "pipedream-newest"):
        code, out, _ = cli(
            *("plan", "--profile", path, "--devices", "3", "--micro-batches", "6", "--json"),
            *("--schedule", kind, "--objective", "minibatch", "--bandwidth", bandwidth),
        )
        assert code == 0
        found.append(json.loads(out))
    assert any(stage["replicas"] > 1 for stage in found[0]["stages"])
    assert found[0]["minibatch_time_s"] == found[1]["minibatch_time_s"]
