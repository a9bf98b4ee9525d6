"""Breaks devices, links and the ways to them during trainings: each fault has to be named.

digits-cnn trains on two cards that the driver reaches by the files of the XDMA driver, in front of
the bit-exact model. In each case one thing of the second card breaks, as it is opened or while it
runs the third step; a few break the process itself. The command has to end within a time limit with
an error that names the card, the link or the file and what is wrong (a lost interrupt has only to
cost time). Then the same command with ``--resume``, on whole cards, has to reach the end with the
weights of a run in which nothing broke, bit for bit. A run that has stalled is given up after one
second here, not ten.

With ``--agents`` each card is served by a device agent, through TLS, and the cluster file names the
agents. bench_agent_faults.py breaks the agents themselves and the network.

Prints one JSON object: for each kind its time until the error, the error's first line, and its
fault, if it has one. Exits with 1 if there is a fault.
"""

import argparse
import contextlib
import errno
import functools
import io
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from run_digest import newest_weights

from fpgapipe.boards.address import Address
from fpgapipe.host.backends.devices import DeviceBackend
from fpgapipe.host.build.build import Build, open_build
from fpgapipe.host.cli.main import main as command_line
from fpgapipe.host.driver.transport import Limits, Transport
from fpgapipe.host.transports.agent_server import DeviceAgent, Served
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport
from fpgapipe.host.transports.xdma import XdmaTransport
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.link import LinkState

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cases"))
from agent_cases import TOKEN, Keys, free_place, made_keys
from transport_cases import Faulty, XdmaFiles

STEPS, BREAKS_AT = 5, 3
"""Steps of a training, and the step in which something breaks, from 1."""

LIMIT_S = 60.0
"""Seconds in which a command has to end."""

LIMITS = Limits(link=0.5, stall=1.0)
"""How long the driver waits for a link and for progress, seconds."""

ONES = 0xFFFFFFFF
PAGE = 4096
# PyTorch is left out: its threads would not be there in the processes that are forked.
BUILD = "--board u280 --devices 2 --array 4x4 --batch 4 --micro-batches 2 --seed 1 --no-verify"
RUN = f"--backend xdma --cluster lab.yaml --data random --seed 1 --steps {STEPS}"
OFTEN = "--checkpoint-every 1 --no-validation"


class Card:
    """The second card, with all that a fault may change.

    Attributes
    ----------
    registers : RegisterMap
    transport : Faulty
        What stands between the files and the model.
    files : XdmaFiles
    way : XdmaTransport
    devices : Devices
        Both cards, once they were brought up.
    starts : int
        Number of programs that were started.
    start : (int, int)
        The access that starts a program: offset and value.
    """

    def __init__(self, registers: RegisterMap) -> None:
        self.registers = registers
        self.transport: Any = None
        self.files: Any = None
        self.way: Any = None
        self.devices: Any = None
        self.starts = 0
        self.start = registers.offset("CONTROL"), registers["CONTROL"].field("start").mask

    def at(self, name: str) -> int:
        """Offset of a register."""
        return self.registers.offset(name)

    def reads(self, name: str, value: int) -> None:
        """From now on a register reads as a value."""
        at = self.at(name)
        self.transport.on_read = lambda offset, found: value if offset == at else found

    def loses(self, name: str) -> None:
        """From now on writes to a register are lost."""
        at = self.at(name)
        self.transport.on_write = lambda offset, value: None if offset == at else value

    def program(self) -> tuple[int, bytes]:
        """Address and bytes of the present program."""
        found: tuple[int, bytes] = self.devices.drivers[1].memory.program
        return found


class When(Enum):
    """When a card breaks: before its files are opened, after that, or in the third step."""

    OPENING = 0
    BRINGING_UP = 1
    RUNNING = 2


EARLY = When.BRINGING_UP


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes
    ----------
    breaks : callable
        Function that breaks a card.
    error : str
        Regular expression that the error must contain; empty if there must be none.
    when : When
    code : int
        Exit code of the command.
    """

    breaks: Callable[[Card], None]
    error: str
    when: When = When.RUNNING
    code: int = 2


# ---------------------------------------------------------------------- what breaks


def other_value(name: str, value: int) -> Callable[[Card], None]:
    """A register reads as something else."""
    return lambda card: card.reads(name, value)


def lost(name: str) -> Callable[[Card], None]:
    """Writes to a register are lost."""
    return lambda card: card.loses(name)


def gone(card: Card) -> None:
    """The card no longer answers, so that its bus reads as ones."""
    card.transport.on_read = lambda offset, found: ONES


def unplugged(card: Card) -> None:
    """Every access to registers fails."""

    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    card.files.pread = card.files.pwrite = fails


def was_reset(card: Card) -> None:
    """The card is reset while it runs."""
    card.reads("STATUS", 0)


def no_start(card: Card) -> None:
    """The command to start is lost; this write and later ones."""
    card.transport.on_write = lambda *access: None if access == card.start else access[1]


def damaged_program(card: Card) -> None:
    """The program's first instruction is overwritten."""
    at, _ = card.program()
    card.transport.inner.write(at, np.zeros(64, np.uint8))


def odd_error(card: Card) -> None:
    """The core stops and gives a number of an error that there is not."""
    damaged_program(card)
    card.reads("ERROR", 255)


def no_program(card: Card) -> None:
    """The card ends its program at once, so the other one waits for its gradients for ever."""
    at, program = card.program()
    card.transport.inner.write(at, np.frombuffer(program[-64:], np.uint8))


def no_interrupt(card: Card) -> None:
    """Interrupts no longer come."""
    card.files.interrupts = False


def cut(name: str, how: Callable[[], int | bytes]) -> Callable[[Card], None]:
    """A transfer of memory ends in the middle, in some way."""

    def breaks(card: Card) -> None:
        inner = getattr(card.files, name)
        calls = itertools.count()

        def transfer(file: int, what: Any, offset: int, /) -> int | bytes:
            if card.files.opened[file][0] not in ("h2c_0", "c2h_0"):
                return inner(file, what, offset)  # type: ignore[no-any-return]
            if next(calls):
                return how()
            half = what[: len(what) // 2] if name == "pwrite" else what // 2
            return inner(file, half, offset)  # type: ignore[no-any-return]

        setattr(card.files, name, transfer)

    return breaks


def fails() -> int | bytes:
    """An error of the operating system."""
    raise OSError(errno.ECOMM, os.strerror(errno.ECOMM))


def stuck_bit(card: Card) -> None:
    """A bit of what is read from the memory is stuck."""
    card.transport.on_load = lambda address, data: data | np.uint8(0x10)


def signalled(number: int) -> Callable[[Card], None]:
    """The process receives a signal while the card computes."""
    return lambda card: os.kill(os.getpid(), number)


def closed_file(card: Card) -> None:
    """The driver of the operating system was unloaded under the run."""
    card.files.opened = dict.fromkeys(card.files.opened, ("closed", 0))


def not_there(error: int) -> Callable[[Card], None]:
    """A file of the card cannot be opened."""

    def breaks(card: Card) -> None:
        inner = card.files.open

        def opens(path: str, flags: int, /) -> int:
            if path.endswith("c2h_0"):
                raise OSError(error, os.strerror(error))
            return inner(path, flags)

        card.files.open = opens

    return breaks


def odd_place(card: Card) -> None:
    """Memory is given out at an address that is no multiple of a page."""
    card.way.allocate = lambda size, take=card.way.allocate: take(size) + 64


def no_memory(card: Card) -> None:
    """The card has a page of memory."""
    card.way.allocate = lambda size, take=card.way.allocate: take(size << 20)


KINDS = {
    "registers read as ones": Kind(gone, "read as 0xffffffff, so no core answers there", EARLY),
    "registers read as 0": Kind(
        other_value("ID", 0), "read as 0x00000000, so no core answers there", EARLY
    ),
    "another design": Kind(other_value("ID", 0x1234), "ID reads as 0x00001234, not", EARLY),
    "an older core": Kind(other_value("VERSION", 1), "has version 1 of the registers", EARLY),
    "another array": Kind(other_value("ROWS", 3), r"bitstream of another core.*ROWS 3, not", EARLY),
    "other links": Kind(other_value("LINKS", 4), r"bitstream of another core.*LINKS 4, not", EARLY),
    "another configuration": Kind(
        other_value("CONFIGURATION", 0xABC), "configuration 00000abc where the build has", EARLY
    ),
    "no card": Kind(not_there(errno.ENOENT), "cannot be opened: No such file", When.OPENING),
    "no permission": Kind(
        not_there(errno.EACCES), "cannot be opened: Permission denied", When.OPENING
    ),
    "card in use": Kind(
        not_there(errno.EBUSY), "cannot be opened: Device or resource busy", When.OPENING
    ),
    "too little memory": Kind(no_memory, "bytes of memory left, and", EARLY),
    "memory at an odd place": Kind(odd_place, "memory must begin at a multiple of 4096", EARLY),
    "a link that cannot be turned on": Kind(
        lost("LINK0_ENABLE"), "is HELLO: it hears nothing from the other end", EARLY
    ),
    "a link of another build": Kind(
        other_value("LINK0_STATUS", LinkState.MISMATCH), "is MISMATCH: both ends must have", EARLY
    ),
    "a link whose other end was reset": Kind(
        other_value("LINK0_STATUS", LinkState.PEER_RESET), "is PEER_RESET: the other end", EARLY
    ),
    "a link in no state": Kind(
        other_value("LINK0_STATUS", 7), "link 0 has the state 7, which there is not", EARLY
    ),
    "a link's register with other bits": Kind(
        other_value("LINK0_STATUS", 1 << 20), "LINK0_STATUS reads as 0x00100000, which no", EARLY
    ),
    "the card goes away": Kind(gone, "reads as 0xffffffff, which no core answers"),
    "the bus fails": Kind(unplugged, r"xdma\d_user: (read|write) of 4 bytes .*: Input/output er"),
    "the driver is unloaded": Kind(closed_file, "Bad file descriptor"),
    "the card is reset": Kind(was_reset, "no program runs and none has ended"),
    "a start is lost": Kind(no_start, "no program runs and none has ended"),
    "the program is damaged": Kind(damaged_program, "BAD_OPCODE of SEQUENCER"),
    "an unknown error": Kind(odd_error, "error 255, which is none"),
    "the program's address is lost": Kind(
        lost("PROGRAM_LO"), "the core stopped at instruction", EARLY
    ),
    "the memory's limit is lost": Kind(
        lost("MEMORY_LIMIT_LO"), "the core stopped at instruction", EARLY
    ),
    "a device that waits for ever": Kind(no_program, "no device has made progress for 1 s"),
    "an interrupt that never comes": Kind(no_interrupt, "", code=0),
    "a write that is cut": Kind(
        cut("pwrite", fails), r"h2c_0: write .* failed after [1-9]\d* bytes: Comm"
    ),
    "a write that stands still": Kind(
        cut("pwrite", lambda: 0), r"failed after [1-9]\d* bytes: nothing more went out"
    ),
    "a read that is cut": Kind(
        cut("pread", fails), r"c2h_0: read .* failed after [1-9]\d* bytes: Comm"
    ),
    "a read that stands still": Kind(
        cut("pread", lambda: b""), r"failed after [1-9]\d* bytes: nothing more came"
    ),
    "a bit of the memory is stuck": Kind(stuck_bit, "read as something else than what was written"),
    "Ctrl-C": Kind(signalled(signal.SIGINT), "", code=130),
    "SIGTERM": Kind(signalled(signal.SIGTERM), "", code=143),
    "the terminal goes away": Kind(signalled(signal.SIGHUP), "", code=129),
    "the host dies": Kind(signalled(signal.SIGKILL), "", code=-9),
}
"""Faults, by the part that breaks."""


# ---------------------------------------------------------------------- a run


def prepared(build: Build, kind: Kind | None, agents: Sequence[Any]) -> None:
    """Put cards behind the transport or behind agents; the second one breaks."""
    sizes = [part.memory_bytes + 2 * PAGE for part in build.pipeline.parts]
    cluster = ModelledCluster(build.cores, sizes, build.pipeline.wiring)
    card = Card(RegisterMap(build.cores[1]))

    def opened(address: Any, board: object, folder: Path) -> Transport:
        number = int(address.device)
        inner = Faulty(ModelledTransport(cluster, number))
        files = XdmaFiles(inner)
        plain = files.open
        files.open = lambda path, flags, /: plain(path.replace(f"xdma{number}", "xdma0"), flags)
        if number == 0 or kind is None:
            return XdmaTransport(number, memory_bytes=sizes[number], files=files)
        card.transport, card.files = inner, files
        if kind.when is When.OPENING:
            kind.breaks(card)
        card.way = XdmaTransport(number, memory_bytes=sizes[number], files=files)
        if kind.when is When.BRINGING_UP:
            kind.breaks(card)
        if kind.when is When.RUNNING:
            inner.on_write = began
        return card.way  # type: ignore[no-any-return]

    def began(offset: int, value: int) -> int | None:
        """Count starts of programs, and break the card as the third one begins."""
        if (offset, value) == card.start:
            card.starts += 1
            if card.starts == BREAKS_AT:
                assert kind is not None
                card.transport.on_write = lambda offset, value: value
                kind.breaks(card)
                return card.transport.on_write(offset, value)  # type: ignore[no-any-return]
        return value

    original = DeviceBackend.__init__

    def made(self: DeviceBackend, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, limits=LIMITS, **options)
        card.devices = self.devices

    DeviceBackend.__init__ = made  # type: ignore[method-assign]
    XdmaTransport.open = staticmethod(opened)  # type: ignore[assignment,method-assign]
    pair = Keys(Path("agent.pem"), Path("agent.key")).pair() if agents else ()
    accesses = threading.Lock()  # of all cards, since models run together
    for number, place in enumerate(agents):
        opens = functools.partial(opened, Address(device=str(number)), None, Path())
        served = Served(f"card-{number}", "u280", "xdma", opens, accesses=accesses)
        DeviceAgent([served], place, *pair, TOKEN)


def run(
    build: Build, kind: Kind | None, options: Sequence[str], agents: Sequence[Any]
) -> tuple[int, str, float]:
    """Run the command in a process of its own; returns its code, its messages and its time."""
    begin_s = time.monotonic()
    with tempfile.TemporaryFile() as log:
        if (pid := os.fork()) == 0:
            code = 99
            try:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                prepared(build, kind, agents)
                code = command_line(["run", "b", *RUN.split(), *OFTEN.split(), *options])
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(code)
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() - begin_s > LIMIT_S:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return -1, "hangs", LIMIT_S
            time.sleep(0.02)
        log.seek(0)
        text = log.read().decode(errors="replace")
    return os.waitstatus_to_exitcode(ended[1]), text, time.monotonic() - begin_s


def case(build: Build, kind: Kind, expected: str, agents: Sequence[Any]) -> dict[str, Any]:
    """Do a case; returns what it gave, with its fault, if there is one."""
    shutil.rmtree(build.run_folder, ignore_errors=True)
    code, text, seconds = run(build, kind, [], agents)
    step, _ = newest_weights(build.run_folder / "xdma")
    lines = [line for line in text.splitlines() if kind.error and re.search(kind.error, line)]
    named = lines[0] if lines else ""
    fault = ""
    if text == "hangs":
        fault = "it hangs"
    elif code != kind.code:
        fault = f"exit code {code}, not {kind.code}: {text[-600:]}"
    elif (kind.error and not named) or "Traceback" in text:
        fault = f"the error is not named: {text[-600:]}"
    elif kind.when is When.RUNNING and code and step < BREAKS_AT - 1:
        fault = f"the newest checkpoint is of step {step}"
    if not fault and code:
        again = ["--resume"] if step else []
        code, text, _ = run(build, None, again, agents)
        if code:
            fault = f"it cannot be resumed: exit code {code}: {text[-600:]}"
    if not fault and newest_weights(build.run_folder / "xdma") != (STEPS, expected):
        fault = "the weights differ from those of a run in which nothing broke"
    return {
        "seconds": round(seconds, 2),
        "checkpoint": step,
        "error": named[:160],
        **({"fault": fault} if fault else {}),
    }


def main() -> int:
    """Do all cases, or those of some kinds, and print what they gave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, help="Kinds, instead of all.")
    parser.add_argument("--agents", action="store_true", help="Serve the cards by agents.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        with contextlib.redirect_stdout(io.StringIO()):
            assert command_line(["build", *BUILD.split(), "-o", "b"]) == 0
        build = open_build(Path("b"))
        agents = [free_place() for _ in range(2)] if given.agents else []
        more = [f", agent: '{place}', ca: agent.pem, token_file: token" for place in agents]
        if agents:
            made_keys(Path())
            Path("token").touch(0o600)
            Path("token").write_text(TOKEN)
        devices = [
            f"  - {{name: card-{number}, board: u280, address: {{device: {number}{words}}}}}"
            for number, words in enumerate(more or ["", ""])
        ]
        lines = ["format: 1", "name: lab", "devices:", *devices, "topology: chain", ""]
        Path("lab.yaml").write_text("\n".join(lines))
        code, text, _ = run(build, None, [], agents)
        assert code == 0, (code, text)
        step, expected = newest_weights(build.run_folder / "xdma")
        assert step == STEPS
        found = {}
        for name in given.only or KINDS:
            found[name] = case(build, KINDS[name], expected, agents)
            print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    faults = sum("fault" in each for each in found.values())
    result = {
        "through_agents": given.agents,
        "kinds": len(found),
        "faults": faults,
        "longest_s": max(each["seconds"] for each in found.values()),
        "cases": found,
    }
    print(json.dumps(result, indent=2))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
