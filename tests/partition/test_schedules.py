"""Schedules against closed forms, published numbers, and their own text forms."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpgapipe.lowering.schedule.pytorch_csv import from_pytorch_csv, to_pytorch_csv
from fpgapipe.lowering.schedule.schedule import (
    Lane,
    Schedule,
    ScheduleError,
    Task,
    TaskKind,
    parse,
)
from fpgapipe.partition.schedule.interleaved import interleaved
from fpgapipe.partition.schedule.replicated import replicated
from fpgapipe.partition.schedule.schedule_kind import ScheduleKind
from fpgapipe.partition.schedule.schedule_kinds import SCHEDULES, make_schedule
from fpgapipe.partition.schedule.schedule_rules import check_schedule
from fpgapipe.partition.schedule.zero_bubble import zb_auto
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

KINDS = tuple(name for name in SCHEDULES.own if not SCHEDULES[name].make_for)
seconds = st.floats(0.01, 10)
sizes = {"n": st.integers(1, 9), "m": st.integers(1, 20), "f": seconds, "b": seconds}


def run(kind, n, m, f, b, transfer=0.0, **more):
    """Simulate a kind with equal stages, the backward pass split in half."""
    schedule = make_schedule(kind, n, m)
    times = StageTimes.uniform(schedule.num_stages, f, b / 2, b / 2, transfer_s=transfer, **more)
    return simulate(schedule, times)


# Closed forms ----------------------------------------------------------------------------------


@given(**sizes)
def test_flush_schedules_take_m_plus_n_minus_1_steps(n, m, f, b):
    for kind in ("gpipe", "1f1b", "1f1b-as", "1f1b-sno", "1f1b-so", "pipedream"):
        assert run(kind, n, m, f, b).makespan_s == pytest.approx((m + n - 1) * (f + b))


@given(**sizes)
def test_two_engines_take_m_plus_2n_minus_1_steps(n, m, f, b):
    assert run("fbp-as", n, m, f, b).makespan_s == pytest.approx((m + 2 * n - 1) * (f + b))


@given(**sizes, share=st.floats(0, 1))
def test_streamed_transfers_cost_nothing_while_they_are_shorter_than_the_pass(n, m, f, b, share):
    transfer = share * min(f, b)
    assert run("1f1b-as", n, m, f, b, transfer).makespan_s == pytest.approx((m + n - 1) * (f + b))


@given(**sizes, share=st.floats(0, 1))
def test_blocking_transfers_stay_within_their_bound(n, m, f, b, share):
    transfer = share * min(f, b)
    bound = (m + n - 1) * (f + b) + max(m + n - 2, 0) * 2 * transfer
    assert run("1f1b-sno", n, m, f, b, transfer).makespan_s <= bound * (1 + 1e-9)


@given(n=st.integers(1, 8), extra=st.integers(0, 20), f=seconds, b=seconds, share=st.floats(0, 1))
def test_twice_the_warm_up_hides_transfers(n, extra, f, b, share):
    """Holds for SR up to half of F + B, where F and B each cover the transfer of their result."""
    transfer = share * min(f, b, (f + b) / 2)
    m = 2 * n + extra
    form = (m + n - 1) * (f + b) + (n - 1) * 2 * transfer
    assert run("1f1b-so", n, m, f, b, transfer).makespan_s == pytest.approx(form)


@given(n=st.integers(1, 6), m=st.integers(1, 30), f=seconds, b=seconds)
def test_data_parallel_takes_its_share_of_the_whole_network(n, m, f, b):
    schedule = make_schedule("data-parallel", n, m)
    times = StageTimes.uniform(n, n * f, n * b / 2, n * b / 2, update_s=3.0)
    rounds = -(-m // n)
    assert simulate(schedule, times).makespan_s == pytest.approx(rounds * n * (f + b) + 3.0)


@given(n=st.integers(1, 6), units=st.integers(1, 5), chunks=st.integers(1, 4), f=seconds, b=seconds)
def test_interleaving_divides_the_bubble_by_the_chunks(n, units, chunks, f, b):
    """Source: Narayanan et al., SC 2021: bubble over ideal time is (p - 1) / (v m)."""
    m = n * units
    schedule = interleaved(n, m, chunks)
    times = StageTimes.uniform(n * chunks, f / chunks, b / 2 / chunks, b / 2 / chunks)
    ideal = m * (f + b)
    expected = ideal * (1 + (n - 1) / (chunks * m))
    assert simulate(schedule, times).makespan_s == pytest.approx(expected)


@given(half=st.integers(1, 6), units=st.integers(1, 4), f=seconds)
def test_chimeras_bubble(half, units, f):
    """Source: Li and Hoefler, SC 2021: (D - 2) / (2 T + D - 2) where F = B."""
    d = 2 * half
    m = d * units
    rate = run("chimera", d, m, f, f).bubble_rate
    assert rate == pytest.approx((d - 2) / (2 * m + d - 2), abs=1e-9)


@given(**sizes)
def test_features_kept_are_those_of_the_table(n, m, f, b):
    ones = range(n, 0, -1)
    for kind, expected in {
        "gpipe": [m] * n,
        "1f1b-as": [min(i, m) for i in ones],
        "1f1b-sno": [min(i, m) for i in ones],
        "1f1b-so": [min(2 * i - 1, m) for i in ones],
        "fbp-as": [min(2 * i - 1, m) for i in ones],
    }.items():
        assert list(run(kind, n, m, f, b).peak_microbatches()) == expected


# Published and derived numbers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "m", "transfer", "expected"),
    [
        (4, 8, 0.5, (33, 42.5, 41, 36, 45)),
        (4, 16, 0.5, (57, 74.5, 71, 60, 69)),
        (8, 32, 0.5, (117, 154.5, 151, 124, 141)),
        (8, 32, 1.0, (117, 192, 185, 131, 141)),
        (4, 64, 1.0, (201, 332, 301, 207, 213)),
    ],
)
def test_check_values(n, m, transfer, expected):
    kinds = ("1f1b-as", "1f1b-sno", "1f1b", "1f1b-so", "fbp-as")
    assert tuple(run(kind, n, m, 1, 2, transfer).makespan_s for kind in kinds) == expected


@pytest.mark.parametrize(
    ("p", "m", "tf", "tb", "tw", "hop", "rates"),
    [
        (8, 24, 18.522, 18.086, 9.337, 0.601, (0.2431, 0.1585, 0.1083)),
        (8, 64, 18.546, 18.097, 9.321, 0.762, (0.1240, 0.0674, 0.0444)),
        (8, 32, 29.802, 29.428, 19.530, 0.577, (0.1898, 0.1045, 0.0559)),
        (16, 64, 11.307, 11.254, 8.101, 0.379, (0.2082, 0.1088, 0.0516)),
        (32, 128, 10.408, 10.204, 7.703, 0.408, (0.2168, 0.1106, 0.0490)),
    ],
)
def test_published_bubble_rates(p, m, tf, tb, tw, hop, rates):
    """Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024; to four digits."""
    times = StageTimes.uniform(p, tf, tb, tw, transfer_s=hop)
    found = [
        round(simulate(make_schedule(kind, p, m), times).bubble_rate, 4)
        for kind in ("1f1b", "zb-h1", "zb-h2")
    ]
    assert tuple(found) == rates


def test_zero_bubble_with_equal_times():
    times = StageTimes.uniform(4, 1, 1, 1)
    spans = [
        simulate(make_schedule(kind, 4, 8), times).span_s for kind in ("1f1b", "zb-h1", "zb-h2")
    ]
    assert spans == [33, 27, 24]
    assert simulate(make_schedule("zb-h1", 4, 8), times).peak_microbatches() == (4, 4, 4, 4)
    assert simulate(make_schedule("zb-h2", 4, 8), times).peak_microbatches() == (7, 7, 7, 7)


# zb-auto ---------------------------------------------------------------------------------------

durations = st.lists(st.floats(0.1, 3), min_size=6, max_size=6)


@settings(max_examples=40)
@given(
    p=st.integers(1, 6),
    m=st.integers(1, 14),
    extra=st.integers(0, 6),
    f=durations,
    b=durations,
    w=durations,
    hop=st.floats(0, 1),
)
def test_zb_auto_is_never_worse_than_zb_h1(p, m, extra, f, b, w, hop):
    times = StageTimes.uniform(p, f[:p], b[:p], w[:p], transfer_s=hop)
    found = simulate(zb_auto(p, m, times, memory_limit=p + extra), times)
    handmade = simulate(make_schedule("zb-h1", p, m), times)
    assert found.span_s <= handmade.span_s * (1 + 1e-9)
    assert found.makespan_s <= handmade.makespan_s * (1 + 1e-9)
    assert max(found.peak_microbatches()) <= p + extra


@settings(max_examples=30)
@given(p=st.integers(1, 6), m=st.integers(1, 14), limit=st.integers(1, 6))
def test_zb_auto_keeps_small_limits(p, m, limit):
    times = StageTimes.uniform(p, 1, 1, 1)
    assert (
        max(simulate(zb_auto(p, m, times, memory_limit=limit), times).peak_microbatches()) <= limit
    )


def test_zb_auto_reaches_zero_bubble_where_there_is_room():
    times = StageTimes.uniform(4, 1, 1, 1)
    assert simulate(zb_auto(4, 8, times, memory_limit=7), times).span_s == 24


# Text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 2), (4, 8)])
def test_text_is_read_back(kind, n, m):
    if kind == "chimera" and n == 1:
        return
    schedule = make_schedule(kind, n, m)
    again = parse(str(schedule))
    assert str(again) == str(schedule)
    assert again.lanes == schedule.lanes
    assert again.routes == schedule.routes
    np.testing.assert_array_equal(again.route_of, schedule.route_of)


def test_text_by_hand():
    lines = str(make_schedule("zb-h1", 2, 2)).splitlines()
    assert lines[-2:] == [
        "device 0 compute: F0@0 F1@0 dX0@0 dW0@0 dX1@0 dW1@0 U@0",
        "device 1 compute: F0@1 dX0@1 F1@1 dX1@1 dW0@1 dW1@1 U@1",
    ]


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-sno", "interleaved", "zb-h2"])
def test_pytorch_csv_is_read_back(kind):
    schedule = make_schedule(kind, 4, 8)
    again = from_pytorch_csv(to_pytorch_csv(schedule))
    assert again.placement == schedule.placement
    for ours, theirs in zip(schedule.lanes, again.lanes, strict=True):
        assert list(theirs) == list(ours)


def test_pytorch_csv_of_pytorch():
    """A text has the form of PyTorch's own 1F1B and zero-bubble schedules, idle cells included."""
    schedule = from_pytorch_csv("0F0,0F1,,,0B0,,0B1\n,1F0,1I0,1F1,1W0,1B1,\n")
    assert schedule.placement == (0, 1)
    assert str(schedule.lanes[1].kinds.tolist()) == "[0, 2, 0, 3, 1, 4]"
    assert simulate(schedule, StageTimes.uniform(2, 1, 1, 1)).makespan_s > 0


@pytest.mark.parametrize("kind", ["zb-h1", "1f1b-sno"])
def test_a_file_of_pytorch_is_timed_like_the_schedule_that_it_is(cli, tmp_path, kind):
    path, times = tmp_path / "order.csv", ("--tf", "1.5", "--tcomm", "0.25", "--json")
    sizes = ("--stages", "3", "--micro-batches", "5")
    code, out, _ = cli("schedule", kind, *sizes, *times, "--csv", path)
    assert code == 0
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    for more in ((), sizes):
        code, again, _ = cli("schedule", "--from-csv", path, *times, *more)
        assert code == 0
        assert json.loads(again) == json.loads(out) | {"kind": "csv"}


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (b"0F0,0B0\n1F0,1B0\n", ("gpipe",), "--from-csv has a schedule of its own: leave out"),
        (b"0F0,0B0\n", ("--stages", "2"), "order.csv: has 1 device, not the 2 asked for"),
        (b"0F0,0B0\n", ("--micro-batches", "3"), "order.csv: has 1 micro-batch, not the 3 asked"),
        (b"", (), "order.csv: the schedule is empty; it has a line of tasks for each device"),
        (b"0F0,\xff\n", (), "order.csv: line 1: must be UTF-8 text, not byte 0xff"),
        (b"0F0,0B0\n1F0,1B0,1x\n", (), "order.csv: line 2, column 9: '1x' is no action; there"),
        (b"0F0\n", (), "order.csv: line 1: 0B0 is missing"),
        (b"0F0,0B0\n1B0,1F0\n", (), "order.csv: the schedule deadlocks: B0@1 on device 1 waits"),
    ],
)
def test_files_that_are_no_schedules(cli, tmp_path, data, arguments, message):
    path = tmp_path / "order.csv"
    path.write_bytes(data)
    code, _, err = cli("schedule", "--from-csv", path, *arguments)
    assert code == 2
    assert message in err


def test_a_file_that_is_too_large(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("fpgapipe.lowering.schedule.pytorch_csv.MAX_TASKS", 4)
    path = tmp_path / "order.csv"
    path.write_text("0F0,0B0,0F1,0B1,0F2,0B2\n")
    code, _, err = cli("schedule", "--from-csv", path)
    assert (code, "line 1, column 17: more than 4 tasks" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "name a kind of schedule, or a file"), (("gpipe",), "gpipe needs --stages")],
)
def test_a_schedule_without_its_numbers(cli, arguments, message):
    code, _, err = cli("schedule", *arguments)
    assert (code, message in err) == (2, True)


def test_pytorch_reads_what_we_write():
    pipelining = pytest.importorskip(
        "torch.distributed.pipelining.schedules", reason="needs the torch extra"
    )
    rows = to_pytorch_csv(make_schedule("zb-h1", 3, 4)).splitlines()
    for row in rows:
        for cell in row.split(","):
            assert str(pipelining._Action.from_str(cell)) == cell


def test_sums_of_gradients_are_part_of_the_updates():
    text = (
        "0F0,0F1,0B0,2F0,2F1,2B0,2B1,2REDUCE_GRAD,0B1,0REDUCE_GRAD\n1F0,1F1,1B0,1B1,1REDUCE_GRAD\n"
    )
    plain = "0F0,0F1,0B0,2F0,2F1,2B0,2B1,0B1\n1F0,1F1,1B0,1B1\n"
    found = from_pytorch_csv(text)
    assert str(found) == str(from_pytorch_csv(plain))


def test_the_sums_that_pytorch_adds():
    pipelining = pytest.importorskip(
        "torch.distributed.pipelining.schedules", reason="needs the torch extra"
    )
    rows = to_pytorch_csv(make_schedule("1f1b", 3, 4)).splitlines()
    found = []
    for row in rows:
        cells = [pipelining._Action.from_str(cell) for cell in row.split(",")]
        found.append(",".join(map(str, pipelining._add_reduce_grad(cells, 4))))
    text = "\n".join(found)
    assert text.count("REDUCE_GRAD") == 3
    assert str(from_pytorch_csv(text)) == str(from_pytorch_csv("\n".join(rows)))


# Refusals --------------------------------------------------------------------------------------

GOOD = str(make_schedule("1f1b", 2, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("F0@0", "G0@0"), "schedule line 7: 'G0@0' is no task; a task is such as F3@1 or dX0@2"),
        (("F0@0", "F0"), "schedule line 7: 'F0' is no task; a task is such as F3@1 or dX0@2"),
        (("route 0 1", "route 0 7"), "schedule route 0 names a stage that has no placement"),
        (("microbatches 2", "microbatches two"), "schedule lacks, or has no single value for, "),
        (("microbatches 2", "microbatches 0"), "schedule needs a route, a placement and 1..2**24"),
        (("transfer after", "transfer soon"), "schedule transfer must be stream, after or block"),
        (("placement", "places"), "schedule line 5: begins with 'places', which is no part of a"),
        (("route 0 1", "route 0 1 for 0"), "schedule"),
    ],
)
def test_text_with_faults(change, message):
    text = GOOD.replace(*change)
    assert text != GOOD
    if change[1].endswith("for 0"):
        parse(text)  # one route takes all, said or not
        return
    with pytest.raises(ScheduleError) as error:
        parse(text)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X1", "line 1, column 5: '0X1' is no action; there are stage, F, B, I, W, SEND_F"),
        ("0F0,(0F1;0B0)OVERLAP_F_B", "line 1, column 5: '(0F1;0B0)OVERLAP_F_B' is no action that"),
        ("0F0\n0F1", "line 2, column 1: stage 0 is on line 1 already; a stage is on one device"),
        ("0F0,0F1, 0F0", "line 1, column 10: 0F0 is in line 1, column 1 already"),
        ("1F0", "stages must be numbered from 0 without a gap: 0 is missing"),
        ("0F1", "micro-batches must be numbered from 0 without a gap: 0 is missing"),
        ("0F9999999", "micro-batches must be numbered from 0 without a gap: 0 is missing"),
        ("0F99999999", "line 1, column 1: '0F99999999' is no action"),
        ("", "the schedule is empty; it has a line of tasks for each device"),
        (",,\n \n", "the schedule is empty; it has a line of tasks for each device"),
        ("0F0\n,\n1F0", "line 2: has no task; each line is a device"),
        ("0F0,0F1,0B0", "line 1: 0B1 is missing"),
        ("0F0,0I0", "line 1: 0W0 is missing"),
        ("0F0,0F1,0B1,0B0\n1F0,1B0,1B1", "line 2: 1F1 is missing"),
        ("0F0,0B0,0SEND_F0\n1F0,1B0", "line 1: 0RECV_B0 is missing"),
        (
            "0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0",
            "line 1, column 1: 0SEND_F0 comes before 0F0",
        ),
        ("0REDUCE_GRAD,0F0,0B0", "line 1, column 1: 0REDUCE_GRAD comes before the gradients"),
        ("0F0,0B0\n1F0,0REDUCE_GRAD,1B0", "line 2, column 5: 0REDUCE_GRAD comes before the grad"),
        ("0F0,0F1,0B0,0REDUCE_GRAD,0B1", "line 1, column 13: 0REDUCE_GRAD comes before 0B1"),
        ("0F0,0I0,0REDUCE_GRAD,0W0", "line 1, column 9: 0REDUCE_GRAD comes before 0W0"),
        (
            "0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD",
            "line 1, column 22: 0REDUCE_GRAD is in line 1, column 9 already",
        ),
        ("0F0,0B0,0REDUCE_GRAD0", "line 1, column 9: '0REDUCE_GRAD0' is no action"),
        ("0UNSHARD,0F0", "line 1, column 1: '0UNSHARD' is no action that is read (no overlapped"),
        ("\x00\x01", "line 1, column 1: '\\x00\\x01' is no action"),
    ],
)
def test_csv_with_faults(text, message):
    with pytest.raises(ScheduleError) as error:
        from_pytorch_csv(text)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "n", "m", "message"),
    [
        ("1f1c", 2, 2, "there is no schedule named '1f1c'; did you mean '1f1b'?"),
        ("gpipe", 0, 2, "gpipe needs 1..65536 devices, not 0"),
        ("gpipe", 2, 0, "gpipe needs 1..16777216 micro-batches, not 0"),
        ("chimera", 3, 3, "chimera needs an even number of devices, not 3"),
        ("chimera", 4, 6, "chimera needs a multiple of 4 micro-batches, not 6"),
        ("interleaved", 4, 6, "interleaved needs a multiple of 4 micro-batches"),
    ],
)
def test_kinds_that_cannot_be_made(kind, n, m, message):
    with pytest.raises(ScheduleError) as error:
        make_schedule(kind, n, m)
    assert str(error.value).startswith(message)


def test_csv_has_no_second_engine():
    with pytest.raises(ScheduleError, match="fbp-as has two engines a device"):
        to_pytorch_csv(make_schedule("fbp-as", 2, 2))


def test_a_lane_prints_its_tasks():
    lane = Lane.of(3, "compute", [(0, 3, 1), (4, 3, -1)])
    assert [str(task) for task in lane] == ["F1@3", "U@3"]
    assert list(lane) == [Task(TaskKind.F, 3, 1), Task(TaskKind.U, 3, -1)]
    assert isinstance(make_schedule("gpipe", 1, 1), Schedule)


PLAIN = ("gpipe", "1f1b", "1f1b-as", "fbp-as", "1f1b-sno", "1f1b-so", "zb-h1", "zb-h2", "pipedream")


@pytest.mark.parametrize("kind", PLAIN)
def test_schedules_with_replicas_are_sound(kind):
    """Every replica does its micro-batches, in an order that runs to its end."""
    for replicas in ((1, 1), (3,), (2, 1), (1, 2, 1), (3, 1, 2), (1, 4), (2, 2, 3)):
        for count in (1, 2, 6, 7):
            schedule = replicated(kind, replicas, count)
            assert check_schedule(schedule).faults == ()
            times = StageTimes.uniform(sum(replicas), 1, 1, 1, transfer_s=0.1)
            assert simulate(schedule, times).makespan_s > 0
    assert str(replicated(kind, (1, 1, 1), 4)) == str(make_schedule(kind, 3, 4))


@pytest.mark.parametrize("name", SCHEDULES.own)
def test_a_kind_says_what_its_schedules_are(name):
    kind = SCHEDULES[name]
    made = kind.make(2, 2)
    assert kind.name == name
    assert kind.num_engines == 1 + made.splits_engines
    plain = made.placement == (0, 1) and made.routes == ((0, 1),)
    assert plain == (not kind.not_built)
    assert plain == (kind.model is not None)
    assert kind.takes_chunks == (name == "interleaved")


def test_a_kind_that_makes_other_schedules(monkeypatch):
    odd = ScheduleKind("odd", SCHEDULES["fbp-as"].make)
    monkeypatch.setattr(SCHEDULES, "own", {"odd": odd})
    with pytest.raises(ScheduleError) as raised:
        make_schedule("odd", 2, 2)
    assert str(raised.value) == (
        "odd must make schedules named odd for 1 engines, not fbp-as for 2; mend the package that "
        "offers it"
    )


def test_a_limit_of_memory_is_for_orders_that_are_searched(cli):
    numbers = ("--stages", 2, "--micro-batches", 4, "--memory-limit", 3)
    assert cli("schedule", "zb-auto", *numbers)[0] == 0
    code, _, err = cli("schedule", "gpipe", *numbers)
    assert code == 2
    assert err == (
        "error: --memory-limit is for schedules that are made for given times, such as zb-auto; "
        "gpipe has an order of its own\n"
    )


def test_chunks_are_for_kinds_with_several_stages_on_a_device(cli, tmp_path):
    numbers = ("--stages", 2, "--micro-batches", 4)
    assert cli("schedule", "interleaved", *numbers, "--chunks", 3)[0] == 0
    for kind in ("gpipe", "zb-auto"):
        code, _, err = cli("schedule", kind, *numbers, "--chunks", 3)
        assert code == 2
        assert err.endswith(f"such as interleaved; {kind} has one\n")
    order = tmp_path / "order.csv"
    assert cli("schedule", "gpipe", *numbers, "--csv", order)[0] == 0
    code, _, err = cli("schedule", "--from-csv", order, "--chunks", 3)
    assert code == 2
    assert err == "error: --chunks is for interleaved; --from-csv has an order of its own\n"
    with pytest.raises(ScheduleError, match=r"^gpipe has one stage on each device: leave out chun"):
        make_schedule("gpipe", 2, 4, chunks=3)


def test_a_kind_for_given_times_has_no_order():
    with pytest.raises(ScheduleError, match=r"^schedule zb-auto has no order of its own, but sear"):
        make_schedule("zb-auto", 2, 2)


def test_a_schedule_of_many_devices_is_read_and_checked_soon():
    """The effort grew with the square of the devices: five thousand took minutes."""
    text = "\n".join(f"{device}F0,{device}B0" for device in range(5000))
    verdict = check_schedule(from_pytorch_csv(text))
    assert not verdict.faults
    assert verdict.weight_versions == (1,) * 5000
