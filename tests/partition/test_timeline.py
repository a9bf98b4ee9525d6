"""The event simulation and the rule checker: times, links, FIFOs, memory, deadlock, size."""

import dataclasses
import itertools

import numpy as np
import pytest

from fpgapipe.lowering.schedule.schedule import Lane, ScheduleError, TaskKind, parse
from fpgapipe.partition.schedule.schedule_kinds import SCHEDULES, make_schedule
from fpgapipe.partition.schedule.schedule_rules import check_schedule, least_fifo_depth
from fpgapipe.partition.timeline import event_graph
from fpgapipe.partition.timeline.timeline import DeadlockError, StageTimes, simulate

KINDS = tuple(name for name in SCHEDULES.own if not SCHEDULES[name].make_for)


def changed(schedule, lane, order):
    """A schedule with the tasks of a lane in another order (positions into the present one)."""
    old = schedule.lanes[lane]
    new = Lane(old.device, old.engine, old.kinds[order], old.stages[order], old.microbatches[order])
    lanes = (*schedule.lanes[:lane], new, *schedule.lanes[lane + 1 :])
    return dataclasses.replace(schedule, lanes=lanes)


def reference(schedule, times, fifo_depth=None):
    """Times by brute force: every start is raised until nothing changes. Slow and obvious."""
    duration = {
        TaskKind.F: times.forward_s,
        TaskKind.B: times.input_gradient_s + times.weight_gradient_s,
        TaskKind.DX: times.input_gradient_s,
        TaskKind.DW: times.weight_gradient_s,
        TaskKind.U: times.update_s,
    }
    before, after = (table.max(axis=0) for table in schedule.neighbours())
    lanes = [[(t.kind, t.stage, t.microbatch) for t in lane] for lane in schedule.lanes]
    where = {task: i for i, lane in enumerate(lanes) for task in lane}
    start = dict.fromkeys(where, 0.0)
    sends = []  # (lane position order, producer, consumer, transfer time)
    for lane in lanes:
        for kind, stage, number in lane:
            if kind == TaskKind.F and after[stage] >= 0:
                sends.append(((kind, stage, number), (TaskKind.F, after[stage], number)))
            if kind in (TaskKind.B, TaskKind.DX) and before[stage] >= 0:
                user = (kind, before[stage], number)
                sends.append(((kind, stage, number), user))
    sent = dict.fromkeys([s[0] for s in sends], 0.0)

    def end(task):
        return start[task] + float(duration[task[0]][task[1]])

    def hop(producer):
        table = times.activations_s if producer[0] == TaskKind.F else times.gradients_s
        return float(table[producer[1]])

    for _ in range(10_000):
        stable = True

        def at_least(table, key, value):
            nonlocal stable
            if table[key] < value - 1e-12:
                table[key] = value
                stable = False

        for lane in lanes:
            for a, b in itertools.pairwise(lane):
                at_least(start, b, end(a))
        for task in where:
            kind, stage, number = task
            if kind in (TaskKind.B, TaskKind.DX):
                at_least(start, task, end((TaskKind.F, stage, number)))
            if kind == TaskKind.DW:
                at_least(start, task, end((TaskKind.DX, stage, number)))
        channels = {}
        for producer, user in sends:
            stream = schedule.transfer == "stream"
            at_least(sent, producer, start[producer] if stream else end(producer))
            link = (schedule.placement[producer[1]], schedule.placement[user[1]])
            channels.setdefault(link, []).append((producer, user))
            arrival = sent[producer] + hop(producer) + times.latency_s
            at_least(start, user, arrival)
            at_least(start, user, end(producer) + times.latency_s)
        for channel in channels.values():
            for (a, _), (b, _) in itertools.pairwise(channel):
                at_least(sent, b, sent[a] + hop(a))
            if fifo_depth:
                for (_, user), (b, _) in zip(channel, channel[fifo_depth:], strict=False):
                    at_least(sent, b, start[user])
        if stable:
            return max(end(task) for task in where)
    raise AssertionError("no fixed point")


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "1f1b-as", "1f1b-so", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("seed", range(6))
def test_times_equal_a_fixed_point_by_brute_force(kind, seed):
    rng = np.random.default_rng([seed, len(kind)])
    n, m = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    schedule = make_schedule(kind, n, m)
    values = [rng.uniform(0, 2, n) for _ in range(6)]
    times = StageTimes(*values, latency_s=float(rng.uniform(0, 0.5)))
    for depth in (None, 1, 2):
        found = simulate(schedule, times, fifo_depth=depth).makespan_s
        assert found == pytest.approx(reference(schedule, times, depth))


def test_a_pipeline_of_two_by_hand():
    times = StageTimes.uniform(2, [1, 2], [1, 1], [1, 0], transfer_s=[0.5, 0.25], latency_s=0.125)
    timeline = simulate(make_schedule("1f1b", 2, 2), times)
    assert timeline.start_s[1].tolist() == [1.625, 3.625, 4.625, 6.625, 7.625]
    assert timeline.start_s[0].tolist() == [0, 1, 5.0, 8.0, 10.0]
    (forth, back) = timeline.links
    assert (forth.source, forth.destination, back.source, back.destination) == (0, 1, 1, 0)
    assert forth.start_s.tolist() == [1, 2]
    assert back.start_s.tolist() == [4.625, 7.625]
    assert back.busy_s == 0.5
    assert timeline.makespan_s == 10.0
    assert timeline.busy_s == (6.0, 6.0)


def test_times_may_differ_by_micro_batch():
    forward = np.array([[1.0, 5.0], [1.0, 1.0]])
    rest = np.ones((2, 2))
    times = StageTimes(forward, rest, rest, np.zeros(2), np.zeros(2), np.zeros(2))
    timeline = simulate(make_schedule("gpipe", 2, 2), times)
    assert timeline.start_s[1].tolist()[:2] == [1, 6]


def test_memory_in_bytes():
    timeline = simulate(make_schedule("gpipe", 2, 3), StageTimes.uniform(2, 1, 1, 1))
    assert timeline.peak_activations(np.array([10.0, 7.0])) == (30.0, 21.0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_sound(kind):
    schedule = make_schedule(kind, 4, 8)
    verdict = check_schedule(schedule)
    assert verdict.is_sound, verdict.faults
    assert verdict.fifo_depth == 1
    ones = StageTimes.uniform(schedule.num_stages, 1, 1, 1)
    assert simulate(schedule, ones).peak_microbatches() <= verdict.peak_microbatches


def test_weight_versions_of_pipedream():
    assert check_schedule(make_schedule("pipedream", 4, 8)).weight_versions == (4, 3, 2, 1)


# Deadlock --------------------------------------------------------------------------------------


def test_tasks_that_wait_for_one_another_are_named():
    schedule = changed(make_schedule("1f1b", 2, 2), 1, [1, 0, 2, 3, 4])  # B0 before F0
    with pytest.raises(DeadlockError) as error:
        simulate(schedule, StageTimes.uniform(2, 1, 1, 1))
    assert error.value.cycle == [
        "B0@1 on device 1 waits for F0@1 on device 1, which comes after B0@1 on device 1"
    ]
    assert check_schedule(schedule).fifo_depth is None
    assert not check_schedule(schedule).is_sound


def test_a_full_link_deadlocks_and_the_depth_is_found():
    # Device 1 takes micro-batch 2 first: three results must fit before the first one is taken.
    schedule = changed(make_schedule("gpipe", 2, 3), 1, [2, 0, 1, 3, 4, 5, 6])
    times = StageTimes.uniform(2, 1, 1, 1)
    assert least_fifo_depth(schedule) == 3
    assert simulate(schedule, times, fifo_depth=3).makespan_s > 0
    with pytest.raises(DeadlockError) as error:
        simulate(schedule, times, fifo_depth=2)
    text = str(error.value)
    assert "F2@1 on device 1 waits for SF2@0 on device 0" in text
    assert "SF2@0 on device 0 waits for F0@1 on device 1, which comes after F2@1" in text
    verdict = check_schedule(schedule, fifo_depth=2)
    assert verdict.fifo_depth == 3
    assert verdict.faults == (text,)


def test_blocking_sends_wait_for_room():
    schedule = make_schedule("1f1b-sno", 3, 6)
    times = StageTimes.uniform(3, [1, 5, 1], 1, 1, transfer_s=0.1)
    free = simulate(schedule, times)
    tight = simulate(schedule, times, fifo_depth=1)
    # The slow stage takes the second result late, and the third send waits for that.
    assert tight.end_s[0][5] > free.end_s[0][5]


# Rules -----------------------------------------------------------------------------------------

GOOD = str(make_schedule("zb-h1", 2, 2))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("F0@0 F1@0", "F0@0 F0@0"), "F0@0 is there 2 times"),
        (("F0@0 F1@0", "F0@0"), "F1@0 is missing"),
        (("dX0@0 dW0@0", "dX0@0"), "dW0@0 is missing"),
        (("dX0@0 dW0@0", "dW0@0"), "dX0@0 is missing"),
        (("dX0@0 dW0@0", "dX0@0 dW0@0 B0@0"), "B0@0 is there beside a split backward pass"),
        (("F0@0 F1@0", "F0@0 F1@0 F0@1"), "F0@1 is there 2 times"),
        (("F0@0 F1@0", "F0@0 F1@0 F9@0"), "F9@0 names a stage or micro-batch that there is not"),
        (("dW1@0 U@0", "U@0 dW1@0"), "dW1@0 comes after the update"),
        (("dW1@0 U@0", "dW1@0"), "stage 0 has 0 updates, not 1"),
        (("placement 0 1", "placement 1 0"), "F0@0 is on device 0, its stage on 1"),
    ],
)
def test_broken_rules(change, fault):
    text = GOOD.replace(*change, 1)
    assert text != GOOD
    assert fault in check_schedule(parse(text)).faults


def test_many_faults_are_counted():
    lanes = GOOD.partition("device 0")[0]
    faults = check_schedule(parse(lanes.replace("microbatches 2", "microbatches 50"))).faults
    assert len(faults) == 21
    assert faults[-1].startswith("and ")


def test_memory_limits():
    verdict = check_schedule(make_schedule("gpipe", 2, 5), memory_limit=[5, 4])
    assert verdict.faults == (
        "device 1 keeps the activations of 5 micro-batches, it has room for 4",
    )


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_times_must_be_times(value):
    with pytest.raises(ScheduleError, match="forward_s must be finite and at least 0 s"):
        StageTimes.uniform(2, [1, value], 1, 1)


def test_numbers_of_stages_must_agree():
    with pytest.raises(ScheduleError, match="gpipe has 3 stages, the times have 2"):
        simulate(make_schedule("gpipe", 3, 3), StageTimes.uniform(2, 1, 1, 1))
    with pytest.raises(ScheduleError, match="a link holds at least 1 result, not 0"):
        simulate(make_schedule("gpipe", 2, 3), StageTimes.uniform(2, 1, 1, 1), fifo_depth=0)


# Size ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["1f1b-as", "zb-h1", "fbp-as", "1f1b-sno"])
def test_compiled_and_plain_loop_agree(kind, monkeypatch):
    pytest.importorskip("numba", reason="needs the fast extra")
    rng = np.random.default_rng(1)
    schedule = make_schedule(kind, 7, 40)
    times = StageTimes(*(rng.uniform(0, 2, 7) for _ in range(6)), latency_s=0.1)
    plain = simulate(schedule, times, fifo_depth=2)
    monkeypatch.setattr(event_graph, "COMPILED_FROM_TASKS", 0)
    compiled = simulate(schedule, times, fifo_depth=2)
    for a, b in zip(plain.start_s, compiled.start_s, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_long_schedule():
    schedule = make_schedule("1f1b-as", 4, 30_000)
    timeline = simulate(schedule, StageTimes.uniform(4, 1, 1, 1, transfer_s=0.5))
    assert timeline.makespan_s == pytest.approx(3 * (30_000 + 3))


def test_a_wide_schedule():
    schedule = make_schedule("zb-h1", 300, 300)
    assert simulate(schedule, StageTimes.uniform(300, 1, 1, 1)).makespan_s > 0


def test_results_that_stream_may_be_used_before_they_are_whole():
    """The user begins 0.5 before its features are whole; gradients come 0.25 after their end."""
    fields = StageTimes.uniform(2, 2, 2, 0, transfer_s=0.5, latency_s=0.125)
    lags = {"activations_lag_s": np.array([-0.5, 0.0]), "gradients_lag_s": np.full((2, 2), 0.25)}
    schedule = make_schedule("1f1b-as", 2, 2)
    timeline = simulate(schedule, dataclasses.replace(fields, **lags))
    assert timeline.start_s[1].tolist()[:2] == [1.5, 3.5]  # F0, B0
    assert timeline.start_s[0].tolist()[:3] == [0, 2, 5.75]  # F0, F1, B0
    # A link that is slower than its maker holds up all the same.
    slow = dataclasses.replace(fields, activations_s=np.array([3.0, 0.0]), **lags)
    assert simulate(schedule, slow).start_s[1][0] == 3.125
    with pytest.raises(ScheduleError, match=r"^activations_lag_s must be finite$"):
        dataclasses.replace(fields, activations_lag_s=np.array([np.inf, 0]))
    with pytest.raises(ScheduleError, match=r"^gradients_lag_s has 3 stages, forward_s has 2$"):
        dataclasses.replace(fields, gradients_lag_s=np.zeros(3))


def test_a_whole_number_of_latency_drops_no_fractions():
    schedule = make_schedule("1f1b-as", 3, 4)
    times = [
        simulate(
            schedule, StageTimes.uniform(3, 1.25, 1.5, 0.75, transfer_s=0.3, latency_s=latency)
        )
        for latency in (2, 2.0)
    ]
    assert times[0].makespan_s == times[1].makespan_s
