"""Ends builds, runs and reports at random moments: nothing may be lost, and nothing left over.

Each case begins with a build that has a run and a report, or without a run where it is built anew.
Then one of the three commands runs in a process of its own and is ended: by ``kill -9``, by
SIGTERM, by SIGHUP, or by a full disk (a small one, mounted for it where that is permitted; else a
limit on the size of files). The build, the run with the bits of its weights, and the report have
to be there as before, and usable. The command is given once more, with ``--resume`` if a run left a
checkpoint, and has to end as if nothing had happened; then no temporary file may be left.

Prints one JSON object: cases and faults by command and by way of ending it. Exits with 1 if there
is a fault.
"""

import argparse
import contextlib
import ctypes
import hashlib
import io
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from run_digest import newest_weights

from fpgapipe.errors import UserError
from fpgapipe.host.build.build import open_build
from fpgapipe.host.cli.main import main as command_line
from fpgapipe.host.make import planning
from fpgapipe.host.runtime.run_folder import LOG, earlier_runs
from fpgapipe.host.runtime.run_log import read_log

WAYS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP, "full": None}
"""Ways in which a command is ended: signals, or None for a full disk."""

CODES = {"kill": {-9}, "term": {143, -15}, "hup": {129, -1}, "full": {2}}
"""Exit codes in addition to 0; a signal before its handler is installed ends the process itself."""

NEW = "--board u280 --devices 1 --array 4x4 --batch 4 --micro-batches 2"
STEPS, EVERY = 12, 2
RUN = f"--backend model --data random --steps {STEPS} --checkpoint-every {EVERY} --no-validation"


def call(*words: str | Path) -> int:
    """Run a command in this process."""
    with contextlib.redirect_stdout(io.StringIO()):
        return command_line([str(word) for word in words])


def commands(folder: Path) -> dict[str, list[str]]:
    """Commands that are ended, for a build in a folder."""
    return {
        "build": ["build", *NEW.split(), "--seed", "1", "-o", str(folder)],
        "run": ["run", str(folder), *RUN.split(), "--seed", "1"],
        "report": ["report", str(folder)],
    }


def remember(words: list[str]) -> None:
    """Make a build, and let later ones take its plan; the Verilog is cached anyway."""
    search = planning.best_pipeline
    plans: list[object] = []

    def once(*given: object, **more: object) -> object:
        plans.extend([] if plans else [search(*given, **more)])  # type: ignore[arg-type]
        return plans[0]

    planning.best_pipeline = once  # type: ignore[assignment]
    assert call(*words) == 0


# ------------------------------------------------------------- what was there before


def weights(folder: Path) -> str:
    """Digest of the newest checkpoint of a run and of its log without times; empty if none."""
    step, bits = newest_weights(folder)
    if not step:
        return ""
    digest = hashlib.sha256(bits.encode())
    for line in read_log(folder / LOG):
        line.pop("wall_s", None)
        digest.update(json.dumps(line, sort_keys=True).encode())
    return digest.hexdigest()


def digest_of_build(folder: Path) -> str:
    """Digest of a complete build; empty for an incomplete one."""
    try:
        return hashlib.sha256(
            (open_build(folder).folder / "manifest.json").read_bytes()
        ).hexdigest()
    except UserError:
        return ""


def runs(folder: Path) -> set[str]:
    """Digests of all runs that a build has."""
    present = folder / "run/model"
    return {weights(each) for each in (present, *earlier_runs(present))}


@dataclass(frozen=True)
class Expected:
    """Files before each command and after it.

    Attributes
    ----------
    folder : Path
        Folder as it is before a command.
    build, run, page : str
        Digests before a command.
    after : mapping
        Digest of the result of each command.
    seconds : mapping
        Time of each command, s.
    bytes : mapping
        Approximate number of bytes that each command writes.
    """

    folder: dict[str, Path]
    build: str
    run: str
    page: bytes
    after: dict[str, str]
    seconds: dict[str, float]
    bytes: dict[str, int]


def page_of(folder: Path) -> bytes:
    """The report, without the build's path in its commands."""
    return (folder / "run/report.html").read_bytes().replace(bytes(folder), b"")


def result_of(name: str, folder: Path) -> str:
    """Digest of the result of a command."""
    if name == "build":
        return digest_of_build(folder)
    if name == "run":
        return weights(folder / "run/model")
    return hashlib.sha256(page_of(folder)).hexdigest()


def prepare(scratch: Path) -> Expected:
    """Make the folder with which all cases begin, and record the results of the commands."""
    whole, bare = scratch / "whole", scratch / "bare"
    remember(["build", *NEW.split(), "-o", str(whole)])
    shutil.copytree(whole, bare)
    assert call("run", whole, *RUN.split()) == 0
    assert call("report", whole) == 0
    page = (whole / "run/report.html").read_bytes()
    folders = {"build": bare, "run": whole, "report": whole}
    after, seconds, size = {}, {}, {}
    for name, words in commands(scratch / "b").items():
        shutil.copytree(folders[name], scratch / "b")
        if name == "report":
            # So that the page differs from the one before.
            (scratch / "b/run/model/log.jsonl").write_text("")
        before = used(scratch / "b")
        begin = time.monotonic()
        assert call(*words) == 0
        seconds[name] = time.monotonic() - begin
        after[name] = result_of(name, scratch / "b")
        size[name] = max(used(scratch / "b") - before, len(page))
        shutil.rmtree(scratch / "b")
    return Expected(
        folders, digest_of_build(whole), weights(whole / "run/model"), page,
        after, seconds, size,
    )  # fmt: skip


def used(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------------- ends


def spawn(words: list[str], log: Path, most_bytes: int | None) -> int:
    """Start a command in a process of its own; returns the number of the process."""
    if pid := os.fork():
        return pid
    code = 99
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        code = command_line(words)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def disk(scratch: Path, folder: Path, room: int) -> Iterator[tuple[Path, int | None]]:
    """Yield a place with room for a folder and `room` bytes more, or else a limit on file sizes."""
    place = scratch / "disk"
    place.mkdir()
    mounted = False
    try:
        size = used(folder) + 4096 * (3 * len(list(folder.rglob("*"))) + 64) + room
        libc = ctypes.CDLL(None, use_errno=True)
        mounted = libc.mount(b"none", bytes(place), b"tmpfs", 0, f"size={size}".encode()) == 0
        yield place, None if mounted else max(room, 4096)
    finally:
        if mounted:
            libc.umount2(bytes(place), 2)  # MNT_DETACH
        shutil.rmtree(place, ignore_errors=True)


def faults_of(name: str, way: str, expected: Expected, rng: random.Random, scratch: Path) -> str:
    """Set a case up, end its command and run it again; returns the fault, or how it ended."""
    room = int(rng.uniform(0, 1.2) * expected.bytes[name]) if way == "full" else 1 << 30
    if way != "full":
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            return ended(name, way, expected, rng, Path(place), None)
    with disk(scratch, expected.folder[name], room) as (place, most_bytes):
        return ended(name, way, expected, rng, place, most_bytes)


def ended(
    name: str, way: str, expected: Expected, rng: random.Random, place: Path, most: int | None
) -> str:
    """Run a case in a place prepared for it."""
    log = place.with_name("log")
    folder = place / "b"
    shutil.copytree(expected.folder[name], folder)
    if name == "report":
        (folder / "run/model/log.jsonl").write_text("")
    words = commands(folder)[name]
    pid = spawn(words, log, most)
    number = WAYS[way]
    if number is not None:
        time.sleep(rng.uniform(0, expected.seconds[name]))
        os.kill(pid, number)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in CODES[way] | {0}:
        return f"FAULT: exit code {code}: {log.read_text(errors='replace')[-400:]}"
    if lost := lost_of(name, code, expected, folder):
        return f"FAULT: {lost}"
    if way == "full" and most is None:
        remounted(place)
    again = list(words)
    if name == "run":
        resumable = newest_weights(folder / "run/model")[0] > 0
        own = resumable and weights(folder / "run/model") != expected.run
        again += ["--resume"] * (own and code != 0)
    code_again = os.waitstatus_to_exitcode(os.waitpid(spawn(again, log, None), 0)[1])
    if code_again:
        return f"FAULT: the next start: {code_again}: {log.read_text(errors='replace')[-400:]}"
    if result_of(name, folder) != expected.after[name]:
        return "FAULT: the next start does not end as if nothing had been"
    if lost := lost_of(name, 0, expected, folder):
        return f"FAULT: after the next start: {lost}"
    left = [path for path in place.rglob("*") if path.name.endswith((".part", ".new", ".swap"))]
    left += [path for path in place.iterdir() if path != folder]
    if left:
        return f"FAULT: left over: {left[0].relative_to(place)}"
    return "was over before" if code == 0 else "ended"


def remounted(place: Path) -> None:
    """Enlarge a disk."""
    ctypes.CDLL(None).mount(b"none", bytes(place), b"tmpfs", 32, b"size=1073741824")  # MS_REMOUNT


def lost_of(name: str, code: int, expected: Expected, folder: Path) -> str:
    """Name what was there before a command and is gone, unless its result is there instead."""
    if name == "build":
        found = digest_of_build(folder)
        good = {expected.after["build"]} | ({expected.build} if code else set())
        return "" if found in good else "the build"
    if digest_of_build(folder) != expected.build:
        return "the build"
    if name == "run":
        return "" if expected.run in runs(folder) else "the run"
    earlier = (folder / "run/report.html").read_bytes() == expected.page
    return "" if earlier or result_of(name, folder) == expected.after[name] else "the report"


def main() -> int:
    """Print the figures."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork would wait for threads of the model
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    counted: dict[str, Counter[str]] = {}
    faults = []
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        expected = prepare(scratch)
        while sum(each["ended"] + each["faults"] for each in counted.values()) < given.moments:
            for way in WAYS:
                for name in commands(scratch):
                    said = faults_of(name, way, expected, rng, scratch)
                    key = "faults" if said.startswith("FAULT") else said
                    counted.setdefault(f"{name}, {way}", Counter())[key] += 1
                    if key == "faults":
                        faults.append({"command": name, "way": way, "what": said})
                        print(json.dumps(faults[-1]), file=sys.stderr, flush=True)
    print(
        json.dumps(
            {
                "moments": sum(each["ended"] + each["faults"] for each in counted.values()),
                "by_command_and_way": {name: dict(each) for name, each in counted.items()},
                "seconds_alone": {name: round(each, 2) for name, each in expected.seconds.items()},
                "faults": faults,
            },
            indent=2,
        )
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
