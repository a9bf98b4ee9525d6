"""Runs of several processes: signals, one that dies, and hosts that are network namespaces."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launchers import is_open_mpi, mpiexec, open_mpi
from network_hosts import network_hosts
from run_cases import verilog_build

from fpgapipe.host.backends import ranks

CLI = [sys.executable, "-m", "fpgapipe.host.cli.main"]
BEGIN = ("--data", "random", "--no-validation", "--seed", "3")
STEPS = 40

pytestmark = pytest.mark.sim  # a core with vector engine and link


@pytest.fixture(autouse=True, scope="module")
def answers():
    """Commands keep the Verilog that they have made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FPGAPIPE_ANSWERS", raising=False)
        yield


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A small network on two small cores with their Verilog."""
    folder = tmp_path_factory.mktemp("ranks") / "b"
    verilog_build(folder)
    return folder


@pytest.fixture(scope="module")
def whole(built):
    """Summary and last checkpoint of a run of one process."""
    mpiexec(2)  # skips if there is no MPI
    return finished([*CLI, "run", built, *BEGIN, "--steps", STEPS, "--json"]), last(built)


def last(built):
    return (built / f"run/sim/checkpoints/step-{STEPS:08}.ckpt").read_bytes()


def finished(command, **options):
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name: found[name] for name in ("loss", "cycles", "steps")}


def steps_of(built):
    path = built / "run/sim/log.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def begun(command, built):
    """Start a run and wait until it has done a few steps of many."""
    shutil.rmtree(built / "run", ignore_errors=True)
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    last_s = time.monotonic() + 300
    while steps_of(built) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < last_s
        time.sleep(0.01)
    return process


def run_of(built, *options, launched=()):
    return [*mpiexec(2, *launched), *CLI, "run", built, *options]


def test_several_processes_leave_the_same_bits(built, whole):
    """The loss, the cycles and the last checkpoint are those of one process."""
    command = run_of(built, *BEGIN, "--steps", STEPS, "--json", "--check")
    assert (finished(command), last(built)) == whole
    command = [*mpiexec(3), *CLI, "run", built, *BEGIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode
    assert "error: 3 processes for 2 devices: at most 2 can share them" in done.stderr


def test_open_mpi_beside_another_leaves_the_same_bits(built, whole):
    mpiexec(2)  # skips without mpi4py
    command = [*open_mpi(2), *CLI, "run", built, *BEGIN, "--steps", STEPS, "--json"]
    found = finished(command, env={**os.environ, "MPI4PY_MPIABI": "openmpi"})
    assert (found, last(built)) == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=str)
def test_a_signal_to_the_launcher_stops_all_behind_a_checkpoint(number, built, whole):
    """--resume then ends with the bits and cycles of a run that nothing stopped."""
    if is_open_mpi() and number != signal.SIGUSR1:
        pytest.skip("this launcher kills all processes")
    with begun(run_of(built, *BEGIN, "--steps", STEPS, "--checkpoint-every", STEPS), built) as run:
        run.send_signal(number)
        said, _ = run.communicate(timeout=60)
    assert run.returncode == 128 + number, said
    kept = re.search(r"step (\d+) is kept; --resume goes on from there", said)
    assert 3 <= int(kept[1]) < STEPS
    again = run_of(built, "--resume", "--json")
    assert (finished(again), last(built)) == whole


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_ends_all(rank, built, whole):
    """The launcher names its PID, which the run has named; one process goes on by --resume."""
    options = (*BEGIN, "--steps", STEPS, "--checkpoint-every", 2)
    with begun(run_of(built, *options), built) as run:
        dead = next(int(path.name) for path in Path("/proc").iterdir() if is_rank(path, rank))
        os.kill(dead, signal.SIGKILL)
        said, _ = run.communicate(timeout=60)
    assert run.returncode, said
    assert re.search(rf"process {rank} \(PID {dead} on \S+\) simulates device {rank}\n", said), said
    # The launcher of Open MPI 4 names the rank, and 0 for the PID.
    named = rf"PID:? {dead}\b|process rank {rank} with PID 0 "
    assert re.search(named, said.split("simulates device 1\n")[1])
    assert newest(built) in range(2, STEPS)
    assert (finished([*CLI, "run", built, "--resume", "--json"]), last(built)) == whole


@pytest.mark.parametrize(("module", "waits"), [("mpi4py.MPI", True), ("builtins", False)])
def test_an_error_of_mpi_waits_for_the_launcher(module, waits, monkeypatch):
    """The launcher knows which process died; the error of one that waited for it does not."""
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    ranks.let_launcher_end(type("Exception", (RuntimeError,), {"__module__": module})())
    assert slept == [ranks.LAUNCHER_S] * waits


def newest(built):
    found = [int(path.stem[5:]) for path in (built / "run/sim/checkpoints").glob("step-*.ckpt")]
    return max(found)


def is_rank(folder, rank):
    """Whether a folder of /proc is that of a process of this rank."""
    try:
        values = (folder / "environ").read_bytes().split(b"\0")
        is_python = (folder / "exe").readlink() == Path(sys.executable).resolve()
    except OSError:
        return False
    names = (b"PMI_RANK=%d", b"OMPI_COMM_WORLD_RANK=%d")
    return is_python and any(name % rank in values for name in names)


def test_several_hosts_leave_the_same_bits(built, whole, tmp_path):
    """A process on each of two hosts, whose beats go through the network between them."""
    if is_open_mpi():
        pytest.skip("the launcher's options are those of MPICH")
    # Both are one machine, on which UCX would use shared memory.
    environment = {**os.environ, "UCX_TLS": "tcp,self"}
    with network_hosts() as hosts:
        both = [hosts.address(number) for number in (1, 2)]
        options = ["-launcher", "ssh", "-launcher-exec", str(hosts.launcher(tmp_path))]
        options += ["-localhost", both[0], "-hosts", ",".join(both), "-ppn", "1"]
        command = run_of(built, *BEGIN, "--steps", STEPS, "--json", "--check", launched=options)
        assert (finished([*hosts.on(1), *command], env=environment), last(built)) == whole
        assert hosts.received_bytes() > 10_000 * STEPS
