"""Disturbs device agents by strangers while a training goes on through them.

digits-cnn trains on two devices in front of the bit-exact model, each with an agent; both agents
are in one process. Meanwhile, from another process, 64 threads call the second agent over
connections of their own and without its token, and 1,000 connections to it have TLS and say
nothing; those that the agent ends are opened anew. The run has to end with the weights of one that
nobody disturbed.

Then no run goes on, and the threads alone call for some seconds: that gives the processor time of
the agents' process for a refused call, without that for opening connections.

Prints one JSON object, and exits with 1 if the run was refused anything, a refused call took more
than a millisecond, or a second had more than one line of log for a peer. The log has no more than
the peer of this machine, so the lines of a second are counted.
"""

import argparse
import collections
import contextlib
import io
import json
import logging
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench_agent_faults import (
    BUILD,
    GOOD,
    Kind,
    agents,
    command_line,
    made_keys,
    run,
    write_lab,
)
from run_digest import newest_weights

from fpgapipe.host.build.build import open_build
from fpgapipe.host.transports import agent_protocol as protocol
from fpgapipe.host.transports.agent_protocol import Place

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cases"))
from agent_cases import free_place

THREADS, IDLE = 64, 1000
"""Threads that call without a token, and connections that say nothing."""

STEPS = 40
COURSE = f"--steps {STEPS} --checkpoint-every {STEPS}"

ALONE_S = 10.0
"""Seconds in which the threads alone call."""

LOG = Path("agents.log")


def calls(place: Place, over: threading.Event, codes: collections.Counter[str]) -> None:
    """Call an agent without its token until that is over."""
    import grpc

    credentials = grpc.ssl_channel_credentials((GOOD / "agent.pem").read_bytes())
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(str(place), credentials, options) as channel:
        pause = channel.unary_unary(f"/{protocol.SERVICE}/{protocol.PAUSE}")
        while not over.is_set():
            try:
                pause(protocol.SECONDS.pack(1.0), timeout=20)
                codes["OK"] += 1
            except grpc.RpcError as error:
                codes[error.code().name] += 1


def idles(place: Place, over: threading.Event, opened: collections.Counter[str]) -> None:
    """Keep connections that say nothing until that is over."""
    context = ssl.create_default_context(cafile=GOOD / "agent.pem")
    context.set_alpn_protocols(["h2"])
    lines: list[ssl.SSLSocket] = []
    while not over.is_set():
        lines = [line for line in lines if not is_ended(line)]
        opened["most at a time"] = max(opened["most at a time"], len(lines))
        for _ in range(min(IDLE - len(lines), 50)):
            try:
                plain = socket.create_connection((place.host, place.port), 20)
                line = context.wrap_socket(plain, server_hostname=place.host)
            except OSError:
                opened["refused"] += 1
                continue
            line.setblocking(False)
            lines.append(line)
            opened["opened"] += 1
        time.sleep(0.02)


def is_ended(line: ssl.SSLSocket) -> bool:
    """Whether the agent has ended a connection."""
    try:
        while line.recv(1 << 12):
            pass
    except (ssl.SSLWantReadError, BlockingIOError):
        return False
    except OSError:
        pass
    line.close()
    return True


@contextlib.contextmanager
def strangers(place: Place, num_idle: int) -> Iterator[Callable[[], dict[str, Any]]]:
    """Disturb an agent from a process of its own; gives a function that ends that, and counts."""
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            over = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: over.set())
            codes = collections.Counter[str]()
            opened = collections.Counter[str]()
            threads = [
                threading.Thread(target=calls, args=(place, over, codes)) for _ in range(THREADS)
            ]
            if num_idle:
                threads.append(threading.Thread(target=idles, args=(place, over, opened)))
            for each in threads:
                each.start()
            while not over.wait(0.1):
                pass
            for each in threads:
                each.join()
            os.write(writes, json.dumps({"calls": codes, "idle": opened}).encode())
        finally:
            os._exit(0)
    os.close(writes)
    found: dict[str, Any] = {}

    def end() -> dict[str, Any]:
        if not found:
            os.kill(pid, signal.SIGTERM)
            found.update(json.loads(os.read(reads, 1 << 16)))
            os.waitpid(pid, 0)
        return found

    try:
        yield end
    finally:
        end()
        os.close(reads)


def processor_s(pid: int) -> float:
    """Processor time of a process so far, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Disturb a run, then call alone, and print what came of it."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork would wait for threads of the model
    argparse.ArgumentParser(description=__doc__).parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 14), hard))
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        with contextlib.redirect_stdout(io.StringIO()):
            assert command_line(["build", *BUILD.split(), "-o", "b"]) == 0
        build = open_build(Path("b"))
        made_keys(GOOD)
        places, behind = [free_place(), free_place()], free_place()
        write_lab(Kind(""), places)
        log = logging.FileHandler(LOG)
        log.setFormatter(logging.Formatter("%(asctime)s|%(message)s", "%H:%M:%S"))
        logging.getLogger("fpgapipe").addHandler(log)
        with agents(build, Kind(""), places, behind):
            code, text, alone_s = run(COURSE)
        assert code == 0, text
        folder = build.run_folder / "agent"
        expected = newest_weights(folder)
        with agents(build, Kind(""), places, behind) as pid:
            with strangers(behind, IDLE) as end:
                time.sleep(8.0)  # all connections are open
                before_s = processor_s(pid)
                shutil.rmtree(build.run_folder)
                code, text, seconds = run(COURSE)
                run_s = processor_s(pid) - before_s
                disturbed = end()
            weights = newest_weights(folder)
            with strangers(behind, 0) as end:
                time.sleep(3.0)
                before_s = processor_s(pid)
                time.sleep(ALONE_S)
                used_s = processor_s(pid) - before_s
                alone = end()
        lines = [
            line.partition("|")[0] for line in LOG.read_text().splitlines() if "|refused " in line
        ]
    refused = sum(alone["calls"].values()) * ALONE_S / (ALONE_S + 3.0)
    result = {
        "run": {
            "exit code": code,
            "seconds": round(seconds, 1),
            "seconds undisturbed": round(alone_s, 1),
            "same weights": weights == expected,
            "calls refused": len(re.findall("refuse|Concurrent|in use", text)),
            "processor time of the agents, s": round(run_s, 2),
        },
        "strangers meanwhile": disturbed,
        "strangers alone": alone,
        "processor ms a refused call": round(1e3 * used_s / refused, 3),
        "log lines": len(lines),
        "most log lines a second": max(collections.Counter(lines).values(), default=0),
    }
    print(json.dumps(result, indent=2))
    good = code == 0 and weights == expected and set(disturbed["calls"]) <= {"UNAUTHENTICATED"}
    good &= used_s <= 1e-3 * refused and result["most log lines a second"] <= 1  # type: ignore[operator]
    return not good


if __name__ == "__main__":
    sys.exit(main())
