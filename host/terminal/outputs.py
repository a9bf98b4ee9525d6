"""Output files that a user names: checked before the work begins, written whole or not at all."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fpgapipe import files
from fpgapipe.errors import FileError, UserError

MANIFEST, RUN = "manifest.json", "run"
"""Names in a build folder: of its manifest, and of its folder of runs."""

OF_RUNS = ("measured.json", "trace.json")
"""Files in a build's folder of runs that no other output may replace."""

MAX_BYTES = 1 << 30

logger = logging.getLogger(__name__)


def how_to_build(folder: Path) -> str:
    """Part of a message: an example of a complete command line that makes a build."""
    line = "fpgapipe build --board u280 --devices 2 --array 8x8 --batch 8"
    return f"'{line} -o {folder}' makes one"


def no_build(folder: Path, why: str = "there is no such file") -> UserError:
    """The error for a folder without a build; if there is no such folder, it says how to make one.

    Parameters
    ----------
    folder : Path
    why : str
        What is wrong with its manifest.
    """
    hint = "" if os.path.lexists(folder) else f"; {how_to_build(folder)}"
    return UserError(f"{folder} is no build folder ({MANIFEST}: {why}){hint}")


def check_folder_there(folder: Path) -> None:
    """Refuse a build folder that is not there before anything is imported that opens builds."""
    if not os.path.lexists(folder):
        raise no_build(folder)


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str | None] = ()) -> None:
    """Check, before the work begins, whether the output files of a command can be written.

    Parameters
    ----------
    outputs : mapping of str to str or None
        Path for each option; None if the option is not given.
    inputs : iterable of str or None
        Names of the files that the command reads; names that are no files do no harm.

    Raises
    ------
    UserError
        If a file cannot be written, two are the same, or one is an input or belongs to a build.
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


def output_of(name: Path | str | None, suffixes: Collection[str], what: str) -> Path | None:
    """Return the path of a result's file, if one is asked for and can be written.

    Parameters
    ----------
    name : path or None
    suffixes : collection of str
        Endings that such files have.
    what : str
        What is written, as the subject of the message and its verb.

    Raises
    ------
    UserError
        If it ends in something else, or cannot be written.
    """
    if name is None:
        return None
    path = Path(name)
    if path.suffix.lower() not in suffixes:
        raise UserError(f"{path}: {what} written as {' or '.join(suffixes)}")
    check_output(path)
    return path


def check_output(path: Path) -> None:
    """Check that a file can be written and does not belong to a build.

    Raises
    ------
    FileError
        If it cannot be written, or belongs to a build.
    """
    files.check_output(path)
    real = path.resolve()
    for folder in real.parents:
        if belongs_to_build(real, folder):
            what = f"is a file of the build {folder}, which it would destroy; name another"
            raise FileError(path, [what])


def belongs_to_build(path: Path, folder: Path) -> bool:
    """Whether a path without links is one of the files of a build folder or of its runs.

    New files in the build folder, and pages in its folder of runs, do not belong to the build.
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
    """Write a file that a user named, and log its name.

    Raises
    ------
    FileError
        If it cannot be written; an earlier file of that name is kept then.
    """
    files.write_output(Path(path), text)
    logger.info("wrote %s", path)


def _real(name: str) -> Path:
    """The path with its links resolved, or unchanged if they cannot be."""
    try:
        return Path(name).resolve()
    except (OSError, ValueError, RuntimeError):
        return Path(name)
