"""Files that a command writes where its user says: found out before the work, written whole."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from fpgapipe import files
from fpgapipe.errors import FileError, UserError

MANIFEST, RUN = "manifest.json", "run"
"""What a build folder has, see `host.build.build`, which is not imported to write a picture."""

OF_RUNS = ("measured.json", "trace.json")
"""Files in a build's folder of runs that no other output may take the place of."""

MAX_BYTES = 1 << 30

logger = logging.getLogger(__name__)


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str | None] = ()) -> None:
    """Find out, before the work, whether files can be written where options say.

    Parameters
    ----------
    outputs : mapping of str to str or None
        Path by option; None where it is not given.
    inputs : iterable of str or None
        What the command reads; names of no files are passed over.

    Raises
    ------
    UserError
        If one cannot be written, two are the same, or one is an input or belongs to a build.
    """
    read = {_real(name): name for name in inputs if name}
    written: dict[Path, str] = {}
    for option, name in outputs.items():
        if name is None:
            continue
        check_output(Path(name))
        real = _real(name)
        if real in written:
            raise UserError(f"{written[real]} and {option} name the same file, {name}")
        if real in read:
            raise FileError(name, [f"is read by this command; name another file with {option}"])
        written[real] = option


def check_output(path: Path) -> None:
    """Find out whether a file can be written, and is none of a build's own.

    Raises
    ------
    FileError
        If it cannot, or is.
    """
    files.check_output(path)
    real = path.resolve()
    for folder in real.parents:
        if belongs_to_build(real, folder):
            what = f"is a file of the build {folder}, which it would destroy; name another"
            raise FileError(path, [what])


def belongs_to_build(path: Path, folder: Path) -> bool:
    """Whether a path, all links in it followed, is one of the files of a build folder or its runs.

    New files, and the pages that are in its folder of runs, are not.
    """
    try:
        found = files.read_json(folder / MANIFEST, MAX_BYTES)
        if found["format"] != "fpgapipe-build":
            return False
        own = set(found["files"])
    except (FileError, LookupError, TypeError):
        return False
    inside = path.relative_to(folder)
    if inside.parts[0] == RUN:
        return len(inside.parts) > 2 or inside.name in OF_RUNS or len(inside.parts) == 1
    return inside.as_posix() in own | {MANIFEST}


def write_output(path: str | Path, text: str) -> None:
    """Write a file that a user named, and say so.

    Raises
    ------
    FileError
        If it cannot be written; what was there is still there then.
    """
    files.write_output(Path(path), text)
    logger.info("wrote %s", path)


def _real(name: str) -> Path:
    """Where a path leads, as far as it can be followed."""
    try:
        return Path(name).resolve()
    except (OSError, ValueError, RuntimeError):
        return Path(name)
