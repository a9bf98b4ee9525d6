"""Finding boards: built-in ones, those offered by other installed packages, and the user's files.

Anything with a slash or a ``.yaml`` ending is a path. Any other word is a name: first of a built-in
board, then of one of the entry points ``fpgapipe.boards``. An entry point named ``my-board`` with
the package ``my_package.data`` as its value offers the file ``my-board.yaml`` in that package.
"""

import importlib.metadata
import importlib.resources
import logging
from functools import lru_cache
from pathlib import Path

from fpgapipe.boards.block import validated
from fpgapipe.boards.schema import Board, source_faults
from fpgapipe.boards.yaml_file import Fault, read_yaml
from fpgapipe.errors import FileError, UserError, nearest, shown

ENTRY_POINTS = "fpgapipe.boards"
"""Group of entry points in which other packages offer boards."""

ENDINGS = (".yaml", ".yml")

logger = logging.getLogger(__name__)


def board_names() -> list[str]:
    """Return the names that `load_board` knows, the built-in ones first, each sorted."""
    built_in = sorted(_built_in())
    return built_in + sorted(set(_offered()) - set(built_in))


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
    if not _exists(path) and path.stem in _built_in():
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


@lru_cache(maxsize=1)
def _built_in() -> dict[str, Path]:
    folder = Path(str(importlib.resources.files("fpgapipe.boards")))
    return {path.stem: path for path in folder.glob("*.yaml")}


def _offered() -> dict[str, list[importlib.metadata.EntryPoint]]:
    offered: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        offered.setdefault(entry.name, []).append(entry)
    return offered


def _by_name(name: str) -> Board:
    offers = _offered().get(name, [])
    if name in _built_in():
        for entry in offers:
            logger.warning(
                "the built-in board %s is used, not the one that %s offers", name, _giver(entry)
            )
        return _built_in_board(name)
    if not offers:
        hint = nearest(name, board_names()) or f"; the boards are {', '.join(board_names())}"
        raise UserError(f"there is no board named {shown(name)}{hint}")
    if len({entry.value for entry in offers}) > 1:
        givers = " and ".join(_giver(entry) for entry in offers)
        raise UserError(f"the board {name!r} is offered by {givers}; give the path of one")
    board = read_board(_file_of(offers[0]))
    if board.name != name:
        raise UserError(
            f"{_giver(offers[0])} offers the board {name!r}, but its file says {board.name!r}"
        )
    return board


@lru_cache(maxsize=64)
def _built_in_board(name: str) -> Board:
    return read_board(_built_in()[name])


def _giver(entry: importlib.metadata.EntryPoint) -> str:
    return f"the package {entry.dist.name}" if entry.dist else f"the entry point {entry.value}"


def _file_of(entry: importlib.metadata.EntryPoint) -> Path:
    try:
        folder = importlib.resources.files(entry.module)
    except Exception as error:
        # Importing a package runs its own code, which can raise any exception.
        raise UserError(
            f"{_giver(entry)} offers the board {entry.name!r}, but {entry.module} cannot be "
            f"imported: {type(error).__name__}: {shown(str(error))}"
        ) from error
    return Path(str(folder)) / f"{entry.name}.yaml"
