"""Finding boards: built-in ones, those offered by other installed packages, and the user's files.

Anything with a slash or a ``.yaml`` ending is a path. Any other word is the name of a built-in
board or of one of the entry points ``fpgapipe.boards``. An entry point named ``my-board`` with the
package ``my_package.data`` as its value offers the file ``my-board.yaml`` in that package.
"""

import importlib.resources
from functools import lru_cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from fpgapipe.boards.block import validated
from fpgapipe.boards.schema import Board, source_faults
from fpgapipe.boards.yaml_file import Fault, read_yaml
from fpgapipe.errors import FileError
from fpgapipe.plugins import Registry

ENDINGS = (".yaml", ".yml")


def board_names() -> list[str]:
    """Return the names that `load_board` knows, the built-in ones first, each sorted."""
    return BOARDS.names()


def load_board(name_or_path: str | Path) -> Board:
    """Read a board.

    Parameters
    ----------
    name_or_path : str or Path
        A name, or a path, which has a slash or ends in ``.yaml`` or ``.yml``.

    Raises
    ------
    UserError
        If no board has the name, or two packages offer it.
    FileError
        If the file is missing or faulty; the error lists every fault.
    """
    word = str(name_or_path)
    if isinstance(name_or_path, Path) or is_path(word):
        return read_board(Path(name_or_path))
    return _by_name(word)


def is_path(word: str) -> bool:
    """Return whether a word is a path and not a name."""
    return "/" in word or "\\" in word or word.lower().endswith(ENDINGS)


def read_board(path: Path) -> Board:
    """Read a board file.

    Raises
    ------
    FileError
        If the file is missing or faulty; the error lists every fault.
    """
    if not _exists(path) and path.stem in BOARDS.own:
        raise FileError(path, [f"there is no such file; the built-in board is named {path.stem!r}"])
    document = read_yaml(path)
    if isinstance(document.value, dict) and "devices" in document.value:
        what = "is a cluster file, since it has the key 'devices'; a board file is needed"
        document.faults.append(Fault((), what))
        document.raise_faults()
    board = validated(document, Board)
    document.add(source_faults(document.value))
    document.raise_faults()
    assert board is not None, "a board without faults"
    return board


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return True  # reading the file raises an error that says what is wrong


def _offered_file(entry: EntryPoint, package: Any) -> Path:
    if not isinstance(package, ModuleType):
        raise TypeError("is no package")
    return Path(str(importlib.resources.files(package))) / f"{entry.name}.yaml"


BOARDS: Registry[Path] = Registry(
    "fpgapipe.boards",
    "board",
    {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))},
    _offered_file,
)
"""The file of each board by its name."""


def _by_name(name: str) -> Board:
    path = BOARDS[name]
    if path.parent == Path(__file__).parent:
        return _built_in_board(path)
    board = read_board(path)
    if board.name != name:
        raise FileError(path, [f"names the board {board.name!r}, and its package {name!r}"])
    return board


@lru_cache(maxsize=64)
def _built_in_board(path: Path) -> Board:
    return read_board(path)
