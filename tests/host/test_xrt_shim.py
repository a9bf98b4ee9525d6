"""The C functions over XRT, compiled against the real library and run on its emulation.

Debian's package libxrt-dev has headers and library; any folder that XILINX_XRT names serves as
well. XRT's emulation ``noop`` keeps the bytes of buffers and refuses registers.
"""

import json
import os
import re
import subprocess
import sys

import pytest
from cases.xclbin import xclbin
from cases.xrt_installation import compile_command, find_xrt

from fpgapipe.host.package.shim import SHIM_FILES, shim_text

needs_xrt = pytest.mark.skipif(find_xrt() is None, reason="XRT's headers (libxrt-dev) are missing")


def functions(text):
    """Names of the functions that a C text declares or defines."""
    return set(re.findall(r"^[\w ]+[ *](fpgapipe_\w+)\(", text, re.MULTILINE))


def test_every_declared_function_is_defined():
    header, source = (shim_text(name) for name in SHIM_FILES)
    exported = source.split('extern "C" {')[1]
    assert functions(header) == functions(exported)
    assert len(functions(header)) == 12


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    for name in SHIM_FILES:
        (folder / name).write_text(shim_text(name))
    path = folder / "libfpgapipe_xrt.so"
    command = [*compile_command(folder / "xrt_shim.cpp", path, find_xrt()), "-Werror"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return path


@needs_xrt
def test_the_header_is_plain_c(tmp_path):
    (tmp_path / "xrt_shim.h").write_text(shim_text("xrt_shim.h"))
    (tmp_path / "use.c").write_text(
        '#include "xrt_shim.h"\nint use(void) { return fpgapipe_version(); }\n'
    )
    command = ["gcc", "-std=c99", "-Wall", "-Werror", "-c", "use.c", "-o", "use.o"]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)


ON_EMULATION = """
import ctypes, json, sys
lib = ctypes.CDLL(sys.argv[1])
pointer = ctypes.c_void_p
lib.fpgapipe_last_error.restype = ctypes.c_char_p
lib.fpgapipe_open.restype = pointer
lib.fpgapipe_allocate.restype = pointer
lib.fpgapipe_allocate.argtypes = [
    pointer, ctypes.c_uint32, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)
]
lib.fpgapipe_memory_ports.argtypes = [pointer]
for name in ("write", "read"):
    function = getattr(lib, f"fpgapipe_{name}")
    function.argtypes = [pointer, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64]
lib.fpgapipe_free.argtypes = [pointer, pointer]
lib.fpgapipe_close.argtypes = [pointer]
lib.fpgapipe_read_register.argtypes = [pointer, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32)]

def error():
    return lib.fpgapipe_last_error().decode()

found = {"version": lib.fpgapipe_version()}
for key, path, instance in (
    ("no kernel", sys.argv[2], "other_0"),
    ("no memory", sys.argv[3], "fpgapipe_core_0"),
    ("no file", "nowhere.xclbin", "fpgapipe_core_0"),
):
    assert not lib.fpgapipe_open(b"0", path.encode(), instance.encode())
    found[key] = error()
device = lib.fpgapipe_open(b"0", sys.argv[2].encode(), b"fpgapipe_core_0")
assert device, error()
address = ctypes.c_uint64()
buffers = []
for _ in range(2):
    buffers.append(lib.fpgapipe_allocate(device, 0, 4096, ctypes.byref(address)))
    assert buffers[-1], error()
data = bytes(range(256))
assert lib.fpgapipe_write(buffers[0], 100, data, len(data)) == 0, error()
back = ctypes.create_string_buffer(len(data))
assert lib.fpgapipe_read(buffers[0], 100, back, len(data)) == 0, error()
found["same"] = back.raw == data
for key, offset, size in (("end", 4096, 1), ("around", 2**64 - 1, 2), ("beyond", 4000, 97)):
    assert lib.fpgapipe_write(buffers[0], offset, data, size) == -1
    found[key] = error()
assert lib.fpgapipe_write(buffers[0], 4096, data, 0) == 0
value = ctypes.c_uint32()
found["register"] = lib.fpgapipe_read_register(device, 0, ctypes.byref(value))
found["register error"] = error()
assert lib.fpgapipe_free(device, buffers[0]) == 0
assert lib.fpgapipe_free(device, buffers[0]) == -1
found["freed twice"] = error()
assert lib.fpgapipe_read_register(None, 0, ctypes.byref(value)) == -1
found["no device"] = error()
assert not lib.fpgapipe_allocate(device, 0, 0, ctypes.byref(address))
assert lib.fpgapipe_memory_ports(device) == 1
assert not lib.fpgapipe_allocate(device, 1, 4096, ctypes.byref(address))
found["no port"] = error()
lib.fpgapipe_close(device)
ported = lib.fpgapipe_open(b"0", sys.argv[5].encode(), b"fpgapipe_core_0")
assert lib.fpgapipe_memory_ports(ported) == 2, error()
for port in range(2):
    buffer = lib.fpgapipe_allocate(ported, port, 4096, ctypes.byref(address))
    assert buffer and lib.fpgapipe_write(buffer, 0, data, len(data)) == 0, error()
lib.fpgapipe_close(ported)
both = [lib.fpgapipe_open(b"0", sys.argv[4].encode(), b"fpgapipe_core_%d" % n) for n in (1, 0)]
assert all(both), error()
for each in both:
    buffer = lib.fpgapipe_allocate(each, 0, 4096, ctypes.byref(address))
    assert buffer and lib.fpgapipe_write(buffer, 0, data, len(data)) == 0, error()
    lib.fpgapipe_close(each)
lib.fpgapipe_close(None)
print(json.dumps(found))
"""


MEMORY = """\
#include <iostream>
#include "xrt_shim.cpp"
int main(int, char **paths) {
    for (++paths; *paths; ++paths)
        for (const auto &ip : xrt::xclbin(std::string(*paths)).get_ips())
            for (const auto group : memories_of(ip))
                std::cout << ip.get_name() << " " << group << std::endl;
}
"""


@needs_xrt
def test_buffers_may_span_all_banks(library, tmp_path):
    """They lie in the group of all banks that each core reaches, not in the first one."""
    (tmp_path / "one.xclbin").write_bytes(xclbin())
    (tmp_path / "four.xclbin").write_bytes(xclbin(banks=4))
    (tmp_path / "two.xclbin").write_bytes(xclbin(banks=2, instances=2))
    (tmp_path / "ported.xclbin").write_bytes(xclbin(banks=2, ports=2))
    (tmp_path / "memory.cpp").write_text(MEMORY)
    command = compile_command(tmp_path / "memory.cpp", tmp_path / "memory", find_xrt())
    command = [each for each in command if each not in ("-shared", "-O2")]
    subprocess.run([*command, "-I", library.parent], check=True, capture_output=True, text=True)
    done = subprocess.run(
        [
            tmp_path / "memory",
            *(tmp_path / f"{name}.xclbin" for name in ("one", "four", "two", "ported")),
        ],
        env=os.environ | {"LD_LIBRARY_PATH": str(find_xrt().library)},
        capture_output=True,
        text=True,
        check=True,
    )
    name = "fpgapipe_core:fpgapipe_core"
    wanted = [f"{name}_0 0", f"{name}_0 4", f"{name}_0 0", f"{name}_1 1"]
    wanted += [f"{name}_0 {port}" for port in range(2)]
    assert done.stdout.splitlines() == wanted


@needs_xrt
def test_on_the_emulation_of_xrt(library, tmp_path):
    (tmp_path / "whole.xclbin").write_bytes(xclbin())
    (tmp_path / "alone.xclbin").write_bytes(xclbin(connected=False))
    (tmp_path / "two.xclbin").write_bytes(xclbin(banks=2, instances=2))
    (tmp_path / "ported.xclbin").write_bytes(xclbin(banks=2, ports=2))
    names = [f"{name}.xclbin" for name in ("whole", "alone", "two", "ported")]
    place = find_xrt().library
    environment = os.environ | {"XCL_EMULATION_MODE": "noop", "LD_LIBRARY_PATH": str(place)}
    (tmp_path / "lib").symlink_to(place)
    environment["XILINX_XRT"] = str(tmp_path)  # in whose lib/ XRT looks for its emulation
    done = subprocess.run(
        [sys.executable, "-c", ON_EMULATION, str(library), *names],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["version"] == 3
    assert found["no port"] == "the core has no memory port 1"
    assert found["same"] is True
    assert found["no kernel"] == (
        "the xclbin has no other_0; it has: fpgapipe_core:fpgapipe_core_0"
    )
    assert found["no memory"] == (
        "no argument of fpgapipe_core:fpgapipe_core_0 is connected to a memory"
    )
    assert "nowhere.xclbin" in found["no file"]
    assert found["end"] == "bytes 4096 and 1 more are outside a buffer of 4096 bytes"
    assert found["beyond"] == "bytes 4000 and 97 more are outside a buffer of 4096 bytes"
    assert "outside a buffer" in found["around"]
    assert found["register"] == -1
    assert found["register error"]
    assert found["freed twice"] == "the buffer is none of this device"
    assert found["no device"] == "there is no device"
