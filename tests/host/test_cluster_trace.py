"""Counters over time as a trace, and how they are sampled."""

import pytest

from fpgapipe.host.report.drawing.cluster_trace import counter_trace
from fpgapipe.sim_tb.cluster.sampling import Sample, Sampler


def test_tracks_show_what_counters_rose_by():
    samples = [
        Sample(0, 0, {"BUSY": 0, "BYTES": 5, "STILL": 9}),
        Sample(3, 1, {"BUSY": 0}),
        Sample(300, 0, {"BUSY": 150, "BYTES": 2405, "STILL": 9}),
        Sample(603, 1, {"BUSY": 600}),
        Sample(900, 0, {"BUSY": 450, "BYTES": 2405, "STILL": 9}),
    ]
    trace = counter_trace(samples, ["one", "two"], 300e6)
    tracks = [
        (each["pid"], each["name"], each["ts"], each["args"]["per cycle"])
        for each in trace["traceEvents"]
        if each["ph"] == "C"
    ]
    assert tracks == [
        (0, "BUSY", 0.0, 0.5),
        (0, "BUSY", 3.0, 0.0),
        (0, "BYTES", 0.0, 8.0),
        (0, "BYTES", 1.0, 0.0),
        (1, "BUSY", 0.01, 1.0),
        (1, "BUSY", 2.01, 0.0),
    ]
    names = [
        each["args"]["name"] for each in trace["traceEvents"] if each["name"] == "process_name"
    ]
    assert names == ["one", "two"]


def test_no_samples_make_an_empty_trace():
    assert [each["ph"] for each in counter_trace([], ["one"], 1)["traceEvents"]] == ["M", "M"]
    with pytest.raises(ValueError, match=r"^the clock must be above 0 Hz, not 0$"):
        counter_trace([], ["one"], 0)


def test_lower_halves_become_counters():
    """A round without its end is finished by later readings; halves that turn over go on."""
    sampler = Sampler(3, ("A", "B"))
    sampler.add([(0, 10, 5), (1, 14, 2**32 - 2), (0, 110, 6)])
    assert sampler.samples == [Sample(10, 3, {"A": 5, "B": 2**32 - 2})]
    sampler.add([(1, 128, 3), (0, 210, 6)])
    assert sampler.samples[1:] == [Sample(110, 3, {"A": 6, "B": 2**32 + 3})]
    sampler.add([(0, 310, 7), (1, 314, 3)])
    assert sampler.samples[2:] == [Sample(310, 3, {"A": 7, "B": 2**32 + 3})]
