"""A static timing estimate over a netlist of Yosys for UltraScale+, before anything is placed.

Paths begin at clocked outputs or ports and end at clocked inputs or ports. Every bit that a cell
drives is a node of its own, so carries, whose cells have eight sums, and memories make no loops
that the design does not have. Cells are taken as they stand in the netlist:

* The input of a LUT that comes last gets the fastest pin.
* A register, a multiplexer and a carry are in the slice of the LUT before them.
* Two CARRY4, of which one continues the other, are a CARRY8.
* A DSP has the registers that Yosys gave it. Vivado should move further ones into it.

Neither the skew nor the uncertainty of the clock is counted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import ultrascale_delays as delays
from flat_netlist import Bit, Cell, Netlist

REGISTERS = ("FDRE", "FDSE", "FDCE", "FDPE")
LUTS = ("LUT", "INV")
MULTIPLEXERS = ("MUXF7", "MUXF8", "MUXF9")
MEMORIES = ("RAM32", "RAM64", "RAM128", "RAM256")
SHIFTS = ("SRL",)
BLOCK_RAMS = ("RAMB18", "RAMB36")
CLOCKS = ("C", "CLK", "WCLK", "CLKARDCLK", "CLKBWRCLK")


@dataclass(frozen=True)
class Path:
    """A path from a clock to the next.

    Attributes
    ----------
    delay_ps, wire_ps : float
        All of it, with the set-up time at its end, and the part of it in wires.
    luts, carries : int
        Cells on the way; a carry is one of eight bits.
    begin, end : str
        Names of the nets or cells at both ends.
    where : str
        Instance of a module in which it ends; empty for the design itself.
    is_port : bool
        Whether it begins or ends at a port of the design.
    """

    delay_ps: float
    wire_ps: float
    luts: int
    carries: int
    begin: str
    end: str
    where: str
    is_port: bool


@dataclass
class _Node:
    """When a bit changes, where the path came from, and the wires on it."""

    time: float
    wires: float
    before: Bit | None
    luts: int
    carries: int
    is_port: bool


@dataclass
class _Carry:
    """A CARRY8: one CARRY4 or two."""

    cells: list[Cell]
    before: "_Carry | None" = None

    def bits(self, port: str) -> list[Bit]:
        return [
            bit for cell in self.cells for bit in (cell.inputs | cell.outputs).get(port, ["0"] * 4)
        ]


class Timing:
    """Times at which the bits of a netlist change, and its paths.

    Parameters
    ----------
    netlist : Netlist
    wires : float
        Factor of the delays of wires.

    Raises
    ------
    ValueError
        If a cell is not known, or cells form a loop.
    """

    def __init__(self, netlist: Netlist, wires: float = 1.0) -> None:
        self._netlist, self._factor = netlist, wires
        self._drivers: dict[Bit, Cell] = {}
        self._carries: dict[Bit, tuple[_Carry, str, int]] = {}
        self._nodes: dict[Bit, _Node] = {}
        for cell in netlist.cells:
            for bits in cell.outputs.values():
                self._drivers |= dict.fromkeys(bits, cell)
        self._fan_out = self._fan_outs()
        self._join_carries()
        self._start()
        self._propagate()

    # Structure

    def _fan_outs(self) -> dict[Bit, int]:
        """Numbers of pins at which nets end; eight registers of a slice share control pins."""
        data: dict[Bit, int] = {}
        control: dict[Bit, int] = {}
        for cell in self._netlist.cells:
            shared = cell.kind in REGISTERS
            for port, bits in cell.inputs.items():
                counts = control if shared and port != "D" else data
                for bit in bits:
                    counts[bit] = counts.get(bit, 0) + 1
        return {
            bit: data.get(bit, 0) + -(-control.get(bit, 0) // 8) for bit in data.keys() | control
        }

    def _join_carries(self) -> None:
        cells = [cell for cell in self._netlist.cells if cell.kind == "CARRY4"]
        last = {cell.outputs["CO"][3]: cell for cell in cells if "CO" in cell.outputs}
        places: dict[int, _Carry] = {}

        def place(cell: Cell) -> _Carry:
            chain = []
            while id(cell) not in places:
                chain.append(cell)
                earlier = last.get(cell.inputs.get("CI", ["0"])[0])
                if earlier is None:
                    break
                cell = earlier
            carry = places.get(id(cell))
            for each in reversed(chain):
                if carry is not None and len(carry.cells) == 1:
                    carry.cells.append(each)
                else:
                    carry = _Carry([each], carry)
                places[id(each)] = carry
            assert carry is not None
            return carry

        for cell in cells:
            place(cell)
        for carry in {id(each): each for each in places.values()}.values():
            for port in ("O", "CO"):
                for index, bit in enumerate(carry.bits(port)):
                    self._carries[bit] = carry, port, index

    def _sources(self, bit: Bit) -> list[Bit]:
        """Bits on which one depends in the same cycle."""
        if bit in self._nodes and bit not in self._late:
            return []
        if bit in self._carries:
            return [source for source, _, _ in self._carry_arcs(*self._carries[bit])]
        cell = self._drivers[bit]
        return [source for port in self._through(cell, bit) for source in cell.inputs[port]]

    def _through(self, cell: Cell, bit: Bit) -> list[str]:
        """Ports from which a cell's output depends in the same cycle."""
        if cell.kind.startswith((*LUTS, *MULTIPLEXERS)):
            return list(cell.inputs)
        if cell.kind.startswith(SHIFTS):
            return [port for port in cell.inputs if re.fullmatch(r"A\d?", port)]
        if cell.kind.startswith(MEMORIES):
            (port,) = (port for port, bits in cell.outputs.items() if bit in bits)
            if port in ("SPO", "DPO", "O"):
                letter = "DPRA" if port == "DPO" else "A"
                return [each for each in cell.inputs if re.fullmatch(rf"{letter}\d?", each)]
            return [f"ADDR{port[-1]}"]
        if cell.kind == "DSP48E2":
            if any(_has_register(cell, port) for port in ("A", "B", "M")):
                raise ValueError(f"DSP {cell.name} has registers, but none for its product")
            return [port for port in ("A", "B", "C", "D", "PCIN") if port in cell.inputs]
        raise ValueError(f"cell {cell.name} is a {cell.kind}, whose delays are not known")

    # Times

    def _start(self) -> None:
        """Give times to what clocks and ports drive."""
        self._late: set[Bit] = set()
        for bit in self._netlist.inputs:
            self._set(bit, delays.CLOCK_TO_REGISTER, is_port=True)
        for cell in self._netlist.cells:
            outputs = [bit for bits in cell.outputs.values() for bit in bits]
            if cell.kind in REGISTERS:
                time: float = delays.CLOCK_TO_REGISTER
            elif cell.kind.startswith(BLOCK_RAMS):
                time = 0
                for port, bits in cell.outputs.items():
                    side = "B" if re.match("DOU?T?P?B", port) else "A"
                    registered = _number(cell.parameters.get(f"DO{side}_REG", 0)) > 0
                    for bit in bits:
                        self._set(bit, delays.CLOCK_TO_BLOCK_RAM[registered])
                continue
            elif cell.kind.startswith((*MEMORIES, *SHIFTS)):
                time = delays.CLOCK_TO_LUT_MEMORY
                self._late |= set(outputs)
            elif cell.kind == "DSP48E2" and _has_register(cell, "P"):
                time = delays.CLOCK_TO_DSP
            elif cell.kind in ("GND", "VCC"):
                time = 0
            else:
                continue
            for bit in outputs:
                self._set(bit, time)

    def _set(self, bit: Bit, time: float, *, is_port: bool = False) -> None:
        self._nodes[bit] = _Node(time, 0.0, None, 0, 0, is_port)

    def _propagate(self) -> None:
        graph = {}
        for bit in self._drivers:
            if bit not in self._nodes or bit in self._late:
                graph[bit] = [each for each in self._sources(bit) if not isinstance(each, str)]
        try:
            order = list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            names = [self._name(bit) for bit in error.args[1]]
            raise ValueError(f"nets form a loop: {', '.join(names[:8])}") from error
        for bit in order:
            if bit in graph:
                self._time(bit)
            elif bit not in self._nodes:  # nothing drives it
                self._set(bit, 0)

    def _time(self, bit: Bit) -> None:
        """Find when a bit changes from when those change that it depends on."""
        best = self._nodes.get(bit)
        for source, time, wires, kind in self._arrivals(bit):
            node = self._nodes[source]
            if best is None or time > best.time:
                best = _Node(
                    time,
                    wires,
                    source,
                    node.luts + (kind == "lut"),
                    node.carries + (kind == "carry"),
                    node.is_port,
                )
        self._nodes[bit] = best or _Node(0.0, 0.0, None, 0, 0, False)

    def _arrivals(self, bit: Bit) -> Iterator[tuple[Bit, float, float, str]]:
        """Yield each bit that this one depends on, its time and wires, and the cell's kind."""
        if bit in self._carries:
            for source, delay, is_local in self._carry_arcs(*self._carries[bit]):
                if not isinstance(source, str):
                    node = self._nodes[source]
                    hop = 0.0 if is_local else self._wire(source)
                    yield source, node.time + delay + hop, node.wires + hop, "carry"
            return
        cell = self._drivers[bit]
        if cell.kind.startswith(MULTIPLEXERS):
            for port, (source,) in cell.inputs.items():
                if isinstance(source, str):
                    continue
                node = self._nodes[source]
                if port == "S":
                    hop = self._wire(source)
                    delay: float = delays.X_PIN + delays.MUX_SELECT + hop
                elif self._is_local(source):
                    hop, delay = 0.0, delays.LUT_TO_MUX + delays.MUX
                else:  # through a LUT
                    hop = self._wire(source)
                    delay = hop + delays.LUT_PINS[0] + delays.LUT[0]
                    delay += delays.LUT_TO_MUX + delays.MUX
                yield source, node.time + delay, node.wires + hop, "mux"
            return
        sources = {each for each in self._sources_of(cell, bit) if not isinstance(each, str)}
        if cell.kind == "DSP48E2":
            for source in sources:
                hop = self._wire(source)
                node = self._nodes[source]
                yield source, node.time + hop + delays.DSP, node.wires + hop, "dsp"
            return
        reached = sorted(
            ((self._nodes[each].time + self._wire(each), each) for each in sources), reverse=True,
            key=lambda pair: pair[0],
        )  # fmt: skip
        for place, (time, source) in enumerate(reached):
            pin = min(place, len(delays.LUT) - 1)
            hop = self._wire(source)
            yield (
                source,
                time + delays.LUT_PINS[pin] + delays.LUT[pin],
                self._nodes[source].wires + hop,
                "lut",
            )

    def _sources_of(self, cell: Cell, bit: Bit) -> list[Bit]:
        return [source for port in self._through(cell, bit) for source in cell.inputs[port]]

    def _carry_arcs(self, carry: _Carry, port: str, index: int) -> list[tuple[Bit, float, bool]]:
        """Bits that a sum or a carry depends on, with delays, and whether there is no wire."""
        sums = port == "O"
        selects = delays.SUMS_OF_SELECTS if sums else delays.CARRIES_OF_SELECTS
        data = delays.SUMS_OF_DATA if sums else delays.CARRIES_OF_DATA
        found: list[tuple[Bit, float, bool]] = []
        for place, source in enumerate(carry.bits("S")[: index + 1]):
            way = delays.LUT_TO_CARRY
            if not self._is_lut(source):
                way += delays.LUT_PINS[0] + delays.LUT[0]
            found.append((source, way + selects[place][index - place], self._is_lut(source)))
        for place, source in enumerate(carry.bits("DI")[: index + (not sums)]):
            found.append((source, delays.X_PIN + data[place][index - place - sums], False))
        into = delays.SUMS_OF_CARRY if sums else delays.CARRIES_OF_CARRY
        first = carry.cells[0]
        if carry.before is not None:
            found.append((first.inputs["CI"][0], delays.CARRY_TO_CARRY + into[index], True))
        else:
            begins = delays.SUMS_OF_START if sums else delays.CARRIES_OF_START
            for name in ("CYINIT", "CI"):
                for source in first.inputs.get(name, ()):
                    found.append((source, delays.X_PIN + begins[index], False))
        return found

    def _is_lut(self, bit: Bit) -> bool:
        return not isinstance(bit, str) and (
            bit in self._drivers and self._drivers[bit].kind.startswith(LUTS)
        )

    def _is_local(self, bit: Bit) -> bool:
        """Whether a LUT, or a multiplexer of LUTs, drives a bit."""
        driver = self._drivers.get(bit)
        return driver is not None and driver.kind.startswith((*LUTS, *MULTIPLEXERS, *MEMORIES))

    def _wire(self, bit: Bit) -> float:
        """Way out of the slice and wire to the pins at which a net ends."""
        leaves = 0.0
        driver = self._drivers.get(bit)
        if bit in self._carries:
            leaves = delays.CARRY_TO_PIN if self._carries[bit][1] == "O" else 0
        elif driver is not None and driver.kind.startswith(MULTIPLEXERS):
            leaves = delays.MUX_TO_PIN
        return leaves + self._factor * delays.wire(max(self._fan_out.get(bit, 1), 1))

    # Paths

    def _ends(self) -> Iterator[tuple[Bit, float, float, str, str, bool]]:
        """Yield each end's bit, delay, wire, name and instance, and whether it is a port."""
        for bit in self._netlist.outputs:
            if not isinstance(bit, str):
                hop = self._wire(bit)
                tail = delays.X_PIN + delays.X_TO_REGISTER + delays.REGISTER_SETUP
                yield bit, hop + tail, hop, _vector(self._name(bit)), "", True
        for cell in self._netlist.cells:
            if cell.kind.startswith((*LUTS, *MULTIPLEXERS, "CARRY")):
                continue
            for port, bits in cell.inputs.items():
                if port in CLOCKS:
                    continue
                for bit in bits:
                    if isinstance(bit, str):
                        continue
                    setup = self._setup(cell, port, bit)
                    if setup is None:
                        continue
                    local = cell.kind in REGISTERS and port == "D" and self._packed(bit)
                    hop = 0.0 if local else self._wire(bit)
                    yield bit, setup + hop, hop, self._cell_name(cell), cell.where, False

    def _packed(self, bit: Bit) -> bool:
        return self._is_local(bit) or bit in self._carries

    def _setup(self, cell: Cell, port: str, bit: Bit) -> float | None:
        """From the end of the wire on; None if nothing is clocked there."""
        kind = cell.kind
        if kind in REGISTERS:
            if port != "D":
                return delays.CONTROL_PIN + delays.CONTROL_SETUP
            if bit in self._carries:
                way: float = delays.CARRY_TO_REGISTER if self._carries[bit][1] == "O" else 0
            elif not self._is_local(bit):
                way = delays.X_PIN + delays.X_TO_REGISTER
            elif self._drivers[bit].kind.startswith(MULTIPLEXERS):
                way = delays.MUX_TO_REGISTER
            else:
                way = delays.LUT_TO_REGISTER
            return way + delays.REGISTER_SETUP
        if kind.startswith((*MEMORIES, *SHIFTS)):
            if port.startswith("D") and not port.startswith("DPRA"):
                return delays.X_PIN + delays.LUT_MEMORY_DATA_SETUP
            if port in ("WE", "CE"):
                return delays.X_PIN + delays.LUT_MEMORY_ENABLE_SETUP
            writes = port == "ADDRH" or (kind.endswith("D") and re.fullmatch(r"A\d?", port))
            if kind in ("RAM32M", "RAM64M"):
                writes = port == "ADDRD"
            return delays.LUT_PINS[-1] + delays.LUT_MEMORY_ADDRESS_SETUP if writes else None
        if kind.startswith(BLOCK_RAMS):
            names = [name for name in delays.BLOCK_RAM_SETUP if port.startswith(name)]
            return delays.BLOCK_RAM_SETUP[names[0]] if names else None
        if kind == "DSP48E2":
            return self._dsp_setup(cell, port)
        return None

    @staticmethod
    def _dsp_setup(cell: Cell, port: str) -> float | None:
        if port not in ("A", "B", "C", "D", "PCIN"):
            return None
        if port != "PCIN" and _has_register(cell, port):
            return delays.DSP_INPUT_SETUP
        return delays.DSP_SETUP if _has_register(cell, "P") else None

    def _name(self, bit: Bit) -> str:
        return self._netlist.names.get(bit, str(bit))

    def _cell_name(self, cell: Cell) -> str:
        """Name of a vector that a cell drives; without one, where it lies and its kind."""
        names = (
            self._netlist.names.get(bit, "$") for bits in cell.outputs.values() for bit in bits
        )
        plain = (_vector(name) for name in names)
        return next((name for name in plain if "$" not in name), f"{cell.where} {cell.kind}")

    def _begin(self, bit: Bit) -> str:
        while (before := self._nodes[bit].before) is not None:
            bit = before
        driver = self._drivers.get(bit)
        return _vector(self._name(bit)) if driver is None else self._cell_name(driver)

    def paths(self) -> list[Path]:
        """The slowest path of each pair of a beginning and an end, the slowest first.

        Bits of a vector are taken together.
        """
        slowest: dict[str, tuple[float, Bit, float, str, bool]] = {}
        for bit, tail, hop, name, where, is_port in self._ends():
            if bit not in self._nodes:
                continue
            end, delay = name, self._nodes[bit].time + tail
            if end not in slowest or delay > slowest[end][0]:
                slowest[end] = delay, bit, hop, where, is_port
        found = []
        for end, (delay, bit, hop, where, is_port) in slowest.items():
            node = self._nodes[bit]
            found.append(
                Path(
                    round(delay, 1),
                    round(node.wires + hop, 1),
                    node.luts,
                    node.carries,
                    self._begin(bit),
                    end,
                    where,
                    is_port or node.is_port,
                )
            )
        return sorted(found, key=lambda path: -path.delay_ps)


def _has_register(cell: Cell, port: str) -> bool:
    """Whether a DSP has a register there; the primitive has one where nothing is said."""
    return _number(cell.parameters.get(f"{port}REG", 1)) > 0


def _vector(name: str) -> str:
    """Name of a net without the number of the bit and that which makes it the only one."""
    return re.sub(r"\[\d+\]$|(?<!\\)\$\d+(?=\[|$)", "", name)


def _number(value: str | int) -> int:
    """Value of a parameter, which Yosys writes in binary digits."""
    return int(value, 2) if isinstance(value, str) and set(value) <= {"0", "1"} else int(value or 0)
