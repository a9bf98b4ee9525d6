"""The scratchpad as a substituted block; block_scratchpad.cpp has its memory.

The ports are granted as in dma/scratchpad.py. Accesses wait here for one cycle, those of an aligned
write port also while another write meets them, and data that was read for as many cycles as the
stages that select and rotate it take in the gateware.
"""

import re

from fpgapipe.sim_tb.substitutes.block import Block, Ports, has_ports

_MEMORY = re.compile(r"^  memory_(\d+)x512_16 bank(\d+)_(even|odd) \($", re.MULTILINE)
_PORT = re.compile(r"(reads|writes)__(\d+)__valid")

_IMPORTS = """\
import "DPI-C" function chandle fpgapipe_scratchpad_create(input int address_bits);
import "DPI-C" function void fpgapipe_scratchpad_destroy(input chandle self);
import "DPI-C" function void fpgapipe_scratchpad_read(
  input chandle self, input int address, input int turn, output bit [511:0] data);
import "DPI-C" function void fpgapipe_scratchpad_write(
  input chandle self, input int address, input bit [511:0] data, input bit [31:0] mask);
"""

_PLACE = """\
  wire {p}_both = {p}_address[5:0] != 0;
  wire [{places}:0] {p}_even = ({p}_address[{top}:6] + 1) >> 1;
  wire [{places}:0] {p}_odd = {p}_address[{top}:7];
  wire {p}_uses_even = {p}_both | ~{p}_address[6];
  wire {p}_uses_odd = {p}_both | {p}_address[6];
"""
_ACCEPT = """\
  wire [{top}:0] {p}_address = {{{port}__address[{top}:{low}], {low}'d0}};
  assign {port}__ready = {ready};
  wire {p}_accept = {port}__valid & {port}__ready;
  reg [{top}:0] {p}_held = 0;
"""
_READ = """\
  reg [4:0] {p}_turn = 0;
  reg [3:0] {p}_valid = 0;
  reg [511:0] {p}_word1 = 0, {p}_word2 = 0, {p}_data = 0, {p}_next;
  assign {port}__data = {p}_data;
  assign {port}__data_valid = {p}_valid[3];
"""
_READS = """\
    if ({p}_valid[0]) begin
      fpgapipe_scratchpad_read(self, {p}_held, {{27'd0, {p}_turn}}, {p}_next);
      {p}_word1 <= {p}_next;
    end
    if ({p}_valid[1]) {p}_word2 <= {p}_word1;
    if ({p}_valid[2]) {p}_data <= {p}_word2;
    {p}_valid <= rst ? 0 : {{{p}_valid[2:0], {p}_accept}};
    if ({p}_accept) begin
      {p}_held <= {p}_address;
      {p}_turn <= {turn};
    end
"""
_WRITE = """\
  reg {p}_valid = 0;
  reg [511:0] {p}_data = 0;
  reg [31:0] {p}_mask = 0;
"""
_TAKEN = "  wire [{top}:0] {p}_taken_address = {p}_held;\n"
_WRITES = """\
    if ({p}_valid & ~{stays}) fpgapipe_scratchpad_write(self, {p}_held, {p}_data, {p}_mask);
    {p}_valid <= ({p}_accept | {stays}) & ~rst;
    if ({p}_accept) begin
      {p}_held <= {p}_address;
      {p}_data <= {p}_address[5] ? {{{port}__data[255:0], {port}__data[511:256]}} : {port}__data;
      {p}_mask <= {p}_address[5] ? {{{port}__mask[15:0], {port}__mask[31:16]}} : {port}__mask;
    end
"""


def _body(ports: Ports, text: str) -> str | None:
    memories = _MEMORY.findall(text)
    if not memories or len({rows for rows, _, _ in memories}) != 1:
        return None
    rows, banks = int(memories[0][0]), len(memories) // 2
    bits = (128 * rows * banks - 1).bit_length()
    numbers = dict.fromkeys(("reads", "writes"), 0)
    for name in ports:
        if found := _PORT.fullmatch(name):
            numbers[found[1]] += 1
    inputs, outputs = {"clk": 1, "rst": 1}, {"waits": 1, "held": 1}
    for kind, number in numbers.items():
        for index in range(number):
            port = f"{kind}__{index}__"
            inputs |= {f"{port}address": bits, f"{port}valid": 1}
            outputs[f"{port}ready"] = 1
            if kind == "reads":
                inputs[f"{port}turn"] = 5
                outputs |= {f"{port}data": 512, f"{port}data_valid": 1}
            else:
                inputs |= {f"{port}data": 512, f"{port}mask": 32}
    if 128 * rows * banks != 1 << bits or not has_ports(ports, inputs, outputs):
        return None

    row_bits = (rows - 1).bit_length()
    held = "1'b0"
    parts: list[str] = []
    waits: list[str] = []
    clocked: dict[str, list[str]] = {"reads": [], "writes": []}
    for kind, unaligned in (("reads", "_offset1"), ("writes", "_later")):
        for index in range(numbers[kind]):
            name, port = f"{kind[0]}{index}", f"{kind}__{index}"
            offset = f"(?:reg|wire) \\[\\d+:0\\] {kind[:-1]}{index}{unaligned}\\b"
            is_aligned = re.search(offset, text) is None
            is_late = is_aligned and kind == "writes"
            earlier = [
                f"({kind}__{k}__valid & {_meets(name, f'{kind[0]}{k}', row_bits, banks)})"
                for k in range(index)
            ]
            ready = f"~({' | '.join(earlier)})" if earlier else "1'b1"
            if is_late:
                # What it has accepted yields to what the others have accepted in the same cycle.
                ready = "~held"
                clash = [
                    f"(w{k}_valid & {_meets(f'{name}_taken', f'w{k}_taken', row_bits, banks)})"
                    for k in range(index)
                ]
                held = f"{name}_valid & ({' | '.join(clash)})" if clash else held
            values = {
                "p": name,
                "port": port,
                "top": bits - 1,
                "places": bits - 8,
                "low": 6 if is_aligned else 1,
                "turn": f"{port}__turn"
                if f"reg [4:0] {kind[:-1]}{index}_turn1 " in text
                else "5'd0",
                "ready": ready,
                "stays": "held" if is_late else "1'b0",
            }
            own = _READ if kind == "reads" else _WRITE + _TAKEN + _PLACE.replace("{p}", "{p}_taken")
            parts.append((_ACCEPT + _PLACE + own).format(**values))
            clocked[kind].append((_READS if kind == "reads" else _WRITES).format(**values))
            if not is_late:
                waits.append(f"({port}__valid & ~{port}__ready)")
    lines = ["  chandle self;", f"  initial self = fpgapipe_scratchpad_create({bits});"]
    lines += ["  final fpgapipe_scratchpad_destroy(self);", "  reg waited = 0;"]
    lines += ["  assign waits = waited | held;", *parts, f"  assign held = {held};"]
    lines.append("  always @(posedge clk) begin")
    lines += [*clocked["reads"], *clocked["writes"]]
    lines += [f"    waited <= ~rst & ({' | '.join(waits)});", "  end"]
    return "\n".join(lines) + "\n"


def _meets(one: str, other: str, row_bits: int, banks: int) -> str:
    """Verilog for: two accesses need the same memory."""
    needs = []
    for side in ("even", "odd"):
        same = f"{one}_uses_{side} & {other}_uses_{side}"
        if banks > 1:
            same += f" & ({one}_{side} >> {row_bits}) == ({other}_{side} >> {row_bits})"
        needs.append(f"({same})")
    return f"({' | '.join(needs)})"


SCRATCHPAD = Block(
    "scratchpad",
    "scratchpad",
    "fpgapipe.hw.rtl.dma.scratchpad",
    ("block_simd.hpp", "block_scratchpad.cpp"),
    _IMPORTS,
    _body,
)
"""The scratchpad's block."""
