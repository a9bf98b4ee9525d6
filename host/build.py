"""The build folder: a plan, the hardware it needs, and what guards them against damage.

``plan.json`` has the stages, ``array_RxC.v`` the Verilog of an array, once for all devices that
have one of that shape, and ``manifest.json`` the digest of each file. Equal input gives equal
bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpgapipe import __version__
from fpgapipe.errors import FileError, UserError
from fpgapipe.hw.hls_models.systolic import SystolicSpec
from fpgapipe.partition.plan import ArrayPlan, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFEST = "manifest.json"
PLAN = "plan.json"
FORMAT_VERSION = 2

logger = logging.getLogger(__name__)

README = """\
# A build of fpgapipe {version}

`{network}` over {devices} of `{cluster}`.

* `plan.json`: which device computes which layers
* {verilog}: the Verilog of the devices' systolic arrays, by rows and columns; top module `top`
* `manifest.json`: SHA-256 of every file

`fpgapipe run` on this folder simulates it.
"""


@dataclass(frozen=True)
class Build:
    """An opened build folder."""

    folder: Path
    plan: Plan
    verilog: dict[str, str]
    """Text of each array's Verilog, by file name."""

    def array(self, stage: int) -> tuple[SystolicSpec, str]:
        """The array of a stage's device, and its Verilog."""
        array = self.plan.stages[stage].array
        return SystolicSpec(array.rows, array.cols), self.verilog[verilog_name(array)]


def verilog_name(array: ArrayPlan) -> str:
    """File name of an array's Verilog."""
    return f"array_{array.rows}x{array.cols}.v"


def write_build(plan: Plan, folder: Path) -> Build:
    """Generate the hardware of a plan and write the folder, whole or not at all.

    Raises
    ------
    UserError
        If the folder is there and is no earlier build, or cannot be written.
    """
    from fpgapipe.hw.rtl.systolic import SystolicArray
    from fpgapipe.sim_tb.verilate import verilog_of

    try:
        foreign = folder.exists() and not (folder / MANIFEST).is_file() and not _is_empty(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    if foreign:
        raise UserError(f"{folder} is there and is no build of fpgapipe; name another with -o")
    arrays = {verilog_name(stage.array): stage.array for stage in plan.stages}
    verilog = {
        name: verilog_of(SystolicArray(SystolicSpec(array.rows, array.cols)))
        for name, array in sorted(arrays.items())
    }
    files = {
        PLAN: plan.to_json(),
        **verilog,
        "README.md": README.format(
            version=__version__,
            network=plan.network,
            devices=f"{len(plan.stages)} device{'s' * (len(plan.stages) != 1)}",
            cluster=plan.cluster,
            verilog=", ".join(f"`{name}`" for name in verilog),
        ),
    }
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    manifest = {"format": "fpgapipe-build", "version": FORMAT_VERSION, "files": digests}
    files[MANIFEST] = json.dumps(manifest, indent=2) + "\n"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            fresh = Path(scratch) / "new"
            fresh.mkdir()
            for name, text in files.items():
                (fresh / name).write_text(text)
            with holding(folder):
                if folder.exists():
                    folder.replace(Path(scratch) / "old")
                fresh.replace(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    return Build(folder, plan, verilog)


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Let one process at a time simulate a build or replace it; others wait.

    The kernel frees the lock of a process that was killed. A folder that is not there is not held.
    """
    descriptor = None
    with contextlib.suppress(OSError):  # not there, or on a file system without locks
        while True:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("waiting for another process that uses %s", folder)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                break
            os.close(descriptor)  # it was replaced meanwhile
            descriptor = None
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_build(folder: Path) -> Build:
    """Open a build folder, its files checked against the manifest.

    Raises
    ------
    UserError
        If it is no build, of another version, or damaged.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["format"] != "fpgapipe-build":
            raise KeyError("format")
        version, files = manifest["version"], dict(manifest["files"])
    except OSError as error:
        raise UserError(
            f"{folder} is no build folder ({error.strerror}); "
            f"'fpgapipe build -o {folder}' makes one"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FileError(folder / MANIFEST, ["is no manifest of a build"]) from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{folder} has format version {version}, not {FORMAT_VERSION}; build it again"
        )
    damaged = [name for name, digest in files.items() if _digest(folder / name) != digest]
    plan = Plan.read(folder / PLAN) if PLAN in files and not damaged else None
    needed = {verilog_name(stage.array) for stage in plan.stages} if plan else {PLAN}
    if plan is None or not needed <= set(files):
        names = ", ".join(damaged) or "an entry of the manifest"
        raise UserError(f"{folder} is damaged ({names}); build it again")
    return Build(folder, plan, {name: (folder / name).read_text() for name in sorted(needed)})


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
