"""Puts what a terminal obeys into names of strangers, and looks whether it reaches a terminal.

Twelve sources: names of layers of ONNX models and of profiles, of networks, boards, devices and
links, keys of files, paths, options, environment variables, and packages. Six outputs of each: on a
terminal, with ``-v``, with ``-q``, into a pipe, a fault behind it, and the error of a plan. The
sequences set the title, clear the screen, move the cursor, write backwards, and the like; none of
them may be in what comes out, in which only rich's own sequences are.

Prints one JSON object, and exits with 1 if one got through, a command was neither done nor
refused, or a
source was seen in no output.
"""

import argparse
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cases"))
from plugin_cases import install

CLI = (sys.executable, "-m", "fpgapipe.host.cli.main")

EVIL = "x\x1b]0;owned\x07\x1b[2J\x1b[1A\x9b31m\u202ey\x08\r"
GOT_THROUGH = re.compile("\x1b]|\x07|\x1b\\[2J\x1b\\[1A|\x9b|\u202e|\x08|y\r(?!\n)")
"""Sequences that only the names have: those of rich are colours, and moves of its own."""

SEEN = re.compile(r"\\x1b\]0;owned|\\u001b\]0;owned|\\x1b\[2J|owned")

PROFILE = "name,forward_s,backward_s,activation_bytes,parameter_bytes\n"


def model(path: Path, layer: str, name: str = "net") -> None:
    """Write an ONNX model of one layer."""
    weights = helper.make_tensor(f"{layer}.w", TensorProto.FLOAT, [4, 3], [0.0] * 12)
    node = helper.make_node("Gemm", ["input", f"{layer}.w"], ["out"], name=layer, transB=1)
    ends = [
        helper.make_tensor_value_info(each, TensorProto.FLOAT, [1, size])
        for each, size in (("input", 3), ("out", 4))
    ]
    graph = helper.make_graph([node], name, ends[:1], ends[1:], [weights])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def cluster(name: str, key: str = "name") -> str:
    """Text of a cluster file of one device."""
    device = {key: name, "board": "u280"}
    return json.dumps({"format": 1, "name": "lab", "devices": [device], "topology": "chain"})


def sources(folder: Path) -> dict[str, str]:
    """Write what has the names; returns a command for each source, whose words are by `|`."""
    model(folder / "layer.onnx", EVIL)
    model(folder / "net.onnx", "fc", EVIL)
    model(folder / f"{EVIL}.onnx", "fc")
    (folder / "profile.csv").write_text(f"Layer name,M,N,K\n{EVIL.rstrip()},8,8,8\n")
    (folder / "profile.txt").write_text(
        f"node{EVIL.rstrip()} -- Linear -- forward_compute_time=1, backward_compute_time=2, "
        "activation_size=4, parameter_size=8\n"
    )
    (folder / "device.yaml").write_text(cluster(EVIL))
    (folder / "board.yaml").write_text(json.dumps({"format": 1, "name": EVIL}))
    (folder / "key.yaml").write_text(cluster("front", EVIL))
    (folder / "strategy.yaml").write_text(json.dumps({"degrees": {EVIL: {"sample": 2}}}))
    (folder / "order.csv").write_text(f"0F0,{EVIL.rstrip()}\n")
    entries = {"fpgapipe.operators": {"odd": "fpx_escapes.mod"}}
    text = f"raise RuntimeError({EVIL!r})"
    install(folder / "site", "fpx_escapes", {"mod.py": text}, entries)
    to_plan = "--devices|1|--batch|8|--array|4x4"
    return {
        "layer of an ONNX model": "inspect|layer.onnx",
        "name of an ONNX model": f"plan|net.onnx|--board|u280|{to_plan}",
        "path of a network": f"inspect|{EVIL}.onnx",
        "layer of a table": "inspect|profile.csv",
        "node of a profile": "inspect|profile.txt",
        "device of a cluster file": "cluster|device.yaml",
        "board of a board file": f"boards|{folder}/board.yaml",
        "key of a cluster file": "cluster|key.yaml",
        "layer of a strategy": f"plan|lenet5|--board|u280|{to_plan}|--strategy|strategy.yaml",
        "task of an order": "schedule|--from-csv|order.csv",
        "value of an option": f"plan|lenet5|--board|{EVIL}|{to_plan}",
        "exception of a package": f"plan|lenet5|--board|u280|{to_plan}",
    }


OUTPUTS = {
    "terminal": (True, ()),
    "terminal, all lines": (True, ("-v",)),
    "terminal, results alone": (True, ("-q",)),
    "pipe": (False, ()),
    "terminal, a fault behind": (True, (f"--{EVIL}",)),
    "pipe, a fault behind": (False, (f"--{EVIL}",)),
}
"""Whether standard output and error are a terminal, and what is added to the command."""


def run(words: list[str], folder: Path, is_terminal: bool) -> tuple[int, str]:
    """Run a command; returns its exit code and all that it wrote."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    environment["PYTHONPATH"] = f"{folder / 'site'}:{os.environ.get('PYTHONPATH', '')}"
    if not is_terminal:
        done = subprocess.run(
            [*CLI, *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
        return done.returncode, done.stdout.decode(errors="replace")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*CLI, *words], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        drawn = b""
        while True:
            try:
                drawn += os.read(ours, 1 << 16)
            except OSError:  # the terminal has no writer any more
                break
    os.close(ours)
    return process.returncode, drawn.decode(errors="replace")


def main() -> int:
    """Try all sources with all outputs, and print what came of it."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    through, crashes, unseen = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for source, command in sources(folder).items():
            is_seen = False
            for output, (is_terminal, more) in OUTPUTS.items():
                code, text = run([*command.split("|"), *more], folder, is_terminal)
                where = f"{source}, {output}"
                if GOT_THROUGH.search(text):
                    through.append(f"{where}: {GOT_THROUGH.findall(text)[:3]!r}")
                if code not in (0, 2):
                    crashes.append(f"{where}: {text[-300:]!r}")
                is_seen |= bool(SEEN.search(text)) and more[:1] != (f"--{EVIL}",)
            if not is_seen:
                unseen.append(f"{source}: {text[-200:]!r}")
            print(f"{source}: {len(through)} got through", file=sys.stderr, flush=True)
    result = {
        "cases": 12 * len(OUTPUTS),
        "got through": through,
        "neither done nor refused": crashes,
        "sources seen in no output": unseen,
    }
    print(json.dumps(result, indent=2))
    return bool(through or crashes or unseen)


if __name__ == "__main__":
    sys.exit(main())
