"""Parameters of a training core, shared by its gateware, its models and the code generator."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from fpgapipe.hw.hls_models.isa.instructions import MAX_LINKS, WORD_BYTES
from fpgapipe.hw.hls_models.spec.interleave import BLOCK_BYTES, MEMORY_PORTS, WORD_CYCLES
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec
from fpgapipe.hw.hls_models.spec.systolic import Form, SystolicSpec

LEAST_BANK_BYTES = 4 * WORD_BYTES
"""Least size of a bank of the scratchpad."""

VERSION = 5
"""Version of the instructions and registers; a core reports it in a register."""


class NoRoom(NotImplementedError, ValueError):
    """No tiling fits the core's scratchpad or accumulators; a larger core may do."""


@dataclass(frozen=True)
class ScratchpadSpec:
    """On-chip memory of several banks, which can all be accessed in the same cycle.

    Addresses are in bytes and run through one bank after the other. A bank consists of two memories
    of words, one for the even words and one for the odd ones, so that as many bytes as a word has
    can be read at once from any even address. Results do not depend on the size of words.

    Parameters
    ----------
    banks : int
        Number of banks, a power of two.
    bank_bytes : int
        Size of a bank, a power of two and at least 256.
    port_bytes : int
        Size of a word, and so the bytes that a port reads or writes in a cycle: 8, 16, 32 or 64.
        An access of 64 bytes takes several cycles with smaller words, and a core fewer LUTs.
    """

    banks: int = 4
    bank_bytes: int = 1 << 19
    port_bytes: int = WORD_BYTES

    def __post_init__(self) -> None:
        if self.port_bytes not in (8, 16, 32, 64):
            raise ValueError(
                f"scratchpad port_bytes must be 8, 16, 32 or 64, not {self.port_bytes!r}"
            )
        for name, least in (("banks", 1), ("bank_bytes", LEAST_BANK_BYTES)):
            value = getattr(self, name)
            if value < least or value & (value - 1):
                raise ValueError(
                    f"scratchpad {name} must be a power of two, at least {least}, not {value!r}"
                )

    @property
    def parts(self) -> int:
        """Cycles in which a port reads or writes 64 bytes."""
        return WORD_BYTES // self.port_bytes

    @property
    def size_bytes(self) -> int:
        """Size of all banks together, in bytes."""
        return self.banks * self.bank_bytes

    @property
    def address_bits(self) -> int:
        """Bits of a byte address."""
        return (self.size_bytes - 1).bit_length()


@dataclass(frozen=True)
class VectorSpec:
    """The vector engine's width; results do not depend on it.

    Parameters
    ----------
    lanes : int
        Elements per cycle: 1, 2, 4, 8 or 16 (a vector has 16 elements).
    function_lanes : int
        Elements per cycle of instructions that apply a function; a power of two, at most `lanes`.
    mx : bool
        Whether vectors can be read and written as MXINT8 as well as BF16 and FP32.
    random : bool
        Whether instructions can test random numbers, as dropout does.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    lanes: int = 16
    function_lanes: int = 4
    mx: bool = False
    random: bool = True

    def __post_init__(self) -> None:
        if self.lanes not in (1, 2, 4, 8, 16):
            raise ValueError(f"vector lanes must be 1, 2, 4, 8 or 16, not {self.lanes!r}")
        most = self.lanes
        if not 1 <= self.function_lanes <= most or self.function_lanes & (self.function_lanes - 1):
            raise ValueError(
                f"vector function_lanes must be a power of two in 1..{most} (its lanes), not "
                f"{self.function_lanes!r}"
            )


@dataclass(frozen=True)
class CoreSpec:
    """A training core.

    Parameters
    ----------
    rows : int
        Rows of the array, along the reduction; a divisor of 32, the block size of MXINT8.
    cols : int
        Columns of the array: at most 32, or a multiple of 32.
    num_engines : int
        Number of GEMM engines, 1 to 4.
    acc_depth : int
        FP32 accumulators below each column, a power of two in 16..65536.
    scratchpad : ScratchpadSpec
        On-chip memory.
    bus_bytes : int
        Width of the AXI4 bus in bytes: 4, 8, 16, 32 or 64.
    burst_beats : int
        Longest burst in beats, 1 to 256.
    outstanding : int
        Number of read bursts that may be under way at a time, 1 to 64.
    vector : VectorSpec or None
        The vector engine, if there is one.
    links : tuple of LinkEngineSpec or OnChipSpec
        This core's ends of its links to other cores, at most 4.
    counters : bool
        Whether there are counters of what engines wait for, besides those that show progress and
        errors of links.
    form : Form
        How the cells of the array are made. Cells are packed on parts with DSP48E2 only.
    memory_ports : int
        Ports of the memory, 1 or 2: AXI4 masters among which blocks of addresses are shared
        (:mod:`fpgapipe.hw.hls_models.spec.interleave`).

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    rows: int
    cols: int
    num_engines: int = 1
    acc_depth: int = 1024
    scratchpad: ScratchpadSpec = ScratchpadSpec()
    bus_bytes: int = 64
    burst_beats: int = 16
    outstanding: int = 64
    vector: VectorSpec | None = None
    links: tuple[LinkEndSpec, ...] = ()
    counters: bool = True
    form: Form = Form.PLAIN
    memory_ports: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", tuple(self.links))
        object.__setattr__(self, "form", Form(self.form))
        if self.rows not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"core rows must divide 32, not {self.rows!r}")
        if self.cols < 1 or (self.cols > 32 and self.cols % 32):
            raise ValueError(f"core cols must be in 1..32 or a multiple of 32, not {self.cols!r}")
        _ = self.array  # refuses sizes that its form has not
        if self.num_engines not in (1, 2, 3, 4):
            raise ValueError(f"core num_engines must be in 1..4, not {self.num_engines!r}")
        if not 16 <= self.acc_depth <= 1 << 16 or self.acc_depth & (self.acc_depth - 1):
            raise ValueError(
                f"core acc_depth must be a power of two in 16..65536, not {self.acc_depth!r}"
            )
        if self.bus_bytes not in (4, 8, 16, 32, 64):
            raise ValueError(f"core bus_bytes must be 4, 8, 16, 32 or 64, not {self.bus_bytes!r}")
        for name, most in (("burst_beats", 256), ("outstanding", 64)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"core {name} must be in 1..{most}, not {getattr(self, name)!r}")
        if self.memory_ports not in MEMORY_PORTS:
            raise ValueError(f"core memory_ports must be 1 or 2, not {self.memory_ports!r}")
        if self.memory_ports > 1 and self.burst_beats * self.bus_bytes > BLOCK_BYTES:
            raise ValueError(
                f"bursts of a core with two memory ports must be at most {BLOCK_BYTES:,} bytes, "
                f"not {self.burst_beats * self.bus_bytes:,}"
            )
        least = 4 * self.vector.lanes if self.vector else 0
        if self.scratchpad.port_bytes < least:
            raise ValueError(
                f"scratchpad port_bytes must be at least {least} (FP32 of {least // 4} vector "
                f"lanes), not {self.scratchpad.port_bytes}"
            )
        if len(self.links) > MAX_LINKS:
            raise ValueError(f"core links must be at most {MAX_LINKS}, not {len(self.links)}")
        ports = sorted({link.port_bytes for link in self.links})
        if len(ports) > 1 or not {*ports} <= {WORD_BYTES, self.bus_bytes}:
            raise ValueError(
                f"core links must all have port_bytes of {WORD_BYTES} or of the bus, "
                f"{self.bus_bytes}, not {' and '.join(map(str, ports))}"
            )

    @property
    def array(self) -> SystolicSpec:
        """The array of one engine."""
        return SystolicSpec(self.rows, self.cols, form=self.form)

    @property
    def cells(self) -> int:
        """Multiply-accumulates per cycle, all engines together."""
        return self.array.cells * self.num_engines

    @property
    def vector_lanes(self) -> int:
        """Lanes of the vector engine; 0 without one."""
        return self.vector.lanes if self.vector else 0

    @property
    def most_memory_bytes(self) -> int:
        """Bytes of memory that the bus moves in a cycle at most, both directions together.

        A port by itself is taken to move no more than its width.
        """
        return self.bus_bytes * self.memory_ports

    @property
    def port_cycles(self) -> int:
        """Cycles that words take between the bus and the ports of the memory."""
        return WORD_CYCLES if self.memory_ports > 1 else 0

    @property
    def link_port_bytes(self) -> int:
        """Bytes of a word that enter or leave a link in a cycle."""
        return self.links[0].port_bytes if self.links else WORD_BYTES

    @property
    def links_reach_scratchpad(self) -> bool:
        """Whether SEND and RECEIVE may name words of the scratchpad, which pass in one part."""
        return self.link_port_bytes == WORD_BYTES

    @property
    def digest(self) -> str:
        """First eight hexadecimal digits of the SHA-256 of all parameters.

        Options of small cores, the form of cells, and the number of memory ports count only if they
        differ from their defaults, so that other cores have the digests that they had before there
        were such options.
        """
        text = json.dumps(_without_defaults(asdict(self)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


_OPTIONS: dict[str, Any] = {
    "port_bytes": WORD_BYTES,
    "random": True,
    "counters": True,
    "form": Form.PLAIN,
    "memory_ports": 1,
}
"""Default values of the parameters that digests leave out."""


def _without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return parameters without those options that have their default values."""
    return {
        name: _of_parts(value)
        for name, value in values.items()
        if name not in _OPTIONS or value != _OPTIONS[name]
    }


def _of_parts(value: Any) -> Any:
    if isinstance(value, dict):
        return _without_defaults(value)
    return [*map(_of_parts, value)] if isinstance(value, (list, tuple)) else value
