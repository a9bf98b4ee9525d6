"""Checks the register block against its map, over AXI4-Lite with random pauses."""

import random
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp

from fpgapipe.hw.hls_models.model.registers import Kind, RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.link_clock import METER_BITS
from fpgapipe.sim_tb.drivers.stream import Pauses, cycle, parameters, reset, start

INPUTS = ("running", "done", "error", "error_code", "error_engine", "error_index", "nan")


def link_inputs(registers: RegisterMap) -> dict[str, tuple[str, int]]:
    """Inputs of links and queues, each with its register and its lowest bit in the register."""
    found: dict[str, tuple[str, int]] = {}
    for number in range(len(registers.spec.links)):
        port, name = f"links__{number}", f"LINK{number}_"
        found |= {
            f"{port}__state": (f"{name}STATUS", 0),
            f"{port}__peer_delivered_known": (f"{name}STATUS", 3),
            f"{port}__session": (f"{name}SESSIONS", 0),
            f"{port}__peer": (f"{name}SESSIONS", 16),
            f"{port}__ticks": (f"{name}CLOCK", 0),
            f"{port}__ticks_known": (f"{name}CLOCK", METER_BITS),
        }
        for kind in ("delivered", "peer_delivered"):
            for channel in range(3):
                found[f"{port}__{kind}__{channel}"] = (f"{name}{kind.upper()}{channel}_LO", 0)
    for register in registers:
        if register.name.startswith("QUEUE"):
            queue, what = register.name.removeprefix("QUEUE").split("_")
            port = f"queues__{queue}__"
            if what == "WAIT":
                found |= {port + f.name: (register.name, f.low) for f in register.fields}
            else:
                found[port + what.lower()] = (register.name, 0)
    return found


class Bench:
    """A host that pauses, and the signals of the core."""

    def __init__(self, dut: Any) -> None:
        given = parameters()
        # Value of the counters after a reset, for tests of their upper halves.
        self.first_count = given.pop("first_count", 0)
        given["scratchpad"] = ScratchpadSpec(**given["scratchpad"])
        self.dut = dut
        given["vector"] = given["vector"] and VectorSpec(**given["vector"])
        given["links"] = [
            LinkEngineSpec(**{**link, "slots": tuple(link["slots"])}) for link in given["links"]
        ]
        self.map = RegisterMap(CoreSpec(**given))
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
        write, read = self.master.write_if, self.master.read_if
        for channel in (
            *(write.aw_channel, write.w_channel, write.b_channel),
            *(read.ar_channel, read.r_channel),
        ):
            channel.set_pause_generator(iter(Pauses(self.rng), None))
        self.events = [name.lower() for name in self.map.counters if name != "CYCLES"]
        for name in (*INPUTS, *self.events, *link_inputs(self.map)):
            getattr(dut, name).value = 0
        self.pulses = {"start": 0, "cancel": 0}
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        """Count pulses, and check that responses obey the rules of the bus."""
        dut = self.dut
        waiting: dict[str, Any] = {}
        while True:
            await FallingEdge(dut.clk)
            for name in self.pulses:
                self.pulses[name] += int(getattr(dut, name).value)
            for channel, fields in (("b", ("resp",)), ("r", ("resp", "data"))):
                prefix = f"s_axil_{channel}"
                offered = None
                if getattr(dut, f"{prefix}valid").value:
                    offered = [int(getattr(dut, f"{prefix}{field}").value) for field in fields]
                assert waiting.get(channel) in (None, offered), f"{channel} changed while waiting"
                moves = bool(getattr(dut, f"{prefix}ready").value) or bool(dut.rst.value)
                waiting[channel] = None if moves else offered

    async def read(self, name: str) -> int:
        """Read a register."""
        result = await self.master.read(self.map.offset(name), 4)
        assert result.resp == AxiResp.OKAY, name
        return int.from_bytes(result.data, "little")

    async def write(self, name: str, value: int) -> None:
        """Write a register."""
        result = await self.master.write(self.map.offset(name), value.to_bytes(4, "little"))
        assert result.resp == AxiResp.OKAY, name

    async def command(self, name: str) -> None:
        """Write a command to CONTROL."""
        await self.write("CONTROL", self.map["CONTROL"].field(name).mask)

    async def status(self) -> set[str]:
        """Names of the bits of STATUS that are set."""
        value = await self.read("STATUS")
        fields = self.map["STATUS"].fields
        assert value & ~sum(field.mask for field in fields) == 0
        return {field.name for field in fields if field.of(value)}

    async def count(self, name: str) -> int:
        """Read both halves of a counter."""
        low = await self.read(f"{name}_LO")
        return low | await self.read(f"{name}_HI") << 32

    async def set(self, **values: int) -> None:
        """Drive signals of the core, for at least one cycle."""
        for name, value in values.items():
            getattr(self.dut, name).value = value
        await RisingEdge(self.dut.clk)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def keeps_what_is_written(dut: Any) -> None:
    """Every register behaves as its map says; accesses to all other addresses are errors."""
    await start(dut)
    bench = Bench(dut)
    values = {
        register.offset: register.reset
        for register in bench.map
        if register.kind not in (Kind.COUNTER_LO, Kind.COUNTER_HI)
    }
    for offset, value in values.items():
        result = await bench.master.read(offset, 4)
        assert (result.resp, int.from_bytes(result.data, "little")) == (AxiResp.OKAY, value)
    others = set(range(0, 4096, 4)) - {register.offset for register in bench.map}
    registers = [register for register in bench.map if register.kind is not Kind.COMMAND]
    stored = [register for register in registers if register.kind is Kind.STORED]
    for _ in range(150):
        # The master sets the strobes for any bytes of a word.
        at, size = bench.rng.choice([(0, 4), (0, 1), (1, 1), (1, 2), (2, 2), (3, 1), (0, 3)])
        data = bench.rng.randbytes(size)
        if bench.rng.random() < 0.2:
            offset = bench.rng.choice(sorted(others))
            assert (await bench.master.write(offset + at, data)).resp == AxiResp.SLVERR
            result = await bench.master.read(offset, 4)
            assert (result.resp, result.data) == (AxiResp.SLVERR, bytes(4))
            continue
        register = bench.rng.choice(bench.rng.choice([registers, stored, stored]))
        assert (await bench.master.write(register.offset + at, data)).resp == AxiResp.OKAY
        if register.kind is Kind.STORED:
            mask = ((1 << 8 * size) - 1) << 8 * at
            new = int.from_bytes(data, "little") << 8 * at
            kept = values[register.offset]
            values[register.offset] = (kept & ~mask | new) & register.writable
        for name in ("PROGRAM", "MEMORY_BASE", "MEMORY_LIMIT"):
            low, high = (bench.map.offset(f"{name}_{half}") for half in ("LO", "HI"))
            output = int(getattr(dut, name.lower()).value)
            assert output == values[low] | values[high] << 32
        offset = bench.rng.choice([register.offset, *values])
        if offset in values:
            result = await bench.master.read(offset, 4)
            assert int.from_bytes(result.data, "little") == values[offset], hex(offset)
    assert bench.pulses == {"start": 0, "cancel": 0}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def takes_accesses_side_by_side(dut: Any) -> None:
    """Concurrent reads and writes do not disturb each other."""
    await start(dut)
    bench = Bench(dut)
    names = ["PROGRAM_HI", "MEMORY_BASE_LO", "MEMORY_BASE_HI", "MEMORY_LIMIT_LO"]
    for _ in range(15):
        values = [bench.rng.getrandbits(32) for _ in names]
        writes = [
            cocotb.start_soon(bench.write(name, value))
            for name, value in zip(names, values, strict=True)
        ]
        constants = [cocotb.start_soon(bench.read(name)) for name in ("ID", "ROWS", "COLS")]
        spec = bench.map.spec
        found = [await task for task in constants]
        assert found == [bench.map["ID"].reset, spec.rows, spec.cols]
        for task in writes:
            await task
        reads = [cocotb.start_soon(bench.read(name)) for name in names]
        assert [await task for task in reads] == values


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def runs_a_core(dut: Any) -> None:
    """Commands are pulses; done, error and NaN stay visible in STATUS until they are cleared."""
    await start(dut)
    bench = Bench(dut)
    assert await bench.status() == {"idle"}
    await bench.write("IRQ_ENABLE", 0xFFFFFFFF)
    # Strobes matter: a command is ignored if its byte is not written.
    await bench.master.write(bench.map.offset("CONTROL") + 1, b"\xff")
    assert bench.pulses == {"start": 0, "cancel": 0}
    await bench.command("start")
    assert bench.pulses == {"start": 1, "cancel": 0}
    await bench.set(running=1)
    assert await bench.status() == {"running"}
    await bench.set(nan=1)
    await bench.set(nan=0)
    await bench.set(done=1, running=0)
    assert await bench.status() == {"idle", "done", "nan"}
    assert dut.irq.value
    await bench.command("clear_status")
    assert await bench.status() == {"idle"}
    assert not dut.irq.value
    # The core's `done` is still high; the next program ends in an error.
    await bench.command("start")
    await bench.set(running=1, done=0)
    await bench.command("start")
    assert await bench.status() == {"running"}
    await bench.set(error=1, error_code=5, error_engine=4, error_index=0x89ABCDEF)
    await bench.set(error_code=1, error_engine=2, error_index=3)
    assert await bench.status() == {"running", "error"}
    assert await bench.read("ERROR") == 5 | 4 << 8
    assert await bench.read("ERROR_INDEX") == 0x89ABCDEF
    assert dut.irq.value
    await bench.write("IRQ_ENABLE", bench.map["IRQ_ENABLE"].field("done").mask)
    await ClockCycles(dut.clk, 2)
    assert not dut.irq.value
    await bench.command("abort")
    assert bench.pulses == {"start": 3, "cancel": 1}
    await bench.set(running=0)
    await bench.command("start")
    assert await bench.status() == {"idle"}
    assert await bench.read("ERROR") == await bench.read("ERROR_INDEX") == 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def counts(dut: Any) -> None:
    """Each counter counts all of its own events until the counters are cleared."""
    await start(dut)
    bench = Bench(dut)
    expected = dict.fromkeys(bench.map.counters, bench.first_count)
    for _ in range(300):
        running = bench.rng.random() < 0.5
        expected["CYCLES"] += running
        dut.running.value = int(running)
        for name in bench.events:
            port = getattr(dut, name)
            most = 3 if name.endswith("x_words") else bench.map.spec.bus_bytes
            amount = bench.rng.randrange(most + 1) if len(port) > 1 else 1
            amount *= bench.rng.random() < 0.5
            port.value = amount
            expected[name.upper()] += amount
        await RisingEdge(dut.clk)
    for name in ("running", *bench.events):
        getattr(dut, name).value = 0
    assert {name: await bench.count(name) for name in expected} == expected
    await bench.command("clear_counters")
    await bench.set(load_bytes=bench.map.spec.bus_bytes)
    await bench.set(load_bytes=0)
    for name in expected:
        count = bench.map.spec.bus_bytes if name == "LOAD_BYTES" else 0
        assert await bench.count(name) == count, name


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reads_halves_of_one_moment(dut: Any) -> None:
    """A read of the lower half of a counter latches the upper half."""
    await start(dut)
    bench = Bench(dut)
    for wait_cycles in range(60, 100):
        await reset(dut)
        dut.running.value = 1
        before = cycle()
        await ClockCycles(dut.clk, wait_cycles)
        count = await bench.count("CYCLES") - bench.first_count
        # The counter is one cycle late.
        assert wait_cycles - 1 <= count < cycle() - before
        dut.running.value = 0


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def forgets_at_reset(dut: Any) -> None:
    """A reset in the middle of accesses discards them."""
    await start(dut)
    for delay_cycles in range(1, 5):
        dut.s_axil_awaddr.value = 0x060
        dut.s_axil_wdata.value = 0xFFFFFFFF
        dut.s_axil_wstrb.value = 0xF
        dut.s_axil_araddr.value = 0
        for name in ("awvalid", "wvalid", "arvalid"):
            getattr(dut, f"s_axil_{name}").value = 1
        for name in ("bready", "rready"):
            getattr(dut, f"s_axil_{name}").value = 0
        await ClockCycles(dut.clk, delay_cycles)
        for name in ("awvalid", "wvalid", "arvalid"):
            getattr(dut, f"s_axil_{name}").value = 0
        await reset(dut)
        await FallingEdge(dut.clk)
        assert not dut.s_axil_bvalid.value
        assert not dut.s_axil_rvalid.value
        assert dut.program.value == 0
        await ClockCycles(dut.clk, 3)
        assert not dut.s_axil_bvalid.value
        assert not dut.s_axil_rvalid.value


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def shows_links(dut: Any) -> None:
    """The state of links and queues is where the map says; a command reaches only its link."""
    await start(dut)
    bench = Bench(dut)
    inputs = link_inputs(bench.map)
    links = range(len(bench.map.spec.links))
    pulses = [0] * len(links)

    async def watch() -> None:
        while True:
            await FallingEdge(dut.clk)
            for number in links:
                pulses[number] += int(getattr(dut, f"links__{number}__clear").value)

    task = cocotb.start_soon(watch())
    for turn in range(2 if links else 0):
        expected: dict[str, int] = {}
        for name, (register, low) in inputs.items():
            value = bench.rng.getrandbits(len(getattr(dut, name)))
            getattr(dut, name).value = value
            expected[register] = expected.get(register, 0) | value << low
        await RisingEdge(dut.clk)
        for register, value in expected.items():
            assert await bench.read(register) == value & 0xFFFF_FFFF, register
            if bench.map[register].kind is Kind.STATUS_LO:
                # A read of the lower half latches the upper half.
                at = next(name for name, (known, _) in inputs.items() if known == register)
                getattr(dut, at).value = 0
                assert await bench.read(register.replace("_LO", "_HI")) == value >> 32, register
        for number in links:
            seed = bench.rng.getrandbits(32)
            await bench.write(f"LINK{number}_SEED", seed)
            await bench.write(f"LINK{number}_ENABLE", turn)
            await bench.write(f"LINK{number}_CONTROL", 1)
            await bench.write(f"LINK{number}_CONTROL", 0)
            assert int(getattr(dut, f"links__{number}__seed").value) == seed & 0x7FFF
            assert int(getattr(dut, f"links__{number}__enable").value) == turn
            assert pulses == [turn + 1] * (number + 1) + [turn] * (len(links) - number - 1)
    task.cancel()
    assert bench.pulses == {"start": 0, "cancel": 0}
