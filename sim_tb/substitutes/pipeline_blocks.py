"""Arithmetic pipelines as substituted blocks: accumulators and quantiser.

Nothing in them depends on what came before but by a delay, and all of their registers move with
``advance``. block_accumulators.cpp and block_quantiser.cpp have the models.
"""

import re

from fpgapipe.sim_tb.substitutes.block import Block, Ports, has_ports

_HEADERS = ("block_simd.hpp", "block_bits.hpp", "block_fp32.hpp")

_ACCUMULATORS_IMPORTS = """\
import "DPI-C" function chandle fpgapipe_accumulators_create(input int cols, input int acc_bits);
import "DPI-C" function void fpgapipe_accumulators_destroy(input chandle self);
"""
_ACCUMULATORS = """\
  import "DPI-C" function void fpgapipe_accumulators_step(
    input chandle self, input int code_a, input bit nan_a, input bit [{codes}:0] codes,
    input bit [{cols}:0] nans, input bit [{sums}:0] sums, input bit [{values}:0] old,
    output bit [{values}:0] totals);
  chandle self;
  initial self = fpgapipe_accumulators_create({cols} + 1, {acc_bits});
  final fpgapipe_accumulators_destroy(self);
  reg [{values}:0] shown = 0, next;
  assign totals = shown;
  always @(posedge clk) if (advance) begin
    fpgapipe_accumulators_step(self, code_a, nan_a, codes_b, nans_b, sums, old, next);
    shown <= next;
  end
"""

_QUANTISER_IMPORTS = """\
import "DPI-C" function chandle fpgapipe_quantiser_create();
import "DPI-C" function void fpgapipe_quantiser_destroy(input chandle self);
import "DPI-C" function void fpgapipe_quantiser_step(
  input chandle self, input bit [511:0] values, input bit [31:0] more,
  output bit [255:0] elements, output bit [31:0] code);
"""
_QUANTISER = """\
  chandle self;
  initial self = fpgapipe_quantiser_create();
  final fpgapipe_quantiser_destroy(self);
  reg [255:0] shown = 0, next;
  reg [31:0] shown_code = 0, next_code;
  always @(posedge clk) if (advance) begin
    fpgapipe_quantiser_step(self, {{{values}}}, more, next, next_code);
    shown <= next;
    shown_code <= next_code;
  end
  assign code = shown_code[7:0];
{elements}
"""


def _accumulators(ports: Ports, text: str) -> str | None:
    kinds = set(re.findall(r"^  accumulator_column_(\d+) ", text, re.MULTILINE))
    if len(kinds) != 1:
        return None
    acc_bits = int(kinds.pop())
    cols = len(re.findall(r"^  accumulator_column_", text, re.MULTILINE))
    inputs = {"clk": 1, "rst": 1, "advance": 1, "code_a": 8, "nan_a": 1, "codes_b": 8 * cols}
    inputs |= {"nans_b": cols, "sums": acc_bits * cols, "old": 32 * cols}
    if acc_bits > 31 or not has_ports(ports, inputs, {"totals": 32 * cols}):
        return None
    return _ACCUMULATORS.format(
        cols=cols - 1,
        codes=8 * cols - 1,
        sums=acc_bits * cols - 1,
        values=32 * cols - 1,
        acc_bits=acc_bits,
    )


def _quantiser(ports: Ports, _: str) -> str | None:
    inputs = {"clk": 1, "rst": 1, "advance": 1, "more": 32} | {f"i__{k}": 16 for k in range(32)}
    if not has_ports(ports, inputs, {"code": 8} | {f"o__{k}": 8 for k in range(32)}):
        return None
    values = ", ".join(f"i__{k}" for k in reversed(range(32)))
    elements = [f"  assign o__{k} = shown[{8 * k + 7}:{8 * k}];" for k in range(32)]
    return _QUANTISER.format(values=values, elements="\n".join(elements))


ACCUMULATORS = Block(
    "accumulators",
    "accumulator_columns",
    "fpgapipe.hw.rtl.gemm.datapath",
    (*_HEADERS, "block_accumulators.cpp"),
    _ACCUMULATORS_IMPORTS,
    _accumulators,
)
QUANTISER = Block(
    "quantiser",
    "block_quantiser",
    "fpgapipe.hw.rtl.arith.mx",
    (*_HEADERS, "block_quantise.hpp", "block_quantiser.cpp"),
    _QUANTISER_IMPORTS,
    _quantiser,
)
