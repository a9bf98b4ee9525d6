"""The snapshot that a run keeps of a step in its middle, beside its checkpoints."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.host.runtime.snapshot_file import SnapshotError, read_snapshot, write_snapshot
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fpgapipe.host.backends.base import StepRunner
    from fpgapipe.host.backends.snapshot import Snapshot
    from fpgapipe.host.runtime.check import Check

SNAPSHOT = "within-step.snap"
"""Name of the file."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepSnapshots:
    """The snapshot of a run, of which there is one at most.

    Attributes
    ----------
    folder : Path
        Folder of the run's checkpoints.
    """

    folder: Path

    @property
    def _path(self) -> Path:
        return self.folder / SNAPSHOT

    def save(self, snapshot: Snapshot, identity: Mapping[str, Any]) -> None:
        """Write a snapshot in place of an earlier one.

        Parameters
        ----------
        snapshot : Snapshot
        identity : mapping
            Number of the step (``step``), and all that decides what the step computes; values of
            JSON.
        """
        with phase("snapshots"):
            write_snapshot(self._path, snapshot, identity)
        done = snapshot.cycle - snapshot.begin
        logger.info("step %d is kept at its cycle %s", identity["step"], f"{done:,}")

    def drop(self) -> None:
        """Remove the snapshot, if there is one."""
        self._path.unlink(missing_ok=True)

    def resume(
        self, backend: StepRunner, identity: Mapping[str, Any], check: Check | None = None
    ) -> None:
        """Let the next step of a backend go on from the snapshot, if it is of that step.

        A line says why the step begins anew if there is one that cannot be used.
        """
        if not self._path.exists():
            return
        step = identity["step"]
        try:
            snapshot, about = read_snapshot(self._path)
        except SnapshotError as error:
            logger.warning("%s; step %d begins anew", error, step)
            return
        done = f"{snapshot.cycle - snapshot.begin:,}"
        if about != json.loads(json.dumps(identity)):  # through JSON, as the file has been
            logger.info("%s is of another step, build or settings, and is not used", self._path)
        elif check and not check.fits(snapshot):
            logger.info(
                "%s is of a run that was not checked against model; step %d begins anew",
                self._path,
                step,
            )
        elif backend.go_on_from(snapshot):
            if check:
                check.take(snapshot)
            logger.info("going on within step %d, from its cycle %s", step, done)
        else:
            logger.info("%s is of another simulation; step %d begins anew", self._path, step)
