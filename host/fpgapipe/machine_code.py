"""Functions compiled to machine code, which is cached on the disk where possible.

This module needs numba.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numba

_F = TypeVar("_F", bound=Callable[..., Any])

logger = logging.getLogger(__name__)


def compiled(function: _F) -> _F:
    """Compile a function when it is first called, and cache its machine code.

    If neither the folder of the source nor the user's cache folder can be written, every process
    compiles the function again.
    """
    return _compiled(function, {})


def compiled_without_counts(function: _F) -> _F:
    """Compile a function, as `compiled` does, that makes no arrays and calls none that does.

    References to the arrays that it is given are not counted, which is most of what a call of a
    short function costs.
    """
    try:
        return _compiled(function, {"_nrt": False})
    except KeyError:  # a release of numba without this option, which is none of its documented ones
        return compiled(function)


def _compiled(function: _F, options: dict[str, bool]) -> _F:
    try:
        made: _F = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # raised by the cache: the function is compiled only when it is called
        _say()
        made = numba.njit(nogil=True, **options)(function)
    return made


@cache
def _say() -> None:
    logger.warning(
        "machine code cannot be kept, so every command takes some seconds to make it anew; set "
        "NUMBA_CACHE_DIR to a folder that can be written"
    )
