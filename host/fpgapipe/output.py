"""Keeps standard output free for what the commands print."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def beside_output() -> Iterator[None]:
    """Send what a user's code and the libraries that it calls print to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            sys.__stdout__.flush()  # type: ignore[union-attr]
            kept = os.dup(1)
        except (AttributeError, OSError, ValueError):  # standard output is closed
            yield
            return
        try:
            os.dup2(2, 1)
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
