import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from html.parser import HTMLParser

import numpy as np
import pytest

from fpgapipe.host.report.drawing.perfetto import chrome_trace
from fpgapipe.host.report.drawing.timetable import busy_shares, duration, rows_of, tick_step
from fpgapipe.host.report.drawing.timetable_html import draw_html
from fpgapipe.host.report.drawing.timetable_svg import draw_svg
from fpgapipe.host.report.drawing.timetable_text import draw_text
from fpgapipe.lowering.schedule.schedule import Lane, Schedule, TaskKind
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.partition.timeline.timeline import StageTimes, Timeline, simulate

SVG = "{http://www.w3.org/2000/svg}"
ODD_NAMES = ["a<b", "c>d", "e&f", 'g"h\x1b[31m']
KINDS = ("1f1b-as", "fbp-as", "1f1b-sno", "pipedream", "interleaved", "zb-h1", "chimera")


def run(kind, devices=4, microbatches=8, times=(1.0, 1.0, 1.0), transfer_s=0.0, update_s=0.0):
    schedule = make_schedule(kind, devices, microbatches)
    stages = StageTimes.uniform(
        schedule.num_stages, *times, transfer_s=transfer_s, update_s=update_s
    )
    return simulate(schedule, stages)


def empty():
    lane = Lane.of(0, "compute", [])
    schedule = Schedule("none", 1, (0,), ((0,),), np.zeros(1, np.int32), (lane,))
    none = np.zeros(0)
    return Timeline(schedule, (none,), (none,), ())


# Words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (1.5e-3, "1.5 ms"),
        (2.5e-4, "250 µs"),
        (0.99999, "1 s"),
        (9.9999e-7, "1 µs"),
        (1234.4, "1,234 s"),
        (1e9, "1,000,000,000 s"),
        (3e-15, "0.003 ps"),
    ],
)
def test_times_are_in_the_unit_that_suits_them(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(("span", "most", "step"), [(33, 7, 5), (10, 10, 1), (0.3, 2, 0.2)])
def test_ticks_are_at_round_numbers(span, most, step):
    assert tick_step(span, most) == pytest.approx(step)


def test_shares_of_time_add_up_to_the_time():
    timeline = run("zb-h1", times=(1.3, 0.7, 1.1))
    edges = np.linspace(0, timeline.makespan_s, 18)
    for row, busy in zip(rows_of(timeline), timeline.busy_s, strict=False):
        if not row.is_link:
            total = sum(shares.sum() for shares in busy_shares(row, edges).values())
            assert total * (edges[1] - edges[0]) == pytest.approx(row.busy_s)
            assert row.busy_s == pytest.approx(busy)


def test_names_must_be_as_many_as_devices():
    with pytest.raises(ValueError, match=r"^names must be one for each of 4 devices, not 1$"):
        draw_text(run("1f1b-as"), width=80, unicode=False, names=["only"])


# Text ---------------------------------------------------------------------------------------------


def test_text_of_1f1b_as_is_exact():
    assert draw_text(run("1f1b-as"), width=80, unicode=False) == (
        "1f1b-as, 4 devices, 8 micro-batches: 33 s, bubble 27.3 %\n"
        "s        |0        |5        |10       |15       |20       |25       |30\n"
        "device 0 F0F1F2F3............B0  F4B1  F5B2  F6B3  F7B4  ..B5  ..B6  ..B7\n"
        "device 1 ..F0F1F2........B0  F3B1  F4B2  F5B3  F6B4  F7B5  ..B6  ..B7  ....\n"
        "device 2 ....F0F1....B0  F2B1  F3B2  F4B3  F5B4  F6B5  F7B6  ..B7  ........\n"
        "device 3 ......F0B0  F1B1  F2B2  F3B3  F4B4  F5B5  F6B6  F7B7  ............\n"
        "F forward, B backward, . idle; the number is the micro-batch.\n"
    )


def test_text_has_bars_where_there_is_room():
    lines = draw_text(run("1f1b-as"), width=120, unicode=True).splitlines()
    assert lines[2] == (
        "device 0 │F0│F1│F2│F3│·················│B0   │F4│B1   │F5│B2   │F6│B3   │F7│B4   │··"
        "│B5   │··│B6   │··│B7   │"
    )


def test_text_of_zb_h1_is_exact():
    lines = draw_text(run("zb-h1"), width=90, unicode=False).splitlines()
    assert lines[0] == "zb-h1, 4 devices, 8 micro-batches: 27 s, bubble 11.1 %"
    assert [line.removeprefix(f"device {i} ") for i, line in enumerate(lines[2:6])] == [
        "F0 F1 F2 F3 .........dX0dW0F4 dX1dW1F5 dX2dW2F6 dX3dW3F7 dX4dW4dX5dW5dX6dW6dX7dW7",
        "...F0 F1 F2 ......dX0F3 dX1dW0F4 dX2dW1F5 dX3dW2F6 dX4dW3F7 dX5dW4dX6dW5dX7dW6dW7",
        "......F0 F1 ...dX0F2 dX1F3 dX2dW0F4 dX3dW1F5 dX4dW2F6 dX5dW3F7 dX6dW4dX7dW5dW6dW7",
        ".........F0 dX0F1 dX1F2 dX2F3 dX3dW0F4 dX4dW1F5 dX5dW2F6 dX6dW3F7 dX7dW4dW5dW6dW7",
    ]


def test_text_that_is_too_long_leaves_out_its_middle_and_says_so():
    text = draw_text(run("gpipe", 4, 1000, (1e-3, 1e-3, 1e-3)), width=100, unicode=False)
    lines = text.splitlines()
    assert lines[2].startswith("device 0 |F0  |F1  |F2  |")
    assert lines[2].endswith("|B998     |B999     |")
    assert lines[-1] == "Not shown: 8.8 ms to 3 s, with 7,956 tasks of 8,004."


def test_text_never_shows_a_part_of_a_name_behind_the_gap():
    lines = draw_text(run("chimera"), width=80, unicode=False).splitlines()
    assert lines[2] == (
        "device 0 |F0a|F1a|...|F2b|B2b    |F3b|B3b   ~      |...|B4a    |.......|B5a    |"
    )


def test_text_with_times_in_no_proportion_has_a_character_a_kind():
    text = draw_text(run("1f1b-as", 3, 8, (1.123, 1.2345, 1.33)), width=80, unicode=False)
    assert re.search(r"^device 0 F{6}\.{10}B{5}F{2}", text, re.MULTILINE)
    assert "A column is 519 ms: F forward, B backward, . idle." in text


def test_text_with_many_tasks_is_shaded_by_how_busy():
    text = draw_text(run("1f1b-so", 64, 1000), width=100, unicode=True)
    assert "shaded by how busy: · idle, ░ to 25 %, ▒ to 50 %, ▓ to 75 %, █ to 100 %" in text
    assert len(text.splitlines()) < 70


def test_text_samples_devices_when_there_are_many():
    text = draw_text(run("gpipe", 300, 4), width=100, unicode=True)
    assert "64 of 300 engines are shown, evenly chosen.\n" in text
    assert "\ndevice 0 " in text
    assert "\ndevice 299 " in text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 40, 80, 133, 400])
@pytest.mark.parametrize("unicode", [True, False])
def test_text_fits_its_width_and_characters(kind, width, unicode):
    timeline = run(kind, transfer_s=0.5, update_s=0.25)
    text = draw_text(timeline, width=width, unicode=unicode, names=["x" * 30, "y", "é→", "z\x1b"])
    assert max(map(len, text.splitlines())) <= max(width, 40)
    assert unicode or text.isascii()
    assert "\x1b" not in text


def test_text_says_that_nothing_takes_time():
    assert "No task takes any time.\n" in draw_text(
        run("gpipe", 2, 2, (0, 0, 0)), width=80, unicode=0
    )
    assert "No task takes any time.\n" in draw_text(empty(), width=80, unicode=True)


def test_text_of_tasks_without_length_is_noted():
    text = draw_text(run("zb-h1", times=(1, 1, 0)), width=120, unicode=True)
    assert text.endswith("32 tasks that take no time are not shown.\n")


# SVG and page -------------------------------------------------------------------------------------


def drawn(svg):
    """Every task's rectangle as (class, title lines, x, width), and what scales them."""
    root = ET.fromstring(svg)
    left, right = float(root.get("data-left")), float(root.get("data-right"))
    plot = float(root.get("viewBox").split()[2]) - left - right
    found = []
    for group in root.iter(f"{SVG}g"):
        if group.get("class", "").startswith("t "):
            rect = group.find(f"{SVG}rect")
            title = group.find(f"{SVG}title").text.split("\n")
            kind = group.get("class").split()[1]
            found.append((kind, title, float(rect.get("x")), float(rect.get("width"))))
    return found, left, plot


@pytest.mark.parametrize("kind", KINDS)
def test_rectangles_are_the_timeline(kind):
    timeline = run(kind, times=(1.1, 0.7, 1.3), transfer_s=0.2, update_s=0.4)
    found, left, plot = drawn(draw_svg(timeline))
    expected = []
    for row in rows_of(timeline):
        for number, start, end in zip(row.kinds, row.start_s, row.end_s, strict=True):
            if end > start:
                scale = plot / timeline.makespan_s
                token = TaskKind(int(number)).token
                expected.append((token, left + start * scale, (end - start) * scale))
    assert [each[0] for each in found] == [each[0] for each in expected]
    np.testing.assert_allclose([each[2:] for each in found], [e[1:] for e in expected], atol=1e-3)


def test_hover_text_says_what_where_when_and_how_much():
    timeline = run("1f1b-so", 2, 2, (1e-3, 1e-3, 1e-3), transfer_s=2e-4)
    sizes = {(TaskKind.SF, 0): 1.2e6}
    found, _, _ = drawn(draw_svg(timeline, names=["left", "right"], transfer_bytes=sizes))
    titles = [title for _, title, _, _ in found]
    assert titles[0] == ["F0: forward, micro-batch 0", "left, stage 0", "0 s to 1 ms", "takes 1 ms"]
    assert [
        "activations of micro-batch 1, from stage 0",
        "left → right",
        "2 ms to 2.2 ms",
        "takes 200 µs",
        "1.2 MB, 6 GB/s",
    ] in titles
    by_call = draw_svg(
        timeline,
        names=["left", "right"],
        transfer_bytes=lambda kind, stage: sizes.get((kind, stage)),
    )
    assert by_call == draw_svg(timeline, names=["left", "right"], transfer_bytes=sizes)


def test_names_are_escaped():
    timeline = run("1f1b-as", transfer_s=0.1)
    root = ET.fromstring(draw_svg(timeline, names=ODD_NAMES))
    shown = [each.text for each in root.iter(f"{SVG}text") if each.get("class") == "name"]
    assert {"a<b", "c>d", "e&f"} <= set(shown)
    page = draw_html(timeline, title="<script>alert(1)</script>", names=ODD_NAMES)
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert 'g"h' not in page


def test_too_many_tasks_become_shares():
    timeline = run("1f1b-as", 8, 2000, transfer_s=0.1)
    svg = draw_svg(timeline, max_rectangles=2000)
    assert svg.count("<rect") < 3000
    assert "Lanes with too many tasks to draw each: a slice is" in svg
    ET.fromstring(svg)


def test_many_devices_are_sampled():
    svg = draw_svg(run("gpipe", 300, 4))
    assert "64 of 300 devices are drawn, evenly chosen, no links." in svg
    assert ">device 299<" in svg


@pytest.mark.parametrize("timeline", [empty(), run("gpipe", 2, 2, (0, 0, 0))], ids=["none", "zero"])
def test_pictures_of_nothing(timeline):
    svg = draw_svg(timeline)
    assert "No task takes any time." in svg
    ET.fromstring(svg)
    assert "<h1>nothing</h1>" in draw_html(timeline, title="nothing")
    json.dumps(chrome_trace(timeline), allow_nan=False)


class Page(HTMLParser):
    """Checks that elements close in order, and collects addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", KINDS)
def test_page_needs_nothing_else(kind):
    timeline = run(kind, transfer_s=0.2)
    page = draw_html(timeline, title=kind, transfer_bytes=lambda kind, stage: 1e6)
    # The empty icon is in the page itself: without it a browser asks the server for one.
    assert Page(page).addresses == ["data:,"]
    assert re.findall(r"https?://[^\s\"'<]+", page) == ["http://www.w3.org/2000/svg"]
    assert "url(http" not in page
    for lane, busy in zip(timeline.schedule.lanes, timeline.busy_s, strict=True):
        assert f"<td>device {lane.device}" in page
        assert f"<td>{duration(busy)}</td>" in page
    for link in timeline.links:
        assert f"<td>device {link.source} → device {link.destination}</td>" in page


# Trace --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (0.1, 0.2, 0.3), (1 / 3, 1e-7, 0.0)])
def test_trace_has_all_tasks_and_none_overlap(kind, times):
    timeline = run(kind, times=times, transfer_s=0.07)
    trace = json.loads(json.dumps(chrome_trace(timeline), allow_nan=False))
    tracks = defaultdict(list)
    named = set()
    for event in trace["traceEvents"]:
        assert event["ph"] in "MX"
        if event["ph"] == "X":
            assert {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"} == event.keys()
            tracks[event["pid"], event["tid"]].append(event)
        elif event["name"] == "thread_name":
            named.add((event["pid"], event["tid"]))
    assert set(tracks) == named
    assert len({tid for _, tid in tracks}) == len(tracks)
    lanes = len(timeline.schedule.lanes)
    assert len(tracks) == lanes + len(timeline.links)
    for events in tracks.values():
        begin = np.array([round(event["ts"] * 1000) for event in events])
        end = begin + [round(event["dur"] * 1000) for event in events]
        assert (begin[1:] >= end[:-1]).all()
    count = timeline.schedule.num_tasks + sum(len(link.kinds) for link in timeline.links)
    assert sum(map(len, tracks.values())) == count


def test_trace_names_and_microseconds():
    timeline = run("fbp-as", 2, 1, (1e-3, 1e-3, 1e-3), transfer_s=2.5e-4)
    trace = chrome_trace(timeline, names=["<x>", "y"], transfer_bytes={(TaskKind.SF, 0): 10.0})
    names = {
        (event["name"], event["pid"], event.get("tid")): event["args"].get("name")
        for event in trace["traceEvents"]
        if event["ph"] == "M"
    }
    assert names["process_name", 0, None] == "<x>"
    tracks = [names["thread_name", pid, tid] for pid, tid in [(0, 1), (0, 2), (0, 3), (1, 4)]]
    assert tracks == ["forward", "backward", "link to y", "forward"]
    sent = [event for event in trace["traceEvents"] if event["name"] == "SF0"]
    assert sent == [
        {
            "ph": "X",
            "name": "SF0",
            "cat": "send activations",
            "pid": 0,
            "tid": 3,
            "ts": 0.0,
            "dur": 250.0,
            "args": {"stage": 0, "micro-batch": 0, "bytes": 10.0},
        }
    ]
    assert chrome_trace(timeline, names=["<x>", "y"]) == chrome_trace(timeline, names=["<x>", "y"])


def test_lanes_in_any_order_keep_their_tracks():
    timeline = run("fbp-as", 3, 2)
    order = [4, 1, 0, 5, 3, 2]
    shuffled = dataclasses.replace(
        timeline,
        schedule=dataclasses.replace(
            timeline.schedule, lanes=tuple(timeline.schedule.lanes[i] for i in order)
        ),
        start_s=tuple(timeline.start_s[i] for i in order),
        end_s=tuple(timeline.end_s[i] for i in order),
    )
    trace = chrome_trace(shuffled)["traceEvents"]
    engines = {e["tid"]: e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    for event in trace:
        if event["ph"] == "X" and event["cat"] in ("forward", "backward"):
            assert engines[event["tid"]] == event["cat"]
