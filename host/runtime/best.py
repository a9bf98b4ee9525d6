"""The best validation of a run: its checkpoint is kept, and a run without a better one may end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.host.runtime.checkpoint import Checkpoint, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

BEST = "best.ckpt"
"""Name of the checkpoint among those of a run."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Best:
    """The best validation of a run, by its accuracy; of equal ones the first.

    It follows from the log alone, so that a run that was interrupted ends as one that was not.

    Attributes
    ----------
    path : Path
        Its checkpoint.
    patience : int or None
        Validations without a better one after which the run ends.
    """

    path: Path
    patience: int | None = None

    def begin(self, step: int) -> None:
        """Remove a checkpoint of a later step than that from which a run goes on."""
        try:
            kept = Checkpoint.read(self.path).step if self.path.exists() else 0
        except CheckpointError:
            kept = step + 1
        if kept > step:
            logger.info("%s is of a later step, and removed", self.path)
            self.path.unlink()

    def look(self, lines: Sequence[Mapping[str, Any]], checkpoint: Checkpoint) -> bool:
        """Keep a checkpoint if its validation is the best; say whether the run has to end.

        Parameters
        ----------
        lines : sequence of mapping
            Those of the log.
        checkpoint : Checkpoint
            The present state.
        """
        found = validations(lines)
        if not found:
            return False
        best = best_of(lines)
        if best["step"] == checkpoint.step:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.write(self.path)
        since = len(found) - 1 - found.index(best)
        return self.patience is not None and since >= self.patience


def validations(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The validations of a log that have an accuracy."""
    found = (line["validation"] for line in lines if "validation" in line)
    return [each for each in found if each.get("accuracy") is not None]


def best_of(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The best validation of a log, the first of equal ones; empty if there is none."""
    return max(validations(lines), key=lambda each: float(each["accuracy"]), default={})
