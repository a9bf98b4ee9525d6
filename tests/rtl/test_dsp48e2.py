"""The model of a DSP48E2: equal to plain cells, to AMD's model, and right where it refuses.

AMD's model is in https://github.com/Xilinx/XilinxUnisimLibrary; ``FPGAPIPE_UNISIM`` names its
folder ``verilog/src``.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fpgapipe.hw.hls_models.spec.systolic import Form, SystolicSpec
from fpgapipe.hw.rtl.gemm.systolic import SystolicArray
from fpgapipe.hw.rtl.lib.primitives import model_of
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.native.native import NativeDevice, build_native
from fpgapipe.sim_tb.substitutes.verilog_module import split_modules

UNISIM = Path(os.environ.get("FPGAPIPE_UNISIM", ""))
ROWS, CYCLES = 16, 20_000

_BENCH = """\
`timescale 1ps / 1ps
module bench;
  reg clk = 0, advance = 0;
  reg [{operands}:0] activations = 0, weights = 0;
  reg [1:0] load = 0;
  reg [{swaps}:0] swaps = 0;
  wire [37:0] ours, theirs;
  integer cycle, at, chance = 2;
  always #2500 clk = ~clk;
  ours one (.clk(clk), .rst(1'b0), .advance(advance), .activations(activations),
    .weights(weights), .load(load), .swaps(swaps), .sums(ours));
  theirs other (.clk(clk), .rst(1'b0), .advance(advance), .activations(activations),
    .weights(weights), .load(load), .swaps(swaps), .sums(theirs));
  function [7:0] operand(input integer kind);
    case (kind % 4)
      0: operand = 8'h81;
      1: operand = 8'h7f;
      default: begin
        operand = $random;
        if (operand == 8'h80) operand = 0;
      end
    endcase
  endfunction
  initial begin
    #200000;  // AMD's model is in reset for 100 ns
    for (cycle = 0; cycle < {cycles}; cycle = cycle + 1) begin
      @(negedge clk);
      if (ours !== theirs) begin
        $display("cycle %0d: ours %h theirs %h", cycle, ours, theirs);
        $finish;
      end
      if (cycle % 64 == 0) chance = 1 + $urandom % 8;
      advance = $urandom % 8 < chance;
      load = $urandom;
      for (at = 0; at < {rows}; at = at + 1) begin
        activations[8 * at +: 8] = operand(cycle / 512 % 2 ? at + cycle : $urandom);
        weights[8 * at +: 8] = operand(cycle / 1024 % 2 ? at : $urandom);
        swaps[at] = $urandom % 16 == 0;
      end
    end
    $display("equal for %0d cycles", cycle);
    $finish;
  end
endmodule
"""


def run_icarus(verilog, folder, tops=("bench",), sources=()):
    """Output of a design that Icarus simulates."""
    (folder / "design.v").write_text(verilog)
    tops = [word for top in tops for word in ("-s", top)]
    command = ["iverilog", "-g2012", *tops, "-o", "design.vvp", *map(str, sources), "design.v"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    found = subprocess.run(
        ["vvp", "-n", "design.vvp"], cwd=folder, check=False, capture_output=True, text=True
    )
    return found.stdout


def pair_verilog(rows=ROWS):
    """Verilog of a pair of columns of packed cells."""
    array = SystolicArray(SystolicSpec(rows, 4, form=Form.PACKED))
    return split_modules(verilog_of(array))[f"packed_pair_{rows}"]


needs_icarus = pytest.mark.skipif(
    not shutil.which("iverilog"), reason="Icarus Verilog (iverilog) is not installed"
)


@pytest.mark.sim
@needs_icarus
@pytest.mark.skipif(
    not (UNISIM / "unisims" / "DSP48E2.v").is_file(),
    reason="FPGAPIPE_UNISIM names no folder with AMD's unisims/DSP48E2.v and glbl.v",
)
def test_a_cascade_equals_amds_model_in_every_cycle(tmp_path):
    pair = pair_verilog()
    model = "DSP48E2_model"
    ours = pair.replace("DSP48E2", model) + model_of("DSP48E2").replace("DSP48E2", model)
    bench = _BENCH.format(operands=8 * ROWS - 1, swaps=ROWS - 1, rows=ROWS, cycles=CYCLES)
    name = f"packed_pair_{ROWS}"
    verilog = pair.replace(name, "theirs") + ours.replace(name, "ours") + bench
    sources = [UNISIM / "glbl.v", UNISIM / "unisims" / "DSP48E2.v"]
    found = run_icarus(verilog, tmp_path, ("bench", "glbl"), sources)
    assert found.splitlines()[-1] == f"equal for {CYCLES} cycles"


_EVERY = """\
module every(clk, rst, irq);
  input clk, rst;
  output irq;
  reg signed [7:0] left = -127, right = -127;
  reg [8:0] step = 0;
  reg [24:0] equal = 0;
  reg [2:0] follows = 0;
  reg signed [37:0] first = 0, second = 0, third = 0;
  wire signed [7:0] activation = step < 3 ? 8'sd0 : step - 130;
  wire signed [7:0] weight = step == 0 ? left : right;
  wire signed [37:0] here = ((right * activation) << 19) + left * activation + 38'sd262144;
  wire [37:0] sums;
  packed_pair_1 pair (.clk(clk), .rst(1'b0), .advance(1'b1), .activations(activation),
    .weights(weight), .load({step == 1, step == 0}), .swaps(step == 2), .sums(sums));
  assign irq = equal == 255 * 255 * 255;
  always @(posedge clk) if (!rst) begin
    step <= step == 257 ? 0 : step + 1;
    if (step == 257) begin
      left <= left == 127 ? -127 : left + 1;
      if (left == 127) right <= right == 127 ? -127 : right + 1;
    end
    first <= here;
    second <= first;
    third <= second;
    follows <= {follows[1:0], step >= 3};
    if (follows[2] && third == sums) equal <= equal + 1;
  end
endmodule
"""


@pytest.mark.sim
def test_both_products_are_right_for_all_operands(tmp_path):
    """All 255**3 combinations of two weights and an activation, one after the other."""
    library = build_native(pair_verilog(1) + _EVERY, "every")
    with NativeDevice(library) as device:
        # Each pair of weights takes 258 cycles, and the first product comes in the fourth.
        assert device.run(18_000_000, stall_cycles=None) <= 255 * 255 * 258 + 16
