"""The formulas of ParaDL on its ResNet-50: every printed figure, and whether it is met.

Prints one JSON object. The layers are those of the paper's authors: 49 convolutions of bottleneck
blocks with the stride in the first 1 x 1 convolution and without projections, the first one padded
to 226 x 226, then poolings, sums and the linear layer; ReLU and batch normalisation are left out of
inputs and outputs. Their elements add up to the paper's 14,971,596 inputs, 14,819,368 outputs and
22,734,016 weights. The time of a sample, 3.119502 ms, is the one that they measured. Which share of
it belongs to layers whose filters are not cut, 5.0824 %, was found from their figures for filter
parallelism; all others follow from the formulas.
"""

import json

from fpgapipe.partition.oracle.paradl import LayerRow, Question, data, data_filter, filters
from fpgapipe.partition.oracle.platform import Platform

SAMPLE_S = 3.119502e-3
UNCUT = 0.0508241064
"""Share of the time of a sample in layers whose filters are not cut."""

PLATFORM = Platform.model_validate(
    {
        "bytes_per_element": 4,
        "samples": 1_280_000,
        "links": [
            {"up_to": 4, "bytes_per_s": 50e9, "latency_s": 9e-6},
            {"up_to": 68, "bytes_per_s": 12.5e9, "latency_s": 40.31e-6},
            {"up_to": 136, "bytes_per_s": 12.5e9, "latency_s": 40.49e-6},
            {"bytes_per_s": 12.5e9, "latency_s": 40.98e-6},
        ],
    }
)
PRINTED = {
    ("data", 2): ("1996.48128", "18.3672128"),
    ("data", 4): ("998.24064", "13.9104096"),
    ("data", 8): ("499.12032", "33.2384724"),
    ("data", 32): ("124.78008", "10.3714437"),
    ("data", 64): ("62.39004", "6.07266639504"),
    ("data", 256): ("15.59751", "2.79602608"),
    ("filter", 4): ("1150.4447", "2175.1573824"),
    ("filter", 32): ("321.3770", "14502.0365424"),
    ("filter", 64): ("262.1579", "18469.0494576"),
    ("data+filter", 32): ("143.8056", "527.926502"),
    ("data+filter", 128): ("35.9514", "140.0181053"),
    ("data+filter", 256): ("18.0045", "71.5207472"),
}
"""Seconds of an epoch, computing and communicating, as they are printed."""

MEMORY_BYTES = 15_434_845_696
"""Bytes of a device in data parallelism."""


def resnet50() -> list[LayerRow]:
    """The layers; the times of those that are cut, and of the others, are in proportion to work."""
    shapes: list[tuple[str, int, int, int, int]] = []  # name, x, y, w, multiply-accumulates

    def conv(cin: int, cout: int, taps: int, pixels_in: int, pixels: int) -> None:
        weights = cin * cout * taps
        shapes.append(("conv", cin * pixels_in, cout * pixels, weights, weights * pixels))

    def other(name: str, inputs: int, outputs: int, weights: int = 0) -> None:
        shapes.append((name, inputs, outputs, weights, outputs))

    conv(3, 64, 49, 226**2, 113**2)
    other("pool", 64 * 113**2, 64 * 56**2)
    channels, size = 64, 56
    for blocks, width, out in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        for _ in range(blocks):
            conv(channels, width, 1, size**2, out**2)
            conv(width, width, 9, out**2, out**2)
            conv(width, 4 * width, 1, out**2, out**2)
            other("sum", 4 * width * out**2, 4 * width * out**2)
            channels, size = 4 * width, out
    other("pool", 2048 * 49, 2048)
    shapes.append(("linear", 2048, 1000, 2_048_000, 2_048_000))
    cut = {"conv", "linear"}
    work = {
        kind: sum(each[4] for each in shapes if (each[0] in cut) == kind) for kind in (False, True)
    }
    rows = []
    for number, (name, inputs, outputs, weights, macs) in enumerate(shapes):
        share = 1 - UNCUT if name in cut else UNCUT
        seconds = SAMPLE_S * share * macs / work[name in cut]
        rows.append(
            LayerRow(
                f"{name}{number}", inputs, outputs, weights, seconds / 3, seconds * 2 / 3,
                has_filters=name in cut,
            )
        )  # fmt: skip
    return rows


def agrees(value: float, printed: str) -> bool:
    """Whether a value has all digits that are printed."""
    digits = len(printed.partition(".")[2])
    return f"{value:.{digits}f}" == printed


def figures() -> dict[str, object]:
    """All figures, and whether they agree."""
    question = Question(resnet50(), PLATFORM, 64)
    ask = {"data": data, "filter": filters, "data+filter": data_filter}
    found = []
    for (name, devices), printed in PRINTED.items():
        forecast = ask[name](question, devices)
        values = forecast.compute_s, forecast.communication_s
        found.append(
            {
                "strategy": name,
                "devices": devices,
                "compute_s": values[0],
                "communication_s": values[1],
                "printed": printed,
                "agrees": all(map(agrees, values, printed)),
            }
        )
    memory = data(question, 64).memory_bytes
    return {
        "memory_bytes": memory,
        "all_agree": memory == MEMORY_BYTES and all(each["agrees"] for each in found),
        "figures": found,
    }


if __name__ == "__main__":
    print(json.dumps(figures(), indent=1))
