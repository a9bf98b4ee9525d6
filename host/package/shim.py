"""The C functions over XRT that come with a package, and the command that compiles them."""

from __future__ import annotations

import importlib.resources
import os
import sysconfig
from pathlib import Path
from typing import NamedTuple

SHIM_FILES = ("xrt_shim.h", "xrt_shim.cpp")
"""Names of the header, which documents the functions, and of their source."""

SHIM_LIBRARY = "libfpgapipe_xrt.so"
"""Name of the compiled library."""


class XrtInstallation(NamedTuple):
    """Folders of an installation of XRT with its headers."""

    include: Path
    library: Path


def shim_text(name: str) -> str:
    """Return the text of a file of `SHIM_FILES`."""
    return (importlib.resources.files(__package__) / name).read_text()


def find_xrt() -> XrtInstallation | None:
    """Find XRT: where ``XILINX_XRT`` says, in AMD's folder, or as Debian's libxrt-dev has it."""
    folders = [Path(each) for each in (os.environ.get("XILINX_XRT"), "/opt/xilinx/xrt") if each]
    places = [XrtInstallation(folder / "include", folder / "lib") for folder in folders]
    debian = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "")
    places.append(XrtInstallation(Path("/usr/include/xrt"), debian))
    for place in places:
        if (place.include / "xrt" / "xrt_device.h").is_file():
            return place
    return None


def compile_command(source: Path, library: Path, xrt: XrtInstallation) -> list[str]:
    """Return the command that compiles the shim.

    Parameters
    ----------
    source : Path
        ``xrt_shim.cpp``, with its header in the same folder.
    library : Path
        Library to write.
    xrt : XrtInstallation
    """
    return [
        *("g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"),
        *("-isystem", str(xrt.include), str(source), "-o", str(library)),
        *(f"-L{xrt.library}", f"-Wl,-rpath-link,{xrt.library}", "-lxrt_coreutil"),
    ]
