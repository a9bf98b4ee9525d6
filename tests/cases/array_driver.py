"""A design in Verilog that keeps random operands of packed cells within their range."""

from fpgapipe.sim_tb.substitutes.verilog_module import ports, width

_OPERANDS = ("i_activations__payload", "i_weights__payload")


def array_driver(cells: str) -> str:
    """Text of the module ``array_driver``, which has an instance of an array's cells.

    It has the ports of the cells. An operand of -128, which the quantiser never gives, becomes
    -127.

    Parameters
    ----------
    cells : str
        Text of the module `systolic_cells`.
    """
    its_ports = ports(cells)
    lines = [f"module array_driver({', '.join(its_ports)});"]
    lines += [f"  {port.declared(name)};" for name, port in its_ports.items()]
    for name in _OPERANDS:
        bits = its_ports[name].bits
        bytes_ = [f"{name}[{at + 7}:{at}]" for at in range(0, bits - 7, 8)]
        tame = [f"({each} == 8'h80 ? 8'h81 : {each})" for each in bytes_]
        rest = [f"{name}[{bits - 1}]"] * (bits % 8)
        lines.append(f"  wire {width(bits)}tame_{name} = {{{', '.join([*rest, *tame[::-1]])}}};")
    lines.append("  systolic_cells cells (")
    connections = [f"{'tame_' if name in _OPERANDS else ''}{name}" for name in its_ports]
    lines.append(
        ",\n".join(f"    .{name}({net})" for name, net in zip(its_ports, connections, strict=True))
    )
    return "\n".join([*lines, "  );", "endmodule"]) + "\n\n"
