"""An installation of XRT with its headers, and the command that compiles the C functions."""

import os
import sysconfig
from pathlib import Path
from typing import NamedTuple


class XrtInstallation(NamedTuple):
    """Folders of an installation of XRT with its headers."""

    include: Path
    library: Path


def find_xrt():
    """Find XRT: where ``XILINX_XRT`` says, in AMD's folder, or as Debian's libxrt-dev has it."""
    folders = [Path(each) for each in (os.environ.get("XILINX_XRT"), "/opt/xilinx/xrt") if each]
    places = [XrtInstallation(folder / "include", folder / "lib") for folder in folders]
    debian = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "")
    places.append(XrtInstallation(Path("/usr/include/xrt"), debian))
    for place in places:
        if (place.include / "xrt" / "xrt_device.h").is_file():
            return place
    return None


def compile_command(source, library, xrt):
    """Return the command that compiles the shim."""
    return [
        *("g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"),
        *("-isystem", str(xrt.include), str(source), "-o", str(library)),
        *(f"-L{xrt.library}", f"-Wl,-rpath-link,{xrt.library}", "-lxrt_coreutil"),
    ]
