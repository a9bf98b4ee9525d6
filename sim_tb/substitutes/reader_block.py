"""The operand reader as a substituted block; block_reader.cpp has the model.

All outputs but ``done`` are functions of registers, which the model shows after each clock edge.
"""

import re

from fpgapipe.hw.hls_models.isa.gemm_fields import OPERAND
from fpgapipe.hw.hls_models.isa.instructions import ErrorCode
from fpgapipe.sim_tb.substitutes.block import Block, Ports, has_ports

_BLOCK = 32
_WHOLE_WORDS = re.compile(r"^  reg \[255:0\] low\b", re.MULTILINE)

_IMPORTS = """\
import "DPI-C" function chandle fpgapipe_reader_create(input int rows, input int address_bits);
import "DPI-C" function void fpgapipe_reader_destroy(input chandle self);
import "DPI-C" function void fpgapipe_reader_descriptor(
  input chandle self, input bit [1017:0] descriptor);
import "DPI-C" function void fpgapipe_reader_word(input chandle self, input bit [511:0] word);
import "DPI-C" function int fpgapipe_reader_step(
  input chandle self, input int inputs, output int address, output int index);
"""

_BODY = """\
  import "DPI-C" function void fpgapipe_reader_vector(
    input chandle self, output bit [{vector}:0] vector);
  chandle self;
  initial self = fpgapipe_reader_create({rows}, {address_bits});
  final fpgapipe_reader_destroy(self);
  reg [31:0] outputs = 1, next_outputs, address = 0, next_address, index = 0, next_index;
  reg [{vector}:0] shown = 0, next;
  assign i__ready = outputs[0];
  assign read__valid = outputs[1];
  assign o__valid = outputs[2];
  assign error_valid = outputs[3];
  assign done = outputs[2] & outputs[4] & o__ready;
  assign read__address = address[{address_bits} - 1:0];
  assign read__turn = outputs[12:8];
  assign error_index = index;
  assign error_code = {error_code};
  assign o__payload = shown;
  always @(posedge clk) begin
    if (i__valid & outputs[0]) fpgapipe_reader_descriptor(self, i__payload);
    if (read__data_valid) fpgapipe_reader_word(self, read__data);
    next_outputs = fpgapipe_reader_step(self,
      {{26'd0, o__ready, read__data_valid, read__ready, halt, i__valid, rst}},
      next_address, next_index);
    outputs <= next_outputs;
    address <= next_address;
    index <= next_index;
    if (next_outputs[5]) begin
      fpgapipe_reader_vector(self, next);
      shown <= next;
    end
  end
"""


def _body(ports: Ports, text: str) -> str | None:
    if "o__payload" not in ports or "read__address" not in ports:
        return None
    rows, address_bits = ports["o__payload"].bits // 8 - 1, ports["read__address"].bits
    inputs = dict.fromkeys(("clk", "rst", "halt", "i__valid", "o__ready"), 1)
    inputs |= dict.fromkeys(("read__ready", "read__data_valid"), 1)
    inputs |= {"i__payload": 32 + OPERAND.bits, "read__data": 16 * _BLOCK}
    outputs = dict.fromkeys(("done", "error_valid", "i__ready", "o__valid", "read__valid"), 1)
    outputs |= {"error_code": 8, "error_index": 32, "o__payload": 8 * rows + 8}
    outputs |= {"read__address": address_bits, "read__turn": 5}
    covered = rows and _BLOCK % rows == 0 and address_bits < 32 and _WHOLE_WORDS.search(text)
    if not covered or not has_ports(ports, inputs, outputs):
        return None
    return _BODY.format(
        rows=rows,
        address_bits=address_bits,
        vector=8 * rows + 7,
        error_code=int(ErrorCode.SCRATCHPAD_RANGE),
    )


READER = Block(
    "reader",
    "operand_reader",
    "fpgapipe.hw.rtl.gemm.operand",
    (
        *("block_simd.hpp", "block_bits.hpp", "block_fp32.hpp", "block_quantise.hpp"),
        *("block_addresses.hpp", "block_reader.cpp"),
    ),
    _IMPORTS,
    _body,
)
"""The operand reader's block."""
