"""Errors that are the user's to mend, apart from those that are ours."""

import difflib
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """Something the user can mend: a file, an option, a missing program.

    The command line prints the message without a traceback and exits with 2. Everything else that
    escapes is a defect of fpgapipe: it keeps its traceback and exits with 70.
    """


class FileError(UserError):
    """One or more faults in a file, all of them at once.

    Parameters
    ----------
    path : Path or str
        The file, as the user named it.
    faults : iterable of str
        A sentence each, beginning with the line or key where one is known.
    """

    def __init__(self, path: Path | str, faults: Iterable[str]) -> None:
        self.path = Path(path)
        self.faults = tuple(faults)
        super().__init__("\n".join(f"{path}: {fault}" for fault in self.faults))


class ToolError(UserError):
    """An external program failed, or did not write what it should have.

    Parameters
    ----------
    what : str
        What was being done and how it ended.
    last_lines : iterable of str
        The end of the program's output.
    log : Path or str
        Where the whole output is kept.
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
