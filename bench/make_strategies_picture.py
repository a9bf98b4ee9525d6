"""Draws docs/strategies.svg: which part of each layer every device has, strategy by strategy.

The parts are those of digits-cnn on four devices: the stages are two layers each for the pipeline,
the degrees those that `fpgapipe plan --strategy` gives by name. ``-o`` writes it elsewhere.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from fpgapipe.host.make.networks import loader
from fpgapipe.lowering.shards.degrees import Degrees
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.partition.strategies.one_axis import degrees_along

NETWORK = "digits-cnn"
DEVICES = 4
CELL, GAP = 26, 8
LEFT, TOP, TITLE = 62, 46, 34
COLUMNS = 3
HUES = ("a", "b", "c", "d")

PANELS = {
    "pipeline": "stages of whole layers",
    "data": "samples",
    "filter": "output channels",
    "channel": "input channels",
    "spatial": "rows of images",
    "data+filter": "samples of a group, channels in it",
    "data+spatial": "samples of a group, rows in it",
    "layerwise": "what is fastest for each layer",
    "ring": "models go round, data stay",
}

STYLE = """\
  .page { fill: #ffffff }
  .cell { fill: #f4f6f9; stroke: #7a8699; stroke-width: 1 }
  .a { fill: #2c62b0 } .b { fill: #2f7d45 } .c { fill: #a87b12 } .d { fill: #a33f5e }
  .pale { opacity: 0.35 }
  text { font: 12px "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; fill: #1c2430 }
  .name { font-size: 15px; font-weight: 600 }
  .small { fill: #4a5568 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #12161d }
    .cell { fill: #1a202b; stroke: #66748c }
    .a { fill: #6fa2ea } .b { fill: #5bb577 } .c { fill: #d9ac45 } .d { fill: #e08aa4 }
    text { fill: #e8edf5 }
    .small { fill: #aab6c8 }
  }"""


def groups() -> list[tuple[str, ...]]:
    """Layers that run together."""
    return [tuple(names) for names in layers_together(loader(NETWORK)(8))]


def degrees_of(strategy: str) -> list[Degrees]:
    """Degrees of each group of layers."""
    layers = groups()
    if strategy == "data":
        return [Degrees(DEVICES)] * len(layers)
    if strategy == "layerwise":
        wide = {"fc1"}
        return [Degrees(channel=4) if wide & set(names) else Degrees(4) for names in layers]
    parts = 2 if "+" in strategy else 1
    axis = strategy.removeprefix("data+")
    found = degrees_along(loader(NETWORK)(8), axis, DEVICES, parts)
    return [found[names[0]] for names in layers]


def rectangle(x: float, y: float, wide: float, high: float, name: str) -> str:
    """A filled part of a cell."""
    return f'<rect class="{name}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"/>'


def part_of(x: float, y: float, degrees: Degrees, device: int) -> Iterator[str]:
    """Share of a device in a layer: samples from top to bottom, channels from left to right.

    Rows of images are thin lines, and input channels a pale half in front of output channels.
    """
    hue = HUES[device]
    inner = DEVICES // degrees.sample
    sample, at = divmod(device, inner)
    high = CELL / degrees.sample
    top = y + sample * high
    if degrees.height > 1:
        line = high / (2 * degrees.height)
        for image in range(2):
            yield rectangle(x, top + (image * degrees.height + at) * line, CELL, line, hue)
        return
    wide = CELL / max(degrees.channel, degrees.input)
    if degrees.input > 1:
        yield rectangle(x + at * wide, top, wide, high / 2, f"{hue} pale")
        yield rectangle(x + at * wide, top + high / 2, wide, high / 2, hue)
        return
    yield rectangle(x + (at * wide if degrees.channel > 1 else 0), top, wide, high, hue)


def panel(x: float, y: float, strategy: str, words: str) -> Iterator[str]:
    """The picture of one strategy."""
    layers = groups()
    yield f'<text class="name" x="{x:g}" y="{y + 14:g}">{strategy}</text>'
    yield f'<text class="small" x="{x:g}" y="{y + 30:g}">{words}</text>'
    step = CELL + GAP
    degrees = degrees_of(strategy) if strategy not in ("pipeline", "ring") else []
    stage = [number * DEVICES // len(layers) for number in range(len(layers))]
    for device in range(DEVICES):
        row = y + TITLE + 8 + device * step
        yield f'<text class="small" x="{x:g}" y="{row + 17:g}">device {device}</text>'
        for number in range(len(layers)):
            column = x + LEFT + number * step
            if strategy != "ring" or number < DEVICES:
                yield rectangle(column, row, CELL, CELL, "cell")
            if strategy == "pipeline":
                if stage[number] == device:
                    yield rectangle(column, row, CELL, CELL, HUES[device])
            elif strategy == "ring":
                # Each column is a round: the model of a hue goes on to the next device.
                if number < DEVICES:
                    hue = HUES[(device - number) % DEVICES]
                    yield rectangle(column, row, CELL, CELL, hue)
            else:
                yield from part_of(column, row, degrees[number], device)
    foot = y + TITLE + 8 + DEVICES * step + 6
    if strategy == "ring":
        words = "rounds; a colour is a model"
        yield f'<text class="small" x="{x + LEFT:g}" y="{foot:g}">{words}</text>'
    else:
        first, last = layers[0][0], layers[-1][0]
        yield f'<text class="small" x="{x + LEFT:g}" y="{foot:g}">{first} to {last}</text>'


def picture() -> str:
    """The whole picture, as SVG."""
    wide = LEFT + len(groups()) * (CELL + GAP) + 24
    high = TITLE + DEVICES * (CELL + GAP) + 40
    rows = -(-len(PANELS) // COLUMNS)
    size = COLUMNS * wide + 20, rows * high + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" role="img" '
        'aria-labelledby="title text">',
        '<title id="title">Parallel strategies</title>',
        f'<desc id="text">For each strategy, a row for each of four devices and a column for each '
        f"group of layers of {NETWORK}. A square is the output of a group: samples from top to "
        "bottom, channels from left to right. What the device computes of it is filled; rows of "
        "images are lines in the samples, input channels a pale half.</desc>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="page" width="{size[0]}" height="{size[1]}"/>',
    ]
    for number, (strategy, words) in enumerate(PANELS.items()):
        row, column = divmod(number, COLUMNS)
        lines += panel(20 + column * wide, 14 + row * high, strategy, words)
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("-o", "--output", type=Path, default=root / "docs/strategies.svg")
    parser.parse_args().output.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
