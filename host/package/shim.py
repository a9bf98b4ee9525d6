"""The C functions over XRT that come with a package."""

from __future__ import annotations

import importlib.resources

SHIM_FILES = ("xrt_shim.h", "xrt_shim.cpp")
"""Names of the header, which documents the functions, and of their source."""

SHIM_LIBRARY = "libfpgapipe_xrt.so"
"""Name of the compiled library."""


def shim_text(name: str) -> str:
    """Return the text of a file of `SHIM_FILES`."""
    return (importlib.resources.files(__package__) / name).read_text()
