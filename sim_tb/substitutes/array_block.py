"""The systolic array as a substituted block; block_array.cpp has the model."""

import re

from fpgapipe.hw.hls_models.spec.systolic import FIELD_BITS, Form, SystolicSpec
from fpgapipe.sim_tb.substitutes.block import Block, Ports, has_ports

_ROW = re.compile(r"^  systolic_row_(\d+)x(\d+)_(\d+) row(\d+) \($", re.MULTILINE)

_PAIR = re.compile(r"^  packed_pair_(\d+) cascade(\d+)_pair(\d+) \($", re.MULTILINE)

_IMPORTS = """\
import "DPI-C" function chandle fpgapipe_array_create(
  input int rows, input int cols, input int acc_bits, input int cascades, input int latency);
import "DPI-C" function void fpgapipe_array_destroy(input chandle self);
"""

# The control is that of SystolicCells in gemm/systolic.py, with a number instead of a mark that
# rotates. Everything that moves with the waves is in the model.
_BODY = """\
  import "DPI-C" function void fpgapipe_array_step(
    input chandle self, input bit advance, input bit reset,
    input bit [{operands}:0] vector, input bit [{operands}:0] weights, input int column,
    input bit swap, output bit [{sums}:0] sums);
  chandle self;
  initial self = fpgapipe_array_create({rows}, {cols}, {acc_bits}, {cascades},
    {latency} + 1);
  final fpgapipe_array_destroy(self);
  reg is_complete = 0, is_active = 0;
  reg [{latency}:0] valids = 0;
  reg [31:0] column = 0;
  reg [{sums}:0] shown = {shown}, next;
  wire load = i_weights__valid & i_weights__ready;
  wire accept = i_activations__valid & i_activations__ready;
  wire last = accept & i_activations__payload[{operands} + 1];
  assign i_weights__ready = advance & (swap | ~is_complete);
  assign i_activations__ready = advance & is_active;
  assign swap = advance & is_complete & (last | ~is_active);
  assign complete = is_complete;
  assign active = is_active;
  assign valid = valids[{latency}];
  assign sums = shown;
  always @(posedge clk) begin
    if (advance) valids <= {{valids[{latency} - 1:0], accept}};
    if (load) column <= column == {cols} - 1 ? 0 : column + 1;
    if (load & column == {cols} - 1) is_complete <= 1;
    else if (swap) is_complete <= 0;
    if (swap) is_active <= 1;
    else if (last) is_active <= 0;
    if (advance | rst) begin
      fpgapipe_array_step(self, advance, rst, i_activations__payload[{operands}:0],
        i_weights__payload, load ? column : -1, swap, next);
      shown <= next;
    end
    if (rst) begin
      valids <= 0;
      column <= 0;
      is_complete <= 0;
      is_active <= 0;
    end
  end
"""


def _body(ports: Ports, text: str) -> str | None:
    spec = _spec(ports, text)
    if spec is None:
        return None
    rows, cols, acc_bits = spec.rows, spec.cols, spec.acc_bits
    bits = rows * spec.operand_bits
    inputs = {"clk": 1, "rst": 1, "advance": 1, "i_weights__payload": bits}
    inputs |= {"i_weights__valid": 1, "i_activations__valid": 1}
    inputs |= {"i_activations__payload": bits + 1}
    outputs = {"i_weights__ready": 1, "i_activations__ready": 1, "swap": 1, "complete": 1}
    outputs |= {"active": 1, "valid": 1, "sums": cols * acc_bits}
    if spec.operand_bits != 8 or acc_bits > 32 or not has_ports(ports, inputs, outputs):
        return None
    return _BODY.format(
        rows=rows,
        cols=cols,
        acc_bits=acc_bits,
        operands=bits - 1,
        sums=cols * acc_bits - 1,
        cascades=spec.cascades if spec.is_packed else 0,
        latency=spec.latency_cycles - 1,
        shown=_first_sums(spec),
    )


def _first_sums(spec: SystolicSpec) -> str:
    """Sums before the first vector: the last left column has no bias, the others are delayed."""
    if not spec.is_packed:
        return "0"
    left = -(spec.cascades << (FIELD_BITS - 1)) % (1 << spec.acc_bits)
    return f"{spec.cols * spec.acc_bits}'h{left << (spec.cols - 2) * spec.acc_bits:x}"


def _spec(ports: Ports, text: str) -> SystolicSpec | None:
    """Size and form of the array that a module has; None if it has no such array."""
    if rows := _ROW.findall(text):
        if len({row[:3] for row in rows}) != 1:
            return None
        cols, operand_bits, acc_bits = (int(each) for each in rows[0][:3])
        return SystolicSpec(len(rows), cols, operand_bits, acc_bits)
    if not (cells := _PAIR.findall(text)) or "sums" not in ports:
        return None
    cascades, pairs = (len({cell[place] for cell in cells}) for place in (1, 2))
    rows_of_all, cols = cascades * int(cells[0][0]), 2 * pairs
    return SystolicSpec(rows_of_all, cols, acc_bits=ports["sums"].bits // cols, form=Form.PACKED)


ARRAY = Block(
    "array",
    "systolic_cells",
    "fpgapipe.hw.rtl.gemm.systolic",
    ("block_simd.hpp", "block_bits.hpp", "block_array.cpp"),
    _IMPORTS,
    _body,
)
