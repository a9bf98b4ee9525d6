"""Breaks device agents, the network before them, and what they are reached by, during trainings.

digits-cnn trains on two devices in front of the bit-exact model. Each has an agent, and both agents
are in one process of their own; the second one is reached through a relay, which stands for the
network. In each case one thing of the second agent is wrong from the beginning or breaks in the
third step. The command has to end within a time limit with an error that names the agent and what
is wrong. Then the same command with ``--resume``, with whole agents, has to reach the end with the
weights of a run in which nothing broke, bit for bit. Accesses have three seconds here, not fifteen.

Prints one JSON object: for each kind its time until the error, the error's first line, and its
fault, if it has one. Exits with 1 if there is a fault.
"""

import argparse
import contextlib
import functools
import io
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run_digest import newest_weights

from fpgapipe.host.build.build import Build, open_build
from fpgapipe.host.cli.main import main as command_line
from fpgapipe.host.driver.transport import Transport
from fpgapipe.host.transports.agent import AgentTransport
from fpgapipe.host.transports.agent_protocol import Place
from fpgapipe.host.transports.agent_server import DeviceAgent, Served
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport
from fpgapipe.hw.hls_models.model.registers import RegisterMap

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cases"))
from agent_cases import TOKEN, Keys, free_place, made_keys
from transport_cases import Faulty

STEPS, BREAKS_AT = 5, 3
"""Steps of a training, and the step in which something breaks, from 1."""

LIMIT_S = 60.0
"""Seconds in which a command has to end."""

CALL_S = 3.0
"""Seconds in which an access has to be answered."""

PAGE = 4096
BUILD = "--board u280 --devices 2 --array 4x4 --batch 4 --micro-batches 2 --seed 1"
RUN = "run b --backend agent --cluster lab.yaml --data random --seed 1 --no-validation"
COURSE = f"--steps {STEPS} --checkpoint-every 1"

GOOD, OLD, OTHER, ELSEWHERE = (Path(name) for name in ("good", "old", "other", "elsewhere"))
"""Folders of certificates: a good one, one that has expired, others of this and another host."""


class Relay:
    """The network before an agent, which may break.

    Parameters
    ----------
    listens, agent : Place
    """

    def __init__(self, listens: Place, agent: Place) -> None:
        self._server = socket.create_server(("127.0.0.1", listens.port))
        self._agent, self._lines = agent, list[socket.socket]()
        self.is_silent = self.damages = False
        self.left_bytes: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            one = self._server.accept()[0]
            other = socket.create_connection(("127.0.0.1", self._agent.port))
            self._lines += one, other
            for source, sink in ((one, other), (other, one)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                if self.is_silent:
                    continue
                if self.damages:
                    data = bytes(each ^ 1 for each in data)
                if self.left_bytes is not None:
                    self.left_bytes -= len(data)
                    if self.left_bytes < 0:
                        self.cut()
                        return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """End all connections."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


class Lab:
    """The state that a fault of a kind may change; all of it is in the process of the agents.

    Attributes
    ----------
    relay : Relay
    agents : list of DeviceAgent
    again : callable
        Function that starts the second agent.
    """

    relay: Relay
    agents: list[DeviceAgent]
    again: Callable[[], DeviceAgent]


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes
    ----------
    error : str
        Regular expression that the error must contain.
    breaks : callable, optional
        Function that breaks a lab in the third step.
    keys, trusts : Path
        Folder of the agent's certificate, and of that which the client trusts.
    token : str
        Token of the client.
    serves, board : str
        Name and board of the device of the second agent.
    way : str
        What stands at the second agent's place: ``agent``, ``nothing``, ``other`` or ``silent``.
    taken : bool
        Whether another client has the device.
    """

    error: str
    breaks: Callable[[Lab], object] | None = None
    keys: Path = GOOD
    trusts: Path = GOOD
    token: str = TOKEN
    serves: str = "card-1"
    board: str = "u280"
    way: str = "agent"
    taken: bool = False


# ---------------------------------------------------------------------- what breaks


def signalled(number: int) -> Callable[[Lab], None]:
    """The process of the agents receives a signal."""
    return lambda lab: os.kill(os.getpid(), number)


def ended(lab: Lab) -> None:
    """The second agent ends."""
    threading.Thread(target=lab.agents[1].close).start()
    time.sleep(0.1)


def started_anew(lab: Lab) -> None:
    """The second agent ends and is started again at once, as a service is."""

    def does() -> None:
        lab.agents[1].close()
        lab.agents[1] = lab.again()

    threading.Thread(target=does).start()
    time.sleep(0.1)


def silent(lab: Lab) -> None:
    """The network loses all that is sent from now on."""
    lab.relay.is_silent = True


def damaged(lab: Lab) -> None:
    """The network changes bits."""
    lab.relay.damages = True


def cut_after(size_bytes: int) -> Callable[[Lab], None]:
    """Connections break when some more bytes have gone over."""

    def breaks(lab: Lab) -> None:
        lab.relay.left_bytes = size_bytes

    return breaks


GONE = r"the agent at localhost:PORT is gone"
LATE = rf"the agent at localhost:PORT did not answer within {CALL_S:g} s"
OVER = r"the agent at localhost:PORT (is gone|no longer has this client)"
UNTRUSTED = r"the agent at localhost:PORT is not trusted: "

KINDS = {
    "the agents' process dies": Kind(r"the agent at localhost:\d+ is gone", signalled(9)),
    "the agents' process stands still": Kind(
        rf"the agent at localhost:\d+ (did not answer within {CALL_S:g} s|is gone)",
        signalled(signal.SIGSTOP),
    ),
    "an agent ends": Kind(OVER, ended),
    "an agent is started anew": Kind(OVER, started_anew),
    "the network is silent": Kind(f"{LATE}|{GONE}", silent),
    "connections are cut": Kind(OVER, lambda lab: lab.relay.cut()),
    "connections are cut in a transfer": Kind(
        rf"(read|write) of [\d,]+ bytes at 0x[0-9a-f]+ failed after [\d,]+ bytes: {GONE}",
        cut_after(20_000),
    ),
    "the network changes bits": Kind(f"{OVER}|{LATE}", damaged),
    "a wrong token": Kind("refuses this client: the token is missing or wrong", token=TOKEN + "x"),
    "a certificate that has expired": Kind(
        UNTRUSTED + "certificate has expired", keys=OLD, trusts=OLD
    ),
    "a certificate of another host": Kind(
        UNTRUSTED + "Hostname mismatch", keys=ELSEWHERE, trusts=ELSEWHERE
    ),
    "a certificate that is not trusted": Kind(UNTRUSTED + "self.signed certificate", trusts=OTHER),
    "no agent": Kind("PORT does not run: nothing listens there", way="nothing"),
    "something else at its port": Kind("something else than an agent listens", way="other"),
    "a port that says nothing": Kind("PORT does not answer in 5 s", way="silent"),
    "a device that it does not serve": Kind("it serves card-7 and no other", serves="card-7"),
    "another board": Kind("serves card-1 as a u50 by model, and here it is a u280", board="u50"),
    "a device that another client has": Kind("card-1 is in use by the client 127", taken=True),
}
"""Faults, by the part that breaks."""


# ---------------------------------------------------------------------- a run


def serve(build: Build, kind: Kind, places: list[Place], behind: Place) -> None:
    """Serve both devices in this process; the second agent is behind a relay."""
    lab = Lab()
    sizes = [part.memory_bytes + 2 * PAGE for part in build.pipeline.parts]
    cluster = ModelledCluster(build.cores, sizes, build.pipeline.wiring)
    registers = RegisterMap(build.cores[1])
    start = registers.offset("CONTROL"), registers["CONTROL"].field("start").mask
    starts: list[int] = []

    def began(offset: int, value: int) -> int:
        if (offset, value) == start:
            starts.append(offset)
            if len(starts) == BREAKS_AT and kind.breaks:
                kind.breaks(lab)
        return value

    def opened(number: int) -> Transport:
        inner = ModelledTransport(cluster, number)
        return Faulty(inner, write=began) if number else inner  # type: ignore[no-any-return]

    accesses = threading.Lock()
    served = [
        Served(name, board, "model", functools.partial(opened, number), accesses=accesses)
        for number, (name, board) in enumerate((("card-0", "u280"), (kind.serves, kind.board)))
    ]

    def agent(number: int, place: Place, keys: Path) -> DeviceAgent:
        pair = Keys(keys / "agent.pem", keys / "agent.key").pair()
        return DeviceAgent([served[number]], place, *pair, TOKEN)

    lab.again = functools.partial(agent, 1, behind, kind.keys)
    lab.agents = [agent(0, places[0], GOOD)]
    if kind.way == "agent":
        lab.agents.append(lab.again())
        lab.relay = Relay(places[1], behind)
    elif kind.way in ("other", "silent"):
        other = socket.create_server(("127.0.0.1", places[1].port))
        threading.Thread(target=answer, args=(other, kind.way), daemon=True).start()


def answer(server: socket.socket, way: str) -> None:
    """Be something else than an agent."""
    kept = []
    while True:
        kept.append(server.accept()[0])
        if way == "other":
            kept[-1].sendall(b"220 mail ESMTP\r\n")


@contextlib.contextmanager
def agents(build: Build, kind: Kind, places: list[Place], behind: Place) -> Iterator[int]:
    """Run agents in a process of their own; gives its number."""
    ready, said = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            serve(build, kind, places, behind)
            os.write(said, b"1")
            threading.Event().wait()
        finally:
            os._exit(99)
    os.close(said)
    try:
        assert os.read(ready, 1), "the agents serve"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def child(act: Callable[[], int]) -> tuple[int, Any]:
    """Do something in a process of its own; returns its number and the file of its messages."""
    log = tempfile.TemporaryFile()  # noqa: SIM115 (the caller reads it)
    if (pid := os.fork()) == 0:
        code = 99
        try:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            code = act()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return pid, log


def run(options: str) -> tuple[int, str, float]:
    """Run the command in a process of its own; returns its code, its messages and its time."""

    def command() -> int:
        limits = AgentTransport.__init__.__kwdefaults__
        limits["call_s"] = limits["memory_s"] = CALL_S
        return command_line([*RUN.split(), *options.split()])

    begin_s = time.monotonic()
    pid, log = child(command)
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() - begin_s > LIMIT_S:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -1, "hangs", LIMIT_S
        time.sleep(0.02)
    log.seek(0)
    text = log.read().decode(errors="replace")
    return os.waitstatus_to_exitcode(found[1]), text, time.monotonic() - begin_s


def taken(place: Place) -> int:
    """Be another client, which keeps the second device."""
    ca = GOOD / "agent.pem"
    with AgentTransport(str(place), "card-1", ca, TOKEN):
        Path("taken").touch()
        threading.Event().wait()
    return 0


def write_lab(kind: Kind, places: list[Place]) -> None:
    """Write the client's files: cluster and token."""
    folders = (GOOD, kind.trusts)
    entries = [
        f"  - {{name: card-{number}, board: u280, address: {{agent: '{place}', "
        f"ca: {folder}/agent.pem, token_file: token-{number}}}}}"
        for number, (place, folder) in enumerate(zip(places, folders, strict=True))
    ]
    lines = ["format: 1", "name: lab", "devices:", *entries, "topology: chain", ""]
    Path("lab.yaml").write_text("\n".join(lines))
    for number, token in enumerate((TOKEN, kind.token)):
        file = Path(f"token-{number}")
        file.touch(0o600)
        file.write_text(token)


def case(build: Build, kind: Kind, expected: str) -> dict[str, Any]:
    """Do a case; returns what it gave, with its fault, if there is one."""
    shutil.rmtree(build.run_folder, ignore_errors=True)
    places, behind = [free_place(), free_place()], free_place()
    write_lab(kind, places)
    with agents(build, kind, places, behind), contextlib.ExitStack() as stack:
        if kind.taken:
            Path("taken").unlink(missing_ok=True)
            other, _ = child(functools.partial(taken, places[1]))
            stack.callback(os.waitpid, other, 0)
            stack.callback(os.kill, other, signal.SIGKILL)
            while not Path("taken").exists():
                time.sleep(0.01)
        code, text, seconds = run(COURSE)
    step, _ = newest_weights(build.run_folder / "agent")
    wanted = kind.error.replace("PORT", str(places[1].port))
    named = next((line for line in text.splitlines() if re.search(wanted, line)), "")
    fault = ""
    if text == "hangs":
        fault = "it hangs"
    elif code != 2:
        fault = f"exit code {code}, not 2: {text[-600:]}"
    elif not named or "Traceback" in text:
        fault = f"the error is not named: {text[-600:]}"
    elif kind.breaks and step < BREAKS_AT - 1:
        fault = f"the newest checkpoint is of step {step}"
    if not fault:
        write_lab(Kind(""), places)
        with agents(build, Kind(""), places, behind):
            code, text, _ = run("--resume" if step else COURSE)
        if code:
            fault = f"it cannot be resumed: exit code {code}: {text[-600:]}"
        elif newest_weights(build.run_folder / "agent") != (STEPS, expected):
            fault = "the weights differ from those of a run in which nothing broke"
    return {
        "seconds": round(seconds, 2),
        "checkpoint": step,
        "error": named[:160],
        **({"fault": fault} if fault else {}),
    }


def main() -> int:
    """Do all cases, or those of some kinds, and print what they gave."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork would wait for threads of the model
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, help="Kinds, instead of all.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        with contextlib.redirect_stdout(io.StringIO()):
            assert command_line(["build", *BUILD.split(), "-o", "b"]) == 0
        build = open_build(Path("b"))
        for folder, options in (
            (GOOD, {}),
            (OTHER, {}),
            (OLD, {"last_days": -1}),
            (ELSEWHERE, {"hosts": ["lab-a"]}),
        ):
            made_keys(folder, **options)
        places, behind = [free_place(), free_place()], free_place()
        write_lab(Kind(""), places)
        with agents(build, Kind(""), places, behind):
            code, text, _ = run(COURSE)
        assert code == 0, text
        step, expected = newest_weights(build.run_folder / "agent")
        assert step == STEPS
        found = {}
        for name in given.only or KINDS:
            found[name] = case(build, KINDS[name], expected)
            print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    faults = sum("fault" in each for each in found.values())
    result = {
        "kinds": len(found),
        "faults": faults,
        "longest_s": max(each["seconds"] for each in found.values()),
        "cases": found,
    }
    print(json.dumps(result, indent=2))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
