"""A design in Verilog that drives an operand reader with descriptors and words as cores do."""

from fpgapipe.hw.hls_models.isa.fields import Field, Group
from fpgapipe.hw.hls_models.isa.gemm_fields import OPERAND
from fpgapipe.sim_tb.substitutes.verilog_module import ports, width

CHANCES = {
    "i__valid": 0.7,
    "halt": 0.03,
    "read__ready": 0.8,
    "o__ready": 0.75,
    "stray": 0.001,
}
"""Part of the cycles in which each input of `reader_driver` is high, for `Driven.chances`."""

# Bits of a random number that are kept of it, with its sign; a loop has up to 2 or 4 iterations.
_SIGNED_BITS = {"y": 2, "u": 6, "address": 9}
_BITS = {"y_limit": 5, "u_limit": 9, "blocks": 2, "pos0_left": 1, "pos1_left": 1}
_FROM_ONE = {"lanes_last": 5, "emit": 5, "emit_last": 5, "subs": 2, "subs_last": 2}


def reader_driver(reader: str) -> str:
    """Text of the module ``reader_driver``, which has an instance of an operand reader.

    Most descriptors are small: an instruction ends after some hundred words. One in 64 is anything,
    and so is one base in 8. Words come four cycles after their reads were accepted, and elements of
    most blocks have similar exponents. With the input ``stray`` a word comes without a read.

    Parameters
    ----------
    reader : str
        Text of the module `operand_reader`.
    """
    its_ports = ports(reader)
    fields = [_tame(number) for number in _numbers(OPERAND, 32)]
    elements = []
    for lane in range(32):
        at = 16 * lane
        exponent = f"random[0] ? random[{at + 14}:{at + 7}] : {{5'd15, random[{at + 9}:{at + 7}]}}"
        element = f"{{random[{at + 15}], {exponent}, random[{at + 6}:{at}]}}"
        # The lower half of a number of four bytes is often zero.
        elements.append(element if lane % 2 else f"(random[{at + 20}] ? {element} : 16'd0)")
    lines = [
        "module reader_driver(clk, rst, random, i__valid, halt, read__ready, o__ready, stray, "
        "read__valid);",
        f"  input {width(32 + OPERAND.bits)}random;",
        *(f"  input {name};" for name in ("clk", "rst", *CHANCES)),
        "  output read__valid;",
        "  reg [3:0] coming = 0;",
        *(
            f"  wire {width(port.bits)}{name};"
            for name, port in its_ports.items()
            if name not in ("clk", "rst", "read__valid", *CHANCES)
        ),
        f"  assign i__payload = random[{31 + OPERAND.bits}:{26 + OPERAND.bits}] == 0 ? random :",
        f"    {{{', '.join(reversed(fields))}, random[31:0]}};",
        f"  assign read__data = {{{', '.join(reversed(elements))}}};",
        "  assign read__data_valid = coming[3] | stray;",
        "  always @(posedge clk)",
        "    coming <= rst ? 4'd0 : {coming[2:0], read__valid & read__ready};",
        "  operand_reader reader (",
        ",\n".join(f"    .{name}({name})" for name in its_ports),
        "  );",
        "endmodule",
    ]
    return "\n".join(lines) + "\n\n"


def _numbers(group: Group, begin: int, loops: str = "") -> list[tuple[str, str, int, int]]:
    """Groups around a number, its name, its first bit and its width, in the order of the bits."""
    found = []
    for _ in range(max(group.times, 1)):
        for member in group.fields:
            if isinstance(member, Field):
                found.append((loops, member.name, begin, member.bits))
            else:
                found += _numbers(member, begin, member.name)
            begin += member.bits
    return found


def _tame(number: tuple[str, str, int, int]) -> str:
    """Verilog of a small number made of the random bits at its place."""
    loops, name, begin, bits = number
    if name == "base":
        return f"(random[{begin + 31}:{begin + 29}] == 0 ? random[{begin + 31}:{begin}] : " + (
            f"{{16'd0, random[{begin + 15}:{begin}]}})"
        )
    if name == "y" and not loops:
        return f"{{14'd1, random[{begin + 1}:{begin}]}}"
    if name == "count":
        if loops == "outer":
            return f"{{15'd0, random[{begin}] & random[{begin + 1}]}}"
        kept = 2 if loops == "pos" else 1
    elif name in _SIGNED_BITS:
        kept = _SIGNED_BITS[name]
        sign = f"random[{begin + kept - 1}]"
        return f"{{{{{bits - kept}{{{sign}}}}}, random[{begin + kept - 1}:{begin}]}}"
    elif name in _FROM_ONE:
        kept = _FROM_ONE[name]
        one = f"{bits}'d1"
        return f"({{{bits - kept}'d0, random[{begin + kept - 1}:{begin}]}} + {one})"
    else:
        kept = _BITS.get(name, bits)
    if kept == bits:
        return f"random[{begin + bits - 1}:{begin}]"
    return f"{{{bits - kept}'d0, random[{begin + kept - 1}:{begin}]}}"
