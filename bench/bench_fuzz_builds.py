"""A fuzzer for build folders, and for what runs leave in them, as a stranger may send them.

Every case changes one to three things of a build: values of JSON, program words, images, Verilog,
names of files, their sizes, links in their place, a checkpoint, a file of parameters, a log. All
digests are written anew. Then the build is opened, its report is made, its Verilog is compared, and
a step is run in the bit-exact model, by the command line and under limits. Prints one JSON object;
exits with 1 if a case ends in a traceback, takes more than `MOST_S` or `MOST_BYTES`, accesses a
file outside of its folder, or changes a step's result or the report although only files that follow
from the plan were changed.

A checkpoint, parameters, a log and measurements are data, which follow from nothing else. So other
numbers there may give other results.
"""

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from build_changes import STEPS, change, renew

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.build import build as build_module
from fpgapipe.host.build.build import write_build
from fpgapipe.host.cli.main import main as fpgapipe
from fpgapipe.hw.rtl import core_verilog
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request

MOST_S = 10.0
MOST_BYTES = 2 << 30
STUCK_S = 60.0


def network(batch: int) -> Any:
    """Make a network of two small products."""
    net = Network("fuzzed", batch)
    net.linear(net.relu(net.linear(net.flatten(net.image(1, 4, 4)), 4)), 3)
    return net.build()


def verilog(core: Any) -> str:
    """Text in place of a core's Verilog, which would take seconds to generate."""
    return f"module top(input clk); // {core}\nendmodule\n"


def make_base(folder: Path) -> None:
    """Write the build, a run in it, measurements and parameters."""
    cluster = chain_of(load_board("u280"), 2).spec
    request = Request(
        network,
        4,
        cluster,
        ("1f1b-as",),
        2,
        array=(4, 4),
        all_devices=True,
        scratchpad_bytes=1 << 14,
    )
    plan = as_plan(explore(request).best, network(2), "fuzzed", 4, cluster)
    build = write_build(plan, network(2), cluster, folder)
    code = command(["run", str(folder), *RUN, "--steps", str(STEPS)])[0]
    assert code == 0, "the base runs"
    levels = {"closed_form": 900, "event": 950, "cycle_model": 990, "rtl": 1000}
    device = {
        "counters": {"CYCLES": 1000, "GEMM0_BUSY": 300},
        "tasks": [{"task": "F0@0", "kind": "F", "microbatch": 0, "rtl": [1, 50]}],
        "layers": [{"layer": "linear1", "pass": "F", **levels}],
    }
    measured = {"clk_hz": 3e8, "minibatch_cycles": levels, "devices": [device, device]}
    (folder / "run/measured.json").write_text(json.dumps(measured))
    np.savez(folder / "run/parameters.npz", **build.parameters)  # type: ignore[arg-type]


RUN = ("--backend", "model", "--data", "random", "--no-validation")


def command(arguments: list[str]) -> tuple[int, str]:
    """Run the command line in this process; its exit code and what it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = fpgapipe(arguments)
    return code, said.getvalue()


# ---------------------------------------------------------------------- cases


class TookTooLong(BaseException):
    """A command took more than `MOST_S`."""


class Watch:
    """Records files written outside of a folder or read in another one, and processes started."""

    def __init__(self, inside: Path, outside: Path) -> None:
        self.inside, self.outside = str(inside), str(outside)
        self.seen: list[str] = []
        self.on = False
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def looks(self) -> Iterator[None]:
        """Record what happens within the context."""
        self.on = True
        try:
            yield
        finally:
            self.on = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            writes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            if path.startswith(self.outside) or (writes and not self._is_inside(path)):
                self.seen.append(f"{event} {path}")
        elif event in ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link"):
            for each in arguments[:2]:
                if isinstance(each, str | bytes | os.PathLike):
                    path = Path(os.fsdecode(each))
                    if path.is_absolute() and not self._is_inside(os.path.realpath(path.parent)):
                        self.seen.append(f"{event} {path}")
        elif event.split(".")[0] in ("subprocess", "socket") or event in (
            "os.system", "os.exec", "os.fork", "os.posix_spawn", "pickle.find_class",
        ):  # fmt: skip
            self.seen.append(event)

    def _is_inside(self, path: str) -> bool:
        return path.startswith(self.inside) or path == os.devnull


def tree_of(folder: Path) -> str:
    """Digest of all files of a folder and of the times at which they were changed."""
    found = [
        (str(path), path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")
    ]
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def examine(folder: Path, how: int, watch: Watch) -> dict[str, Any]:
    """Make the report, run a step of the build, open it, and compare its Verilog."""
    codes, said = [], []
    runs = {
        0: [*RUN, "--resume", "--steps", str(STEPS + 1)],
        1: [*RUN, "--steps", "1"],
        2: [*RUN, "--steps", "1", "--parameters", str(folder / "run/parameters.npz")],
        3: [*RUN, "--resume"],
    }
    with watch.looks():
        for arguments in (["report", str(folder)], ["run", str(folder), *runs[how]]):
            code, text = command(arguments)
            codes.append(code)
            said.append(text)
        try:
            build_module.open_build(folder).check_verilog()
            codes.append(0)
        except build_module.UserError as error:
            codes.append(2)
            said.append(str(error))
    results = []
    if set(codes) == {0}:
        results.append((folder / "run/report.html").read_bytes())
        paths = sorted((folder / "run/model").glob("checkpoints/*.ckpt"))
        results += [path.read_bytes().split(b"\n", 3)[-1] for path in paths]
    digests = [hashlib.sha256(each).hexdigest() for each in results]
    return {"codes": codes, "results": digests, "said": said}


def one_case(number: int, seed: int, scratch: Path, watch: Watch) -> dict[str, Any]:
    """Make a case, examine it, and return the result."""
    folder, outside = scratch / "work/case", scratch / "outside"
    rng = random.Random(f"{seed} {number}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(scratch / "base", folder)
    how = rng.choice([0, 0, 1, 2, 3])
    kinds = (
        []
        if number < 4
        else [change(rng, folder, outside) for _ in range(rng.choice([1, 1, 2, 3]))]
    )
    how = number if number < 4 else 2 if "parameters" in kinds else how
    renew(folder)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    begin = time.perf_counter()
    found: dict[str, Any] = {
        "number": number,
        "kinds": kinds,
        "how": how,
        "codes": [],
        "results": [],
    }
    signal.setitimer(signal.ITIMER_REAL, MOST_S)
    try:
        found |= examine(folder, how, watch)
    except TookTooLong:
        found["late"] = True
    except BaseException as error:
        found["traceback"] = repr(error)[:500]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    found["took_s"] = time.perf_counter() - begin
    status = Path("/proc/self/status").read_text()
    found["rss_bytes"] = int(status.split("VmHWM:")[1].split()[0]) * 1024
    if any(code not in (0, 2) for code in found["codes"]):
        found["traceback"] = "".join(found["said"])[-1500:]
    return found


def late(number: int, frame: Any) -> None:
    """End what takes too long."""
    raise TookTooLong


def work(numbers: Sequence[int], seed: int, scratch: Path, results: Any) -> None:
    """Do cases in a process of its own, whose memory is limited."""
    core_verilog.device_verilog = verilog
    os.environ["FPGAPIPE_CACHE"] = str(scratch / "work/cache")
    work, outside = scratch / "work", scratch / "outside"
    os.chdir(work)
    signal.signal(signal.SIGALRM, late)
    watch = Watch(work, outside)
    one_case(0, seed, scratch, watch)  # so that everything is imported
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
    before = tree_of(outside)
    for number in numbers:
        watch.seen.clear()
        found = one_case(number, seed, scratch, watch)
        if tree_of(outside) != before:
            watch.seen.append("the tree outside")
            before = tree_of(outside)
        found["said"] = "".join(found.get("said", []))[-300:]
        found["outside"] = watch.seen[:5]
        results.send(found)
    results.close()


def cases(numbers: Sequence[int], seed: int, scratch: Path) -> Iterator[dict[str, Any]]:
    """Do cases; a process that dies, or is stuck, is replaced by another."""
    while numbers:
        mine, theirs = multiprocessing.Pipe(duplex=False)
        arguments = (numbers, seed, scratch, theirs)
        process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
        process.start()
        theirs.close()
        fault: dict[str, Any] = {"late": True, "took_s": STUCK_S}
        try:
            while mine.poll(STUCK_S):
                yield mine.recv()
                numbers = numbers[1:]
        except EOFError:
            fault = {"traceback": "the process died"}
        if numbers:
            yield {"number": numbers[0], "kinds": [], "outside": [], **fault}
            numbers = numbers[1:]
        process.kill()
        process.join()


def main() -> int:
    """Print the figures; returns the exit code."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork would wait for threads of the model
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="Numbers of cases, from 4 on.")
    parser.add_argument("--faults", type=int, default=20, help="That are printed.")
    given = parser.parse_args()
    core_verilog.device_verilog = verilog
    counts: Counter[str] = Counter()
    untouched: dict[int, Any] = {}
    faults: list[dict[str, Any]] = []
    most_s, most_bytes, largest = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name).resolve()
        for each in ("work", "outside"):
            (scratch / each).mkdir()
        (scratch / "outside/secret.txt").write_text("nobody's business\n")
        os.environ["FPGAPIPE_CACHE"] = str(scratch / "cache")
        make_base(scratch / "base")
        numbers = [*range(4), *(given.only or range(4, given.cases + 4))]
        for found in cases(numbers, given.seed, scratch):
            if found["number"] < 4:
                untouched[found["how"]] = found
                assert set(found["codes"]) == {0}, found
                continue
            counts["cases"] += 1
            if counts["cases"] % 1000 == 0:
                print(f"{counts['cases']:,} cases", file=sys.stderr, flush=True)
            most_s = max(most_s, found.get("took_s", 0.0))
            if found.get("rss_bytes", 0) > most_bytes:
                most_bytes, largest = found["rss_bytes"], found["number"]
            codes = found.get("codes", [])
            same = found.get("results") == untouched[found.get("how", 0)]["results"]
            follows = not set(found["kinds"]) & {"checkpoint", "parameters", "log"}
            counts["refused"] += 2 in codes
            counts["accepted and equal"] += 2 not in codes and same
            counts["accepted with other data"] += 2 not in codes and not same and not follows
            wrong = {
                "tracebacks": "traceback" in found,
                "hangs": "late" in found,
                "outside": bool(found["outside"]),
                "silently different": set(codes) == {0} and not same and follows,
            }
            for what, is_so in wrong.items():
                counts[what] += is_so
            if any(wrong.values()):
                print(f"case {found['number']}", file=sys.stderr, flush=True)
                faults.append({key: found.get(key) for key in found if key != "results"})
    reached = most_bytes < MOST_BYTES and not faults
    print(
        json.dumps(
            {
                **counts,
                "most_s": round(most_s, 2),
                "most_rss_bytes": most_bytes,
                "most_rss_case": largest,
                "faults": faults[: given.faults],
                "reached": reached,
            },
            indent=2,
        )
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
