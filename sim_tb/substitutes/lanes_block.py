"""The lanes of the vector engine as a substituted block; block_lanes.cpp has the model."""

import re

from fpgapipe.sim_tb.substitutes.block import Block, Ports, has_ports

_WORDS = ("x", "y", "k0", "factor_y", "k1", "k2", "choice_x", "choice_y", "k3", "initials")
_CONFIG_BITS = 208
_MOST_LANES = 32

_IMPORTS = """\
import "DPI-C" function chandle fpgapipe_lanes_create(input int lanes);
import "DPI-C" function void fpgapipe_lanes_destroy(input chandle self);
"""

_BODY = """\
  import "DPI-C" function void fpgapipe_lanes_step(
    input chandle self, input bit [{config}:0] lane_config, {inputs},
    input bit [{bits}:0] bits, input bit [{totals}:0] previous, input int counter,
    input int there, input bit first, input int index, input bit finish,
    output bit [{words}:0] sums, output bit [{words}:0] best, output bit [{indices}:0] indices,
    output bit [{words}:0] results);
  chandle self;
  initial self = fpgapipe_lanes_create({lanes});
  final fpgapipe_lanes_destroy(self);
  reg [{words}:0] sums = 0, best = 0, shown = 0, next_sums, next_best, next_shown;
  reg [{indices}:0] indices = 0, next_indices;
  assign results = shown;
{assigns}
  always @(posedge clk) if (advance) begin
    fpgapipe_lanes_step(self, lane_config, {names}, bits, previous, counter, there, first, index,
      finish, next_sums, next_best, next_indices, next_shown);
    sums <= next_sums;
    best <= next_best;
    indices <= next_indices;
    shown <= next_shown;
  end
"""


def _body(ports: Ports, text: str) -> str | None:
    lanes = len(re.findall(r"^  vector_lane lane\d+ \($", text, re.MULTILINE))
    inputs = {"clk": 1, "rst": 1, "advance": 1, "lane_config": _CONFIG_BITS, "first": 1}
    inputs |= {"counter": 32, "index": 8, "finish": 1, "bits": 16 * lanes, "there": lanes}
    inputs |= {"previous": 40 * lanes, **dict.fromkeys(_WORDS, 32 * lanes)}
    outputs = {"totals": 40 * lanes, "results": 32 * lanes}
    if not 2 <= lanes <= _MOST_LANES or not has_ports(ports, inputs, outputs):
        return None
    takes_maximum = "lane_config[205]"
    assigns = [
        f"  assign totals[{40 * k + 39}:{40 * k}] = {{indices[{8 * k + 7}:{8 * k}], "
        f"{takes_maximum} ? best[{32 * k + 31}:{32 * k}] : sums[{32 * k + 31}:{32 * k}]}};"
        for k in range(lanes)
    ]
    return _BODY.format(
        config=_CONFIG_BITS - 1,
        inputs=", ".join(f"input bit [{32 * lanes - 1}:0] {name}" for name in _WORDS),
        names=", ".join(_WORDS),
        bits=16 * lanes - 1,
        totals=40 * lanes - 1,
        words=32 * lanes - 1,
        indices=8 * lanes - 1,
        lanes=lanes,
        assigns="\n".join(assigns),
    )


LANES = Block(
    "lanes",
    "vector_lane_array",
    "fpgapipe.hw.rtl.vector.vector_lanes",
    ("block_simd.hpp", "block_bits.hpp", "block_fp32.hpp", "block_lanes.cpp"),
    _IMPORTS,
    _body,
)
"""The block of the lanes."""
