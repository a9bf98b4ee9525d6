"""The checkpoints of a build, of all its runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fpgapipe.errors import UserError
from fpgapipe.files import size_text
from fpgapipe.host.build.build import RUN
from fpgapipe.host.build.build_parts import PLAN
from fpgapipe.host.runtime.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from fpgapipe.host.runtime.run_folder import CHECKPOINTS
from fpgapipe.host.terminal.console import Table
from fpgapipe.host.terminal.result import Result


@dataclass(frozen=True)
class Checkpoints(Result):
    """Checkpoints from which ``fpgapipe run --from`` continues.

    Attributes
    ----------
    folder : Path
        The build.
    rows : tuple of dict
        For each checkpoint the name of its ``run``, its ``path``, its ``step``, which is the number
        of steps that are done, its ``bytes``, and why it cannot be used (``fault``; else None). The
        present run of each backend comes before earlier ones, the newest checkpoint first.
    """

    RECORDS: ClassVar[str] = "checkpoints"

    folder: Path
    rows: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """The build's folder, and a record for each checkpoint."""
        return {"folder": str(self.folder), self.RECORDS: list(self.rows)}

    def shown(self) -> Iterator[Table | str]:
        """A row for each checkpoint."""
        rows = [
            (each["run"], each["step"], size_text(each["bytes"]), each["path"], each["fault"] or "")
            for each in self.rows
        ]
        yield Table("run|>step|>size|file|fault", rows, f"checkpoints of {self.folder}")


def checkpoints(folder: Path | str) -> Checkpoints:
    """List the checkpoints of all runs of a build, each read and compared with its checksum.

    Parameters
    ----------
    folder : path
        The build.

    Raises
    ------
    UserError
        If there is no build in the folder.
    """
    folder = Path(folder)
    if not (folder / PLAN).is_file():
        raise UserError(f"{folder} has no build: there is no {PLAN}")
    runs = (folder / RUN).iterdir() if (folder / RUN).is_dir() else ()
    found = []
    for run in sorted(runs):
        for path in CheckpointFolder(run / CHECKPOINTS):
            step, fault = int(path.stem.removeprefix("step-")), None
            try:
                Checkpoint.read(path)
            except CheckpointError as error:
                fault = str(error)
            size = path.stat().st_size
            found.append(
                {"run": run.name, "step": step, "bytes": size, "path": str(path), "fault": fault}
            )
    return Checkpoints(folder, tuple(found))
