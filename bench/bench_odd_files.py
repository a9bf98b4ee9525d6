"""Puts odd things in the place of every file that a command reads or writes.

For each kind of file and each odd thing (a pipe, a device that never ends, a folder, a link to
itself, an unreadable file, an empty file, a sparse file of 10 GB, binary noise) one command runs,
in a process of its own without the rights of root. It has to end with a user's error, or with its
result if the file is not needed, within 5 seconds and 2 GiB, and must not change what was there.

Prints one JSON object: counts of the verdicts, and the verdict of each case. Exits with 1 if one is
bad. ``--only WORD`` runs the kinds with the word in their names.
"""

import argparse
import contextlib
import ctypes
import io
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 5.0
MEMORY_BYTES = 2 << 30
SPARSE_BYTES = 10 << 30
LOST = object()
"""Exit code of a command that was killed."""

# ---------------------------------------------------------------------- odd things


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket has at most 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE_BYTES)


def _unreadable(path: Path) -> None:
    path.write_bytes(b"{}")
    path.chmod(0)


ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
    "unreadable": _unreadable,
    "empty": lambda path: path.write_bytes(b""),
    "sparse": _sparse,
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 64),
    "socket": _socket,
    "absent": lambda path: None,
}

# ---------------------------------------------------------------- readers and writers


@dataclass(frozen=True)
class Kind:
    """A place for a file, and a command that uses it.

    Attributes
    ----------
    name : str
    command : str
        Words; ``{}`` is the file, ``{build}`` a build with a run, ``{home}`` the case's folder.
    file : str
        Path of the file in the case's folder.
    optional : bool
        Whether the command can do without the file, and may end with 0.
    prepare : callable or None
        Function that puts everything else that is needed into the case's folder.
    takes : str
        Odd thing that is as good as any other file there.
    leaves_out : tuple of str
        Odd things that the command can use, and takes its time for.
    """

    name: str
    command: str
    file: str
    optional: bool = False
    prepare: Callable[[Path], object] | None = None
    takes: str = ""
    leaves_out: tuple[str, ...] = ()

    def may_succeed(self, odd: str) -> bool:
        """Whether the command may end with 0."""
        return self.optional or odd == self.takes


PLAN = "--board u280 --array 8x8 --schedule gpipe --batch 1"
RUN = "run {build} --backend model --data random --steps 1 --no-validation"
INT8 = "build --board u280 --array 8x8 --batch 1 --mode infer -o {home}/new --int8"
RING = "--board u280 --array 4x4 --batch 8 --plan"
SCHEDULE = "schedule gpipe --stages 2 --micro-batches 2"


def _agent_files(folder: Path) -> None:
    """A cluster file with an agent, and the agent's certificate, key and token."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cases"))
    from agent_cases import TOKEN, made_keys

    made_keys(folder)
    token = folder / "token"
    token.touch(0o600)
    token.write_text(f"{TOKEN}\n")
    address = "address: {agent: 'localhost:4711', ca: agent.pem, token_file: token}"
    lines = ["format: 1", "name: c", "topology: chain", "devices:"]
    lines += [f"  - {{name: a, board: u280, {address}}}"]
    (folder / "cluster.yaml").write_text("\n".join(lines) + "\n")


def _of_agent(name: str, file: str, **options: str) -> Kind:
    """A kind of file of ``agent``, all of whose other files are good."""
    good = {"cluster": "cluster.yaml", "certificate": "agent.pem", "key": "agent.key"}
    words = {option: f"{{home}}/{path}" for option, path in good.items()} | options
    said = " ".join(f"--{option} {word}" for option, word in words.items())
    command = f"agent localhost:4711 --backend model {said}"
    return Kind(f"{name} of agent", command, file, prepare=_agent_files)


def _cluster_of_a_board(folder: Path) -> None:
    lines = ["format: 1", "name: c", "topology: chain", "devices:"]
    lines += ["  - {name: a, board: ./odd.yaml}"]
    (folder / "cluster.yaml").write_text("\n".join(lines) + "\n")


def _platform(folder: Path) -> None:
    links = "links: [{bytes_per_s: 1.0e+9, latency_s: 1.0e-6}]"
    (folder / "p.yaml").write_text(f"bytes_per_element: 4\nsamples: 10\n{links}\n")


def _profile(folder: Path) -> None:
    row = "1,1,1,1,1\n"
    columns = "forward_s,backward_input_s,backward_weight_s,output_bytes,weight_bytes"
    (folder / "p.csv").write_text(f"layer,{columns}\na,{row}b,{row}")


def _images(folder: Path) -> None:
    from PIL import Image

    for number in range(10):
        (folder / f"data/{number}").mkdir(parents=True)
        Image.new("L", (8, 8), number).save(folder / f"data/{number}/a.png")
    (folder / "data/3/a.png").unlink()


def _labels(folder: Path) -> None:
    import numpy as np

    (folder / "data").mkdir()
    np.save(folder / "data/labels.npy", np.zeros(10, np.int64))


def _external(folder: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    weight = onnx.TensorProto(
        name="w", dims=[4, 4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value="odd.bin")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (folder / "net.onnx").write_bytes(model.SerializeToString())


def _of_build(file: str, command: str, **more: Any) -> Kind:
    return Kind(f"build: {file}, {command.split()[0]}", command, f"b/{file}", **more)


BUILD_FILES = (
    *("manifest.json", "plan.json", "network.json", "cluster.json"),
    *("hardware/V", "hardware/JSON"),
    *("devices/0/device.json", "devices/0/program.bin", "devices/0/image.bin"),
    "devices",
)
RUN_FILES = (
    *("run", "run/model", "run/model/log.jsonl", "run/model/settings.json"),
    *("run/model/checkpoints", "run/model/checkpoints/CKPT"),
)
KINDS = (
    *(
        Kind(f"network {end}", "inspect {}", f"odd{end}")
        for end in (".onnx", ".csv", ".txt", ".pt2", ".json", "")
    ),
    Kind("network of plan", f"plan {{}} {PLAN}", "odd.onnx"),
    Kind("network of build", "build --network {} --board u280 -o {home}/new", "odd.onnx"),
    Kind("network of compare", "compare {} --board u280", "odd.csv"),
    Kind("network of bench step", "bench step --network {}", "odd.onnx"),
    Kind("profile .txt", "plan --profile {} --devices 2 --straight", "odd.txt"),
    Kind("profile .csv", "plan --profile {} --devices 2 --straight", "odd.csv"),
    Kind("network of profile", "profile {} --device cpu", "odd.onnx"),
    Kind("plan of run", "run {} --backend torch", "odd.json"),
    Kind("network of run", "run {build}/plan.json --backend torch --network {}", "odd.onnx"),
    Kind("schedule of plan", "plan lenet5 --board u280 --devices 2 --batch 2 --from-csv {}",
         "odd.csv"),
    Kind("schedule of schedule", "schedule --from-csv {}", "odd.csv"),
    Kind("strategy of plan", "plan lenet5 --board u280 --devices 2 --batch 2 --strategy {}",
         "odd.json"),
    Kind("strategy of build", "build --board u280 --devices 2 --strategy {} -o {home}/new",
         "odd.json"),
    Kind("network of explore", "explore {} --board kv260 --batch 2", "odd.onnx"),
    Kind("board of explore", "explore lenet5 --board {} --batch 2", "odd.yaml"),
    Kind("network of oracle", "oracle {} --board u280 --model paradl", "odd.onnx"),
    Kind("board of oracle", "oracle lenet5 --board {} --model paradl", "odd.yaml"),
    Kind("platform of oracle", "oracle lenet5 --board u280 --model paradl --platform {}",
         "odd.yaml"),
    Kind("profile of oracle", "oracle --model paradl --platform {home}/p.yaml --profile {}",
         "odd.csv", prepare=_platform),
    Kind("network of ring", f"ring lenet5 {{}} {RING}", "odd.onnx"),
    Kind("board of ring", "ring digits-cnn digits-cnn --board {} --plan", "odd.yaml"),
    Kind("cluster of ring", "ring digits-cnn digits-cnn --cluster {} --plan", "odd.yaml"),
    Kind("data of ring", f"ring digits-cnn digits-cnn {RING} --data {{}}", "odd.npz"),
    Kind("module", "inspect odd:network", "odd.py"),
    Kind("package", "inspect odd:network", "odd/__init__.py"),
    Kind("external data", "inspect {home}/net.onnx", "odd.bin", prepare=_external, takes="binary"),
    Kind("board", "boards {}", "odd.yaml"),
    Kind("board of cluster", "cluster --board {}", "odd.yaml"),
    Kind("board of plan", "plan lenet5 --board {}", "odd.yaml"),
    Kind("board of build", "build --board {} -o {home}/new", "odd.yaml"),
    Kind("board of compare", "compare lenet5 --board {}", "odd.yaml"),
    Kind("board of a cluster file", "cluster {home}/cluster.yaml", "odd.yaml",
         prepare=_cluster_of_a_board),
    Kind("cluster", "cluster {}", "odd.yaml"),
    Kind("cluster of plan", "plan lenet5 --cluster {}", "odd.yaml"),
    Kind("cluster of build", "build --cluster {} -o {home}/new", "odd.yaml"),
    Kind("cluster of compare", "compare lenet5 --cluster {}", "odd.yaml"),
    Kind("parameters of build", f"{INT8} digits --parameters {{}}", "odd.npz"),
    Kind("checkpoint of build", f"{INT8} digits --parameters {{}}", "odd.ckpt"),
    Kind("data of build", f"{INT8} {{}}", "odd.npz"),
    Kind("parameters .npz", f"{RUN} --parameters {{}}", "odd.npz"),
    Kind("parameters .ckpt", f"{RUN} --parameters {{}}", "odd.ckpt"),
    Kind("parameters .safetensors", f"{RUN} --parameters {{}}", "odd.safetensors"),
    Kind("parameters .pt", f"{RUN} --parameters {{}}", "odd.pt"),
    Kind("data .npz", "run {build} --backend model --data {}", "odd.npz"),
    Kind("data .txt", "run {build} --backend model --data {}", "odd.txt"),
    Kind("data folder", "run {build} --backend model --data {}", "odd"),
    Kind("data .npy", "run {build} --backend model --data {}", "odd.npy"),
    Kind("array of data", "run {build} --backend model --data {home}/data", "data/images.npy",
         prepare=_labels),
    Kind("class of images", "run {build} --backend model --data {home}/data", "data/10",
         prepare=_images, optional=True),
    Kind("image", "run {build} --backend model --data {home}/data", "data/3/a.png",
         prepare=_images),
    Kind("checkpoint", f"{RUN} --from {{}}", "odd.ckpt"),
    Kind("run of build", "build --board u280 --mode infer -o {home}/b --from {}", "odd"),
    Kind("build folder of run", "run {} --backend model", "odd"),
    Kind("build folder of report", "report {}", "odd"),
    Kind("run of export", "export {} -o {home}/w.npz", "odd"),
    Kind("network of export", "export {build} -o {home}/w.onnx --network {}", "odd.onnx"),
    Kind("output of export", "export {build} -o {}", "out.npz", optional=True),
    Kind("run of predict", "predict {}", "odd"),
    Kind("data of predict", "predict {build} --data {}", "odd.npz"),
    Kind("cluster of predict", "predict {build} --backend xdma --cluster {}", "odd.yaml"),
    Kind("output of predict", "predict {build} -o {}", "out.csv", optional=True),
    Kind("run of generate", "generate {} --tokens 1", "odd"),
    Kind("output of generate", "generate {build} --tokens 1 -o {}", "out.json"),
    Kind("build folder of bringup", "bringup {} --backend model", "odd"),
    Kind("cluster of bringup", "bringup {build} --backend xdma --cluster {}", "odd.yaml"),
    _of_agent("cluster", "odd.yaml", cluster="{}"),
    _of_agent("certificate", "odd.pem", certificate="{}"),
    _of_agent("key", "odd.key", key="{}"),
    _of_agent("token", "odd.token", **{"token-file": "{}"}),
    _of_agent("build folder", "odd", build="{}"),
    Kind("new token of agent", "agent --new-token {}", "out", optional=True),
    Kind("cluster of run", "run {build} --backend xdma --cluster {}", "odd.yaml"),
    *(_of_build(file, RUN) for file in BUILD_FILES),
    *(_of_build(file, "report {build}") for file in BUILD_FILES),
    *(_of_build(file, f"{RUN} --resume --steps 3", optional=True) for file in RUN_FILES),
    *(_of_build(file, RUN, optional=True) for file in RUN_FILES),
    *(_of_build(file, "report {build}", optional=True)
      for file in (*RUN_FILES, "run/measured.json", "run/report.html", "run/trace.json")),
    Kind("cache", "bench link --cycles 1000", "cache", leaves_out=("absent", "folder")),
    *(Kind(f"output --{name}", f"{SCHEDULE} --{name} {{}}", "out", optional=True)
      for name in ("svg", "html", "trace", "csv")),
    *(Kind(f"output of plan --{name}", f"plan lenet5 {PLAN} --{name} {{}}", "out", optional=True)
      for name in ("output", "html", "svg", "trace")),
    Kind("output of plan --profile", "plan --profile {home}/p.csv --devices 2 --straight -o {}",
         "out.json", prepare=_profile, optional=True),
    Kind("output of profile", "profile lenet5 --device cpu --samples 1 --repeats 1 -o {}",
         "out.csv", optional=True),
    # The device that does not exist ends the command before anything is simulated.
    Kind("output --waves", "run {build} --waves-device 9 --waves {}", "out.vcd"),
    Kind("output of report", "report {build} -o {}", "out", optional=True),
    Kind("output of bench", "bench cluster --rows 5 --trace {}", "out"),
    *(Kind(f"output of oracle {end}", "oracle lenet5 --board u280 --model paradl --plot {}",
           f"out{end}", optional=True)
      for end in (".svg", ".html")),
    *(Kind(f"output of explore {end}", "explore lenet5 --board kv260 --batch 2 --plot {}",
           f"out{end}", optional=True)
      for end in (".svg", ".html")),
    Kind("output of ring", "ring bert_base bert_base --board u280 -o {}", "out"),
    Kind("output of build", "build --output-loss no-output=mse --board u280 -o {}", "out"),
)  # fmt: skip
"""All kinds; those of ``bench cluster``, ``ring`` and the last ``build`` are refused afterwards."""

# ---------------------------------------------------------------------- a case


def give_up_rights() -> None:
    """Make this process and its children respect permissions, although they are root's."""
    libc = ctypes.CDLL(None, use_errno=True)
    for right in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
        libc.prctl(24, right, 0, 0, 0)  # PR_CAPBSET_DROP


def place(kind: Kind, odd: str, build: Path, folder: Path) -> tuple[list[str], Path]:
    """Set a case up; returns its command and the odd file."""
    if "{build}" in kind.command:
        shutil.copytree(build, folder / "b")
    if kind.prepare:
        kind.prepare(folder)
    name = kind.file.replace("CKPT", "step-00000002.ckpt")
    for ending, placeholder in ((".v", "V"), (".json", "JSON")):
        if name == f"b/hardware/{placeholder}":
            name = f"b/hardware/{next((folder / 'b/hardware').glob('*' + ending)).name}"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    ODD[odd](path)
    words = kind.command.format(path, build=folder / "b", home=folder).split()
    return words, path


def child(words: list[str], folder: Path) -> None:
    """Run a command in this process, and end the process."""
    from fpgapipe.host.cli.main import main

    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (8 * MEMORY_BYTES, 8 * MEMORY_BYTES))
    os.environ["FPGAPIPE_CACHE"] = str(folder / "cache")
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    code = 99
    try:
        code = main(words)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def run(words: list[str], folder: Path) -> tuple[object, float, int]:
    """Run a command in a process of its own; returns exit code, seconds, and bytes of memory."""
    begin = time.monotonic()
    pid = os.fork()
    if not pid:
        child(words, folder)
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        took_s = time.monotonic() - begin
        if done:
            return os.waitstatus_to_exitcode(status), took_s, usage.ru_maxrss << 10
        if usage_s(pid) > LIMIT_S or took_s > 12 * LIMIT_S:
            os.kill(pid, signal.SIGKILL)
            os.wait4(pid, 0)
            return LOST, took_s, 0
        time.sleep(0.005)


def usage_s(pid: int) -> float:
    """Processor time of a process, s; wall time would depend on other processes."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def verdict(kind: Kind, odd: str, build: Path) -> dict[str, Any]:
    """Run a case and judge it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        words, _ = place(kind, odd, build, folder)
        code, took_s, memory = run(words, folder)
        err = (folder / "stderr").read_text(errors="replace") if code is not LOST else ""
        what = "user error" if code == 2 else "done" if code == 0 else f"exit code {code}"
        if code is LOST:
            what = "BAD: does not end"
        elif "Traceback" in err or code not in (0, 2):
            what = "BAD: a defect"
        elif code == 0 and not kind.may_succeed(odd):
            what = "BAD: not refused"
        elif code == 2 and "rror: " not in err:
            what = "BAD: no reason"
        elif memory > MEMORY_BYTES:
            what = "BAD: too much memory"
        elif left := [each.name for each in folder.rglob("*.part")]:
            what = f"BAD: leaves {left[0]}"
        last = err.strip().splitlines()[-1].replace(scratch, "") if err.strip() else ""
        for each in folder.rglob("*"):
            with contextlib.suppress(OSError):
                if not each.is_symlink() and each.is_file():
                    each.chmod(0o600)
        return {"kind": kind.name, "odd": odd, "verdict": what, "seconds": round(took_s, 2),
                "said": last[:300]}  # fmt: skip


def make_build(folder: Path) -> Path:
    """Make a build with a run of two steps."""
    from fpgapipe.host.cli.main import main

    made = folder / "build"
    with contextlib.redirect_stdout(io.StringIO()):
        build = ["build", "--board", "u280", "--devices", "1", "--array", "4x4", "--batch", "4"]
        assert main([*build, "--micro-batches", "2", "-o", str(made)]) == 0
        run_of_it = RUN.format(build=made).replace("--steps 1", "--steps 2").split()
        assert main(run_of_it) == 0
        assert main(["report", str(made)]) == 0
    return made


def verdicts(only: str = "", odd_things: tuple[str, ...] = tuple(ODD)) -> Iterator[dict[str, Any]]:
    """Run all cases, or those of some kinds, and yield their verdicts."""
    with tempfile.TemporaryDirectory() as scratch:
        build = make_build(Path(scratch))
        for kind in KINDS:
            for odd in odd_things:
                if only in kind.name and odd not in kind.leaves_out:
                    yield verdict(kind, odd, build)


def main() -> int:
    """Print the verdicts."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork would wait for threads of the model
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--with-rights", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.with_rights:
        give_up_rights()
        command = [sys.executable, *sys.argv, "--with-rights"]
        return subprocess.run(command, check=False).returncode
    import onnx
    from PIL import Image

    from fpgapipe.host.runtime import runtime

    del onnx, Image, runtime  # imported once, not in every process
    found = []
    for each in verdicts(given.only):
        found.append(each)
        if each["verdict"].startswith("BAD"):
            print(json.dumps(each), file=sys.stderr, flush=True)
    counted = Counter(each["verdict"] for each in found)
    slowest = max((each["seconds"] for each in found), default=0.0)
    print(
        json.dumps(
            {"kinds": len(KINDS), "odd": len(ODD), "cases": len(found), "slowest_s": slowest,
             "verdicts": dict(counted.most_common()), "each": found},
            indent=1,
        )
    )  # fmt: skip
    return any(name.startswith("BAD") for name in counted)


if __name__ == "__main__":
    sys.exit(main())
