"""Jobs that this process does, that others do, and that ranks of MPI do."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
from launchers import mpiexec

import fpgapipe
from fpgapipe import jobs as shared_jobs
from fpgapipe.errors import FileError, ToolError, UserError
from fpgapipe.host.make.networks import loader
from fpgapipe.jobs import local_processes, other_processors, results, sharing
from fpgapipe.lowering.units.network_units import Refusal, RefusedNetwork

CLI = [sys.executable, "-m", "fpgapipe.host.cli.main"]


def process_of(number):
    time.sleep(0.1)
    return number, os.getpid(), [each for each, _ in results(nested, [(number,), (0,)])]


def nested(number):
    return number, os.getpid()


def root(number):
    if number < 0:
        raise FileError("a.yaml", [f"line 1: {number} has no root"])
    return number**0.5


def test_results_stand_in_the_order_of_the_jobs():
    """Others begin with the first job and this process with the last; each is done once."""
    jobs = [(number,) for number in range(9)]
    steps = []
    with sharing(partial(local_processes, 2)):
        found = results(process_of, jobs, lambda *step: steps.append(step))
    assert [number for number, _, _ in found] == list(range(9))
    assert [inner for _, _, inner in found] == [[number, 0] for number in range(9)]
    processes = [process for _, process, _ in found]
    assert processes[-1] == os.getpid()
    assert processes[0] != os.getpid()
    assert steps[-1] == (9, 9)
    assert steps == sorted(steps)


@pytest.mark.parametrize("count", [0, 2])
def test_the_error_is_that_of_the_first_job_in_order(count):
    """Also where another one has failed before it, on this process."""
    jobs = [(4,), (-1,), (9,), (-2,), (-3,)]

    @contextmanager
    def threads():
        with ThreadPoolExecutor(count) as pool:
            yield pool

    with (
        sharing(threads) if count else nullcontext(),
        pytest.raises(FileError, match=r"^a\.yaml: line 1: -1 has no root$"),
    ):
        results(root, jobs)


@pytest.mark.parametrize("count", [0, 2])
def test_results_are_kept_when_the_user_ends_the_search(count):
    """Those from the first one on, without a gap."""

    def job(number):
        if number == 3:
            time.sleep(0.2)
            raise KeyboardInterrupt
        return number

    @contextmanager
    def threads():
        with ThreadPoolExecutor(count) as pool:
            yield pool

    kept = []
    with sharing(threads) if count else nullcontext(), pytest.raises(KeyboardInterrupt):
        results(job, [(number,) for number in range(6)], kept=kept)
    assert kept == [0, 1, 2]


@pytest.mark.parametrize(
    ("told", "are_long", "others"), [("2", True, 1), ("2", False, 0), ("1", True, 0)]
)
def test_processes_start_for_what_takes_long(monkeypatch, told, are_long, others):
    monkeypatch.setenv("FPGAPIPE_JOBS", told)
    with other_processors():
        found = results(nested, [(number,) for number in range(3)], are_long=are_long)
    assert [number for number, _ in found] == [0, 1, 2]
    assert len({process for _, process in found} - {os.getpid()}) == others


@pytest.mark.parametrize("told", ["0", "-1", "2.5", "many", "\u00b2"])
def test_a_number_of_processes_that_is_none_is_refused(monkeypatch, told):
    monkeypatch.setenv("FPGAPIPE_JOBS", told)
    says = r"^FPGAPIPE_JOBS must be a number of processes from 1"
    with pytest.raises(UserError, match=says), other_processors():
        pass


def test_formulas_start_no_processes(monkeypatch):
    """They take milliseconds, and a process most of a second."""
    monkeypatch.setenv("FPGAPIPE_JOBS", "2")
    monkeypatch.setattr(shared_jobs, "local_processes", None)  # whoever calls it fails
    with other_processors():
        found = fpgapipe.oracle("lenet5", (2, 4), board="u280", model="paradl")
    assert found.found


def dies_elsewhere(number, own):
    if os.getpid() != own:
        time.sleep(0.1)  # this process has taken jobs by then that were for the other one
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return number


def test_jobs_of_a_process_that_died_are_done_here():
    with sharing(partial(local_processes, 2)):
        found = results(dies_elsewhere, [(number, os.getpid()) for number in range(6)])
    assert found == list(range(6))


def test_no_process_is_left_behind_by_one_that_died():
    """Also where jobs were taken from it; pytest fails a test whose threads end by an error."""
    others = set(multiprocessing.active_children())
    with sharing(partial(local_processes, 2)):
        results(dies_elsewhere, [(number, os.getpid()) for number in range(40)])
    assert set(multiprocessing.active_children()) == others


LONG_JOBS = """
import os, signal, sys, time
from functools import partial
from fpgapipe.jobs import local_processes, results, sharing

def job(number):
    print(os.getpid(), flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        if "deaf" not in sys.argv or __name__ == "__main__":
            raise
        time.sleep(60)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    with sharing(partial(local_processes, 2)):
        results(job, [(number,) for number in range(6)])
"""


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGINT, ()), (signal.SIGINT, ("deaf",)), (signal.SIGKILL, ())]
)
def test_processes_end_with_the_one_that_started_them(tmp_path, number, words):
    """At once, and without a word, though signals of a terminal reach all of them."""
    path = tmp_path / "long_jobs.py"
    path.write_text(LONG_JOBS)
    command = [sys.executable, str(path), *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        started = [int(process.stdout.readline()) for _ in range(3)]
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(20)
        assert process.stdout.read() == ""  # ends when no process has it any more
        assert process.stderr.read().count("Traceback") == (number == signal.SIGINT)
    assert process.pid in started


def test_what_was_not_begun_is_left_out_after_an_error():
    begun = []
    last_has_begun = threading.Event()

    def job(number):
        begun.append(number)
        if number == 19:
            last_has_begun.set()
            time.sleep(0.2)
        elif number == 0:
            last_has_begun.wait(10)
            raise UserError("no")
        else:
            time.sleep(0.1)

    @contextmanager
    def one():
        with ThreadPoolExecutor(1) as pool:
            yield pool

    with sharing(one), pytest.raises(UserError, match=r"^no$"):
        results(job, [(number,) for number in range(20)])
    assert {0, 19} <= set(begun)
    assert 18 not in begun


def test_errors_travel_whole():
    graph = loader("digits-cnn")(2)
    for error in (
        FileError("a.yaml", ["line 1: no"]),
        ToolError("it failed", ["the end"], "a.log"),
        RefusedNetwork(graph, [Refusal("conv1", "conv", "a reason")]),
        UserError("no"),
    ):
        error.add_note("on process 1")
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))
        assert {**vars(copy)} == {**vars(error)}


def test_copies_of_a_loader_load_once():
    load = loader("digits-cnn")
    first, second = (pickle.loads(pickle.dumps(load)) for _ in range(2))
    assert first == load
    assert first(8) is second(8)
    assert loader("digits-cnn") != load


def ranks(size, *arguments, **options):
    command = [*mpiexec(size), *CLI, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, **options
    )


COMMANDS = {
    "compare": "compare lenet5 --board u280 --devices 3 --batch 24 --json",
    "oracle": "oracle digits-cnn --board u280 --array 8x8 --devices 1,2,4 --batch-per-device 8",
    "formulas": "oracle lenet5 --board u280 --model paradl --devices 2,4",
    "plan": "plan lenet5 --board u280 --devices 3 --batch 24 --json",
    "shards": "plan digits-cnn --board u280 --devices 2 --strategy data --batch 16 --json",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_output_does_not_depend_on_the_number_of_processes(name, tmp_path):
    environment = {**os.environ, "FPGAPIPE_ANSWERS": "0"}
    arguments = COMMANDS[name].split()
    alone = subprocess.run(
        [*CLI, *arguments], capture_output=True, text=True, env=environment, check=True
    )
    for size in (2, 3):
        found = ranks(size, *arguments, env=environment)
        assert found.returncode == 0, found.stderr
        assert found.stdout == alone.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        "compare digits-cnn --board u280 --devices 2 --batch 8 --json",
        "plan digits-cnn --board u280 --devices 2 --batch 8 --strategy auto --json",
    ],
)
def test_output_does_not_depend_on_the_number_of_processors(arguments):
    """But for the seconds that a search took."""
    found = []
    for count in ("1", "2"):
        environment = {**os.environ, "FPGAPIPE_ANSWERS": "0", "FPGAPIPE_JOBS": count}
        command = [*CLI, *arguments.split()]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        found.append([line for line in done.stdout.splitlines() if "search_s" not in line])
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_build_of_several_processes(tmp_path):
    """Networks whose loader does not travel, since parts of it are frozen."""
    plans = []
    for size, folder in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        options = "--board u280 --devices 2 --batch 8 --freeze conv1.* --schedule auto"
        done = ranks(size, "build", *options.split(), "-o", folder)
        assert done.returncode == 0, done.stderr
        plans.append((folder / "plan.json").read_text())
    assert plans[0] == plans[1]


def test_errors_are_said_once():
    for arguments, says in (
        (("compare",), "Missing argument 'NETWORK'"),
        (("compare", "nothing", "--board", "u280", "--devices", "2"), "error: "),
    ):
        found = ranks(3, *arguments)
        assert found.returncode
        assert found.stderr.count(says) == 1
    found = ranks(3, "boards")
    assert found.returncode == 0
    assert found.stdout.count("u280 ") == 1


PROGRAM = """
import os, signal, subprocess, sys, time
from fpgapipe.host.backends import ranks
from fpgapipe.host.cli import main
from fpgapipe.jobs import results

from mpi4py import MPI
world = MPI.COMM_WORLD

def job(number, fault):
    if world.rank != 1:
        time.sleep(0.2)
        return number
    if fault == "busy":
        launcher = os.getppid()
        os.kill(launcher, signal.SIGSTOP)
        subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {launcher}"])
    if fault in ("busy", "defect"):
        raise ValueError("a job's own fault")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print("begun", os.getppid(), flush=True)
    time.sleep(60)

def command(argv, come):
    results(job, [(number, sys.argv[1]) for number in range(4)])
    return 0

main.cli.main = lambda **given: command(None, ())
sys.exit(main.main([]))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


DEFECT = ("ValueError: a job's own fault", "on process 1 of 3, host ")


@pytest.mark.parametrize(
    ("fault", "says"), [("defect", DEFECT), ("busy", DEFECT), ("kill", ("9",))]
)
def test_a_process_that_fails_is_named(program, fault, says):
    """Also if the launcher is busy when the process ends all others."""
    command = [*mpiexec(3), sys.executable, program, fault]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert time.monotonic() - begin < 30
    for each in says:
        assert each in done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_an_interrupt_ends_all_jobs(program, number):
    """Also those that take longer."""
    with subprocess.Popen(
        [*mpiexec(3), sys.executable, program, "sleep"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launched:
        assert launched.stdout
        assert launched.stdout.readline().startswith("begun")
        begin = time.monotonic()
        launched.send_signal(number)
        _, errors = launched.communicate(timeout=50)
        assert time.monotonic() - begin < 20
    assert launched.returncode
    assert "Traceback" not in errors
