"""Errors that the user can mend; all others are defects of fpgapipe."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class UserError(Exception):
    """An error that the user can mend: in a file, in an option, a missing program.

    The command line prints its message without a traceback and exits with code 2. Any other
    exception that is not caught is a defect of fpgapipe: its traceback is printed, and the exit
    code is 70.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Let pickle copy the error as it is; subclasses are made of other things than a text."""
        return _copy, (type(self), self.args, self.__dict__)


def _copy(kind: type[UserError], args: tuple[Any, ...], values: dict[str, Any]) -> UserError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(values)
    return error


class FileError(UserError):
    """One or more faults in a file, reported together.

    Parameters
    ----------
    path : Path or str
        The file, as the user named it.
    faults : iterable of str
        One sentence for each fault, beginning with the line or key where that is known.
    """

    def __init__(self, path: Path | str, faults: Iterable[str]) -> None:
        self.path = Path(path)
        self.faults = tuple(faults)
        super().__init__("\n".join(f"{path}: {fault}" for fault in self.faults))


class ToolError(UserError):
    """An external program failed, or did not write its outputs.

    Parameters
    ----------
    what : str
        What was being done and how it ended.
    last_lines : iterable of str
        The end of the program's output.
    log : Path or str
        File that has the whole output.
    """

    def __init__(self, what: str, last_lines: Iterable[str], log: Path | str) -> None:
        self.log = Path(log)
        lines = [f"  | {line}" for line in last_lines]
        super().__init__("\n".join([what, *lines, f"the whole log is {log}"]))


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest spelling, or an empty string."""
    names = {name.lower(): name for name in allowed}
    found = difflib.get_close_matches(str(word).lower(), list(names), n=1, cutoff=0.6)
    return f"; did you mean {names[found[0]]!r}?" if found else ""


def shown(value: object, limit: int = 60) -> str:
    """``repr`` for a message: one line of at most `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def counted(count: int, word: str, plural: str = "s") -> str:
    """Write a number of things: ``1 device``, ``1,024 devices``."""
    return f"{count:,} {word}{'' if count == 1 else plural}"
