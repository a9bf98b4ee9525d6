"""The runs of a backend that are kept: the present one, and those before it.

``run/model`` is the present one, ``run/model.before`` the one before it, ``run/model.before-2`` the
one before that. A name is given by renaming, one after the other from the oldest on, so a process
that is killed at any moment leaves every run under some name.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from fpgapipe.files import remove_folder, remove_leftovers
from fpgapipe.host.runtime.checkpoint import CheckpointFolder
from fpgapipe.host.runtime.run_log import read_log

if TYPE_CHECKING:
    from pathlib import Path

LOG, SETTINGS, CHECKPOINTS = "log.jsonl", "settings.json", "checkpoints"
"""What the folder of a run has."""

EARLIER = 3
"""Runs with steps that are kept besides the present one."""

logger = logging.getLogger(__name__)


def earlier_run(folder: Path, number: int) -> Path:
    """Name of the run before the present one, for 1; of the one before that, for 2; and so on."""
    return folder.with_name(folder.name + ".before" + (f"-{number}" if number > 1 else ""))


def earlier_runs(folder: Path) -> list[Path]:
    """Runs before the one in a folder, the latest first."""
    numbers = []
    begin = f"{folder.name}.before"
    for path in folder.parent.iterdir() if folder.parent.is_dir() else ():
        rest = path.name.removeprefix(begin)
        if rest == "" or rest == path.name:
            numbers += [1] * (rest == "")
        elif rest[0] == "-" and rest[1:].isascii() and rest[1:].isdecimal():
            numbers.append(int(rest[1:]))
    return [earlier_run(folder, number) for number in sorted(numbers)]


def steps_of(folder: Path) -> int:
    """Steps that the run in a folder has done, as its log or its checkpoints say."""
    logged = sum("step" in line for line in read_log(folder / LOG))
    return max([logged, *CheckpointFolder(folder / CHECKPOINTS).steps()])


def keep_earlier(folder: Path) -> None:
    """Rename the run in a folder, so that nothing of it is lost; one without steps is removed.

    What was being written there when a run was killed is removed, too.
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
    """Make an earlier run the present one; the present one is kept as the one before it."""
    status = earlier.stat()
    keep_earlier(folder)
    moved = (each for each in earlier_runs(folder) if os.path.samestat(each.stat(), status))
    next(moved).replace(folder)


def drop_oldest(folder: Path) -> None:
    """Remove earlier runs but the latest `EARLIER`; those without a checkpoint go first.

    It is for a run that has as much itself: a checkpoint after a step, or results.
    """
    found = earlier_runs(folder)
    found.sort(key=lambda each: not any(CheckpointFolder(each / CHECKPOINTS).steps()))
    for path in found[EARLIER:]:
        steps = steps_of(path)
        logger.info("%s (%d steps) is removed: %d later runs are kept", path, steps, EARLIER)
        remove_folder(path)
