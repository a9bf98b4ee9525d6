"""Designs that drive blocks with random inputs, pauses and resets, to compare them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fpgapipe.sim_tb.substitutes.verilog_module import ports, split_modules, width

_RANDOM = """\
  function automatic [63:0] following(input [63:0] state);
    following = state ^ (state << 13);
    following = following ^ (following >> 7);
    following = following ^ (following << 17);
  endfunction
"""


@dataclass(frozen=True)
class Driven:
    """A module that gets random inputs.

    Attributes
    ----------
    module : str
        Name of the module.
    chances : mapping of str to float
        For inputs of one bit, the part of the cycles in which they are high; by default a half, and
        1/500 for ``rst``. Each of them keeps its value for up to 64 cycles once in 256 cycles.
    counted : str
        Output or input of one bit whose high cycles are counted.
    """

    module: str
    chances: Mapping[str, float] = field(default_factory=dict)
    counted: str = "advance"


def lockstep_top(
    verilog: str, blocks: Sequence[Driven], number: int, seed: int = 0, *, pauses: bool = False
) -> str:
    """Verilog of a design whose top module ``lockstep`` drives modules with random inputs.

    The top module has the ports ``clk``, ``rst`` and ``irq``. It compares nothing by itself: a
    module that is substituted with `Simulation.VERIFIED` does. Inputs change in every cycle, also
    where the rules of streams would forbid it, but for spells in which all inputs of a block that
    have more than one bit keep their values; in some of them, the last input by name does not.

    Parameters
    ----------
    verilog : str
        Text of all modules that are needed.
    blocks : sequence of Driven
    number : int
        Count that all blocks must reach before ``irq`` rises.
    seed : int
        Seed of the random inputs.
    pauses : bool
        Whether all inputs of all blocks keep their values at times, for up to 1023 cycles.
    """
    texts = split_modules(verilog)
    lines = ["module lockstep(clk, rst, irq);", "  input clk, rst;", "  output irq;", _RANDOM]
    clocked: list[str] = []
    word = (2 * seed + 1) * 0x9E3779B97F4A7C15
    for index, block in enumerate(blocks):
        connections = []
        its_ports = ports(texts[block.module])
        held = f"held_block{index}"
        last = max(name for name, port in its_ports.items() if port.is_input and port.bits > 1)
        for name, port in its_ports.items():
            net = f"block{index}_{name}"
            connections.append(f"    .{name}({'clk' if name == 'clk' else net})")
            if name == "clk":
                continue
            kind = "reg" if port.is_input else "wire"
            lines.append(f"  {kind} {width(port.bits)}{net};")
            for part in range(0, port.bits, 64) if port.is_input else ():
                word = word * 0x5851F42D4C957F2D + 0x14057B7EF767814F
                state = f"{net}_state{part}"
                lines.append(f"  reg [63:0] {state} = 64'h{word % 2**64 | 1:x};")
                clocked.append(f"{state} <= following({state});")
                if port.bits == 1:
                    chance = block.chances.get(name, 0.002 if name == "rst" else 0.5)
                    lines.append(f"  reg [5:0] {net}_kept = 0;")
                    clocked += _bit(net, state, round(65536 * chance))
                else:
                    high = min(part + 64, port.bits) - 1
                    moves = f"{held} == 0" + (f" | {held}_but_last" if name == last else "")
                    clocked.append(
                        f"if ({moves}) {net}[{high}:{part}] <= {state}[{high - part}:0];"
                    )
        lines.append(f"  reg [5:0] {held} = 0;")
        lines.append(f"  reg {held}_but_last = 0;")
        lines.append(f"  reg [63:0] {held}_state = 64'h{word % 2**64 ^ 0xA5A5 | 1:x};")
        clocked += [f"{held}_state <= following({held}_state);"]
        clocked += [f"if ({held} != 0) {held} <= {held} - 1;"]
        clocked += [f"else if ({held}_state[63:58] == 0) begin"]
        clocked += [f"  {held} <= {held}_state[55:50];"]
        clocked += [f"  {held}_but_last <= {held}_state[40];", "end"]
        counter = f"block{index}_count"
        lines += [f"  reg [31:0] {counter} = 0;", f"  {block.module} block{index} ("]
        lines += [",\n".join(connections), "  );"]
        clocked.append(f"if (block{index}_{block.counted}) {counter} <= {counter} + 1;")
    counts = [f"block{index}_count >= {number}" for index in range(len(blocks))]
    lines += [f"  assign irq = {' && '.join(counts)};"]
    if pauses:
        lines += ["  reg [9:0] pause = 0;", f"  reg [63:0] pause_state = 64'h{word % 2**64 | 1:x};"]
        clocked += ["pause_state <= following(pause_state);"]
        clocked += ["if (pause_state[63:57] == 0) pause <= pause_state[29:20];"]
        clocked = ["if (pause != 0) pause <= pause - 1;", "else begin", *clocked, "end"]
    lines += ["  always @(posedge clk) begin"]
    lines += [f"    {line}" for line in clocked]
    return verilog + "\n".join(lines) + "\n  end\nendmodule\n"


def _bit(net: str, state: str, limit: int) -> list[str]:
    """Statements that give an input of one bit its next value."""
    return [
        f"if ({net}_kept != 0) {net}_kept <= {net}_kept - 1;",
        "else begin",
        f"  {net} <= {state}[31:16] < {limit};",
        f"  if ({state}[63:56] == 0) {net}_kept <= {state}[55:50];",
        "end",
    ]
