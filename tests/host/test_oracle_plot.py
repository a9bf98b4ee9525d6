"""The picture of what the oracle foretells."""

import re

from fpgapipe.host.report.pages.oracle_plot import draw_svg
from fpgapipe.partition.oracle.forecast import Forecast

LOOK = 'stroke-dasharray="7 7"'


def forecasts(name, speeds):
    return [
        Forecast(name, devices, 1.0, 0.0, 0.0, None, "", batch=speed, minibatch_s=1.0)
        for devices, speed in zip((1, 2, 4), speeds, strict=True)
    ]


def test_curves_that_lie_on_each_other_are_seen():
    found = {"data": (10, 20, 40), "filter": (10, 15, 20), "spatial": (10, 20, 40)}
    svg = draw_svg([each for item in found.items() for each in forecasts(*item)], "title")
    assert re.findall(r">as (\w+)</text>", svg) == ["data"]
    assert svg.count(">without losses<") == 2  # in the legend, and of the line itself
    # Spatial's speed lies on data's; that nothing communicates lies on each other wholly.
    assert svg.count(LOOK) == 2 + 2 * 2
    # Marks: of filter and spatial at one device, of spatial at the others; and all shares.
    assert svg.count("scale(") == 2 + 2 + 2 * 3


def test_curves_of_their_own_are_whole():
    svg = draw_svg(forecasts("data", (10, 20, 40)), "title")
    assert "scale(" not in svg
    assert LOOK not in svg
    assert ">as " not in svg
