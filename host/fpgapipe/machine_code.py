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
    try:
        made: _F = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # raised by the cache: the function is compiled only when it is called
        _say()
        made = numba.njit(nogil=True)(function)
    return made


@cache
def _say() -> None:
    logger.warning(
        "machine code cannot be kept, so every command takes some seconds to make it anew; set "
        "NUMBA_CACHE_DIR to a folder that can be written"
    )
