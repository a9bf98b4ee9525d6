"""Folders of a backend's runs: the present run, and some earlier ones.

``run/model`` is the present run, ``run/model.before`` the one before it, ``run/model.before-2`` the
one before that. Folders are renamed one after the other, the oldest first, so that every run has
some name even if the process is killed in between.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.files import remove_folder, remove_leftovers
from fpgapipe.host.runtime.checkpoint import CheckpointFolder
from fpgapipe.host.runtime.run_log import read_log

if TYPE_CHECKING:
    from pathlib import Path

LOG, SETTINGS, CHECKPOINTS = "log.jsonl", "settings.json", "checkpoints"
PREDICTIONS = "predictions.json"
"""Names of the files and the folder in the folder of a run."""

EARLIER = 3
"""Number of earlier runs that are kept besides the present one."""

logger = logging.getLogger(__name__)


def earlier_run(folder: Path, number: int) -> Path:
    """Folder of an earlier run: number 1 is the run before the present one, 2 the one before it."""
    return folder.with_name(folder.name + ".before" + (f"-{number}" if number > 1 else ""))


def earlier_runs(folder: Path) -> list[Path]:
    """Folders of the runs before the one in a folder, the latest first."""
    numbers = []
    begin = f"{folder.name}.before"
    for path in folder.parent.iterdir() if folder.parent.is_dir() else ():
        rest = path.name.removeprefix(begin)
        if rest == "" or rest == path.name:
            numbers += [1] * (rest == "")
        elif rest[0] == "-" and rest[1:].isascii() and rest[1:].isdecimal():
            numbers.append(int(rest[1:]))
    return [earlier_run(folder, number) for number in sorted(numbers)]


def others_than(folder: Path) -> str:
    """The end of an error about a run without checkpoints: the runs of its build that have some."""
    runs = folder.parent.iterdir() if folder.parent.is_dir() else ()
    found = []
    for run in sorted(runs):
        if run != folder and (steps := CheckpointFolder(run / CHECKPOINTS).steps()):
            name = run if ".before" in run.name else run.name
            found.append(f"--from {name} (step {steps[0]:,})")
    return f", or go on from another run: {', '.join(found)}" if found else ""


def check_resumable(folder: Path) -> None:
    """Refuse a run that has no checkpoint.

    Raises
    ------
    UserError
        If there is none; it names the runs of the build that have some.
    """
    checkpoints = CheckpointFolder(folder / CHECKPOINTS)
    if not checkpoints.steps():
        raise UserError(f"{checkpoints.lack}{others_than(folder)}")


def steps_of(folder: Path) -> int:
    """Number of steps that a run has done, according to its log and its checkpoints."""
    logged = sum("step" in line for line in read_log(folder / LOG))
    return max([logged, *CheckpointFolder(folder / CHECKPOINTS).steps()])


def keep_earlier(folder: Path) -> None:
    """Rename the run in a folder to keep it; a run without steps is removed.

    Temporary files that a killed run has left there are removed, too.
    """
    for each in (folder.parent, folder, folder / CHECKPOINTS):
        remove_leftovers(each)
    if not folder.exists():
        return
    if not steps_of(folder):
        logger.info("%s is removed: that run ended before its first step", folder)
        remove_folder(folder)
        return
    last = 1
    while earlier_run(folder, last).exists():
        last += 1
    for number in range(last, 1, -1):
        earlier_run(folder, number - 1).replace(earlier_run(folder, number))
    folder.replace(earlier_run(folder, 1))
    logger.info("the run before this one is kept in %s", earlier_run(folder, 1))


def bring_back(folder: Path, earlier: Path) -> None:
    """Make an earlier run the present one; the present one is kept as the run before it."""
    status = earlier.stat()
    keep_earlier(folder)
    moved = (each for each in earlier_runs(folder) if os.path.samestat(each.stat(), status))
    next(moved).replace(folder)


def drop_oldest(folder: Path) -> None:
    """Remove all but `EARLIER` earlier runs: first those without a checkpoint, then the oldest.

    A run calls this only when it has a checkpoint after a step, or results, of its own.
    """
    found = earlier_runs(folder)
    found.sort(key=lambda each: not any(CheckpointFolder(each / CHECKPOINTS).steps()))
    for path in found[EARLIER:]:
        steps = steps_of(path)
        logger.info("%s (%d steps) is removed: %d later runs are kept", path, steps, EARLIER)
        remove_folder(path)
