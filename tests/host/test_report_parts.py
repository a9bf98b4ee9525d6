"""Parts of the report: causes, differences, charts, and colours that can be told apart."""

import itertools
import json
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_case import make_build, write_log

from fpgapipe.host.report.drawing.elements import difference, missed, signed
from fpgapipe.host.report.drawing.line_chart import MAX_POINTS, Line, line_chart
from fpgapipe.host.report.drawing.theme import DARK, LIGHT, asset
from fpgapipe.host.report.pages.findings import findings
from fpgapipe.host.report.pages.head import head
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.host.report.pages.utilisation import engines_of
from fpgapipe.host.runtime.program_check import Verification
from fpgapipe.host.terminal.console import count

ROOT = Path(__file__).parents[2]


def test_an_engines_cycles_are_sorted_by_cause():
    counters = {
        "CYCLES": 1000,
        "GEMM0_BUSY": 600,
        "GEMM0_VECTORS": 400,
        "GEMM0_WAIT_A": 50,
        "GEMM0_WAIT_B": 30,
        "GEMM0_WAIT_RESULT": 20,
        "GEMM0_WAIT_SEMAPHORE": 450,
        "LINK1_RECEIVE_BUSY": 100,
        "LINK1_RECEIVE_WAIT_LINK": 60,
        "VECTOR_BUSY": 10,
        "VECTOR_WAIT_X": 9,
        "VECTOR_WAIT_RESULT": 9,
    }
    gemm, link, vector = engines_of(counters, 1000)
    assert (gemm.name, gemm.busy, gemm.semaphores) == ("GEMM engine 0", 600, 450)
    # Of 400 cycles in which it was not busy, all are waits: 450 may overlap with its work.
    assert list(gemm.causes.values()) == [400, 50, 30, 20, 100, 400, 0]
    assert (link.name, link.causes["c1"], link.causes["c6"]) == ("link 1 receives", 40, 60)
    assert (vector.causes["c2"], vector.causes["c3"], vector.causes["c1"]) == (9, 1, 0)
    assert all(sum(each.causes.values()) == 1000 for each in (gemm, link, vector))


def test_differences():
    assert signed(0.0) == "0 %"
    assert signed(-0.01234) == "&minus;1.23 %"
    assert [missed(gap) for gap in (-0.00062, 0.01234, 0.0)] == [
        "0.062 % too low",
        "1.2 % too high",
        "exact",
    ]
    assert difference(101, 100, limit=0.02).shown == "+1.00 %"
    assert difference(103, 100, limit=0.02).css == "off"
    assert difference(None, 100, limit=0.02).key == ""
    assert difference(5, 0, limit=0.02).key == ""


def test_a_long_line_is_thinned_to_means():
    x = np.arange(100_000.0)
    svg = line_chart([Line("a", x, x % 2)], title="t", x_words="x", y_words="y")
    assert svg.count("<circle") <= MAX_POINTS
    assert "a, 125: 0.4" in svg or "0.5" in svg


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0], [float("nan")], [-1.0, 1e9]])
def test_charts_of_little(values):
    line = Line("a", np.arange(float(len(values))), np.array(values))
    svg = line_chart([line], title="t", x_words="x", y_words="y")
    assert "nan" not in svg
    ET.fromstring(svg)


def luminance(colour):
    """Source: WCAG 2.2, relative luminance."""
    parts = linear(colour)
    return float(parts @ [0.2126, 0.7152, 0.0722])


def linear(colour):
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_contrast(colours):
    for ink, behind in itertools.product(("ink", "soft", "accent", "warn"), ("page", "paper")):
        assert contrast(colours[ink], colours[behind]) >= 4.5, (ink, behind)
    for kind in ("F", "B", "dX", "dW", "U"):
        assert contrast(colours["ink"], colours[kind]) >= 4.5, kind
    for line in ("s1", "s2", "s3", "s4"):
        assert contrast(colours[line], colours["paper"]) >= 3, line


# Source: Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color
# Vision Deficiency", IEEE TVCG 15(6), 2009: severity 1.0.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def lab(colour, sight):
    """CIE L*a*b* of a colour as it is seen."""
    seen = np.clip(np.array(SIGHT[sight]) @ linear(colour), 0, 1)
    xyz = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ seen
        / [0.9505, 1, 1.089]
    )
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    "group",
    [("F", "B", "dX", "dW", "U", "track"), ("c1", "c2", "c3", "c4", "c5", "track")],
    ids=str,
)
def test_colours_can_be_told_apart(colours, sight, group):
    for one, other in itertools.combinations(group, 2):
        distance = np.linalg.norm(lab(colours[one], sight) - lab(colours[other], sight))
        assert distance > 9, (one, other, distance)


def test_style_sheets_and_scripts_are_packaged():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]["fpgapipe.host.report.drawing"]
    folder = ROOT / "host/report/drawing"
    for path in folder.iterdir():
        if path.is_file() and path.suffix != ".py":
            assert any(path.match(pattern) for pattern in patterns), path
            assert asset(path.name)


def test_headline_and_tile_have_the_cycles_of_a_simulated_run(tmp_path):
    """A build that was run in simulation and not measured: one figure, in both places."""
    build = make_build(tmp_path / "built")
    folder = build.folder / "run" / "sim"
    folder.mkdir(parents=True)
    write_log(folder / "log.jsonl", build.plan.batch, 1, 0.0, "sim")
    subject = Subject.of(build)
    cycles = subject.simulated_cycles
    assert cycles
    assert f"take {count(cycles)} cycles" in findings(subject)
    assert count(cycles) in head(subject)
    assert "not measured yet" not in head(subject)


def test_unequal_boards_have_the_clock_of_the_slowest(tmp_path):
    def slower(plan, graph):
        first, second = plan.nodes
        slow = second.model_copy(update={"spec": replace(second.spec, clk_hz=150e6)})
        return plan.with_nodes([first, slow]), graph

    subject = Subject.of(make_build(tmp_path / "built", change=slower))
    assert subject.plan.clk_hz == 150e6
    assert subject.clk_hz == subject.plan.clk_hz
    assert "at 150 MHz" in head(subject)


def test_findings_name_clocks_that_are_not_the_planned_ones(tmp_path):
    build = make_build(tmp_path / "built")
    assert "other clocks" not in findings(Subject.of(build))
    device = build.plan.nodes[1].device
    path = build.folder / "package" / "vitis" / f"1-{device}" / "achieved_clocks.json"
    path.parent.mkdir(parents=True)
    clock = {"m_freq_Mhz": "250", "m_type": "DATA", "m_name": "DATA_CLK"}
    path.write_text(json.dumps({"clock_freq_topology": {"m_clock_freq": [clock]}}))
    told = f"Bitstreams have other clocks than planned: {device} 250 MHz; cycles of runs on boards"
    assert told in findings(Subject.of(build))
    path.write_text("{")
    assert "does not have one clock of type DATA" in findings(Subject.of(build))


def test_the_head_says_what_was_verified(tmp_path):
    build = make_build(tmp_path / "built")
    assert "Programs not verified: its folder does not say" in head(Subject.of(build))
    Verification(skipped="--no-verify").write(build.folder)
    assert "Programs not verified: --no-verify." in head(Subject.of(build))
    Verification(4, {"fc1": "too large to compare"}).write(build.folder)
    assert "4 groups of layers" in head(Subject.of(build))
    assert "not verified: fc1 (too large to compare)." in head(Subject.of(build))
