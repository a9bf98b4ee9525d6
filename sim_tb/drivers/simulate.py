"""Runs cocotb testbenches on compiled designs; only the results file decides whether they passed.

The simulator runs in its own process, inside a fresh Python (`embedded`). It reads no settings from
the user's shell, so that equal designs give equal tests.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fpgapipe.errors import ToolError, UserError
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.icarus import compile_for_icarus
from fpgapipe.sim_tb.native.verilate import build, emptied
from fpgapipe.tools import last_lines, run_tool

SIMULATORS = ("verilator", "icarus")
"""Simulators that run testbenches; the first one is the default."""

WAVES = "dump.vcd"
"""File name of the waves in the work folder."""

# Variables of the user's shell that would change cocotb's behaviour.
_TEST_VARIABLES = re.compile(
    r"COCOTB_(TESTCASE|TEST_FILTER|LIST_TESTS|MAX_FAILURES|RANDOM_TEST_ORDER|RESULTS_\w+|ATTACH"
    r"|USER_COVERAGE|HOOKS|PREVIEW|TOPLEVEL)|COVERAGE|RANDOM_SEED|MODULE|TESTCASE|TOPLEVEL|GUI"
    r"|GPI_EXTRA|PYGPI_USERS|PYTHONHOME|PYTHONSTARTUP"
)


class SimulationError(ToolError):
    """Tests of a testbench failed.

    Parameters
    ----------
    testbench : str
        The testbench's module.
    failures : mapping of str to str
        Names of the failed tests, each with the first line of its reason.
    num_tests : int
        Number of tests that ran.
    seed : int
        Seed that reproduces the stimulus.
    log : Path
        File with the simulator's output.
    """

    def __init__(
        self, testbench: str, failures: Mapping[str, str], num_tests: int, seed: int, log: Path
    ) -> None:
        self.failures = dict(failures)
        self.seed = seed
        names = ", ".join(failures)
        reasons = "".join(f"\n{name}: {reason}" for name, reason in failures.items() if reason)
        super().__init__(
            f"{len(failures)} of {num_tests} tests of {testbench} failed: {names}; "
            f"the same stimulus again: COCOTB_RANDOM_SEED={seed}{reasons}",
            last_lines(log),
            log,
        )


@dataclass(frozen=True)
class Simulation:
    """Result of a testbench that passed.

    Attributes
    ----------
    tests : tuple of str
        Names of the tests that ran.
    seed : int
        Seed of the random stimulus.
    simulated_ns : float
        Simulated time of all tests, in nanoseconds.
    wall_s : float
        Real time of all tests, in seconds, without the start of the simulator.
    log : Path
        File with the simulator's output.
    waves : Path or None
        File with the waves, if they were requested.
    """

    tests: tuple[str, ...]
    seed: int
    simulated_ns: float
    wall_s: float
    log: Path
    waves: Path | None


def simulate(
    component: Any,
    tb: str,
    work: Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    waves: bool = False,
    threads: int = 1,
    flags: Sequence[str] = (),
    seed: int | None = None,
    timeout_s: float = 600,
    simulator: str | None = None,
) -> Simulation:
    """Run a testbench on gateware.

    Parameters
    ----------
    component : amaranth.lib.wiring.Component
        The gateware.
    tb, work, waves, threads, flags, seed, timeout_s, simulator
        See `simulate_verilog`.
    parameters : mapping, optional
        Parameters that the testbench reads by
        :func:`fpgapipe.sim_tb.drivers.stream.parameters`; by default the fields of
        ``component.spec``.

    Returns
    -------
    Simulation

    Raises
    ------
    SimulationError, ToolError, UserError
        See `simulate_verilog`.
    """
    if parameters is None:
        spec = getattr(component, "spec", None)
        parameters = dataclasses.asdict(spec) if dataclasses.is_dataclass(spec) else {}  # type: ignore[arg-type]
    return simulate_verilog(
        verilog_of(component),
        tb,
        work,
        parameters=parameters,
        waves=waves,
        threads=threads,
        flags=flags,
        seed=seed,
        timeout_s=timeout_s,
        simulator=simulator,
    )


def simulate_verilog(
    verilog: str,
    tb: str,
    work: Path,
    *,
    top: str = "top",
    parameters: Mapping[str, Any] | None = None,
    waves: bool = False,
    threads: int = 1,
    flags: Sequence[str] = (),
    seed: int | None = None,
    timeout_s: float = 600,
    simulator: str | None = None,
) -> Simulation:
    """Run a testbench on Verilog.

    Parameters
    ----------
    verilog, top, threads, flags
        See `build`.
    tb : str
        Module with the cocotb tests: the last name of a module in fpgapipe.sim_tb.testbenches, or
        the full name of any other module. It is imported by the same interpreter with the same
        ``sys.path``.
    work : Path
        Folder for log, results and waves; it is created if it does not exist.
    parameters : mapping, optional
        Parameters that the testbench reads by
        :func:`fpgapipe.sim_tb.drivers.stream.parameters`.
    waves : bool
        Whether to write ``dump.vcd``.
    seed : int, optional
        Seed of the random stimulus; by default ``$COCOTB_RANDOM_SEED``, or a random one if that is
        not set.
    timeout_s : float
        Seconds after which the simulator is ended.
    simulator : str, optional
        One of `SIMULATORS`; by default ``$FPGAPIPE_SIMULATOR``, or Verilator if that is not set.
        `threads` and `flags` have an effect with Verilator only.

    Returns
    -------
    Simulation

    Raises
    ------
    SimulationError
        If a test failed.
    ToolError
        If the simulator crashed, ran out of time, or ran no test at all.
    UserError
        If there is no such testbench or simulator, or if `build` raises it.
    """
    testbench = _testbench(tb)
    simulator = _simulator(simulator)
    if seed is None:
        seed = _seed_of_shell()
    work = Path(work).absolute()
    work.mkdir(parents=True, exist_ok=True)
    log, results = work / f"{tb}.log", work / f"{tb}.results.xml"
    for old in (log, results, work / WAVES):
        old.unlink(missing_ok=True)
    variables = (
        emptied(_TEST_VARIABLES)
        | _cocotb_environment()
        | {
            "COCOTB_TOPLEVEL": top,
            "COCOTB_TEST_MODULES": testbench,
            "COCOTB_RANDOM_SEED": str(seed),
            "COCOTB_RESULTS_FILE": str(results),
            "FPGAPIPE_PARAMETERS": json.dumps(dict(parameters or {})),
            "FPGAPIPE_INPUTS": "",
        }
    )
    if simulator == "icarus":
        command, more = compile_for_icarus(
            verilog, top, work, log, waves=work / WAVES if waves else None
        )
        variables |= more
    else:
        library = build(verilog, top, waves=waves, threads=threads, flags=flags)
        # -P keeps files in the work folder from being imported as modules.
        run = [sys.executable, "-P", "-X", "faulthandler", "-m", "fpgapipe.sim_tb.drivers.embedded"]
        command = [*run, library]
        if waves:
            command += ["--trace", "--trace-file", work / WAVES]
        # As in cocotb's runner: Verilator applies values written from Python at the right moment.
        variables["COCOTB_TRUST_INERTIAL_WRITES"] = "1"
    failure: ToolError | None = None
    try:
        run_tool(command, log=log, cwd=work, env=variables, timeout_s=timeout_s, name="simulator")
    except ToolError as error:
        # Failed tests may be the reason, and their messages say more.
        failure = error
    simulation = _read_results(results, testbench, seed, log, failure)
    if failure:
        raise failure
    return dataclasses.replace(simulation, waves=work / WAVES if waves else None)


def _testbench(tb: str) -> str:
    """Full name of a testbench's module."""
    for name in (f"fpgapipe.sim_tb.testbenches.{tb}", tb):
        with contextlib.suppress(ModuleNotFoundError, ValueError):
            if importlib.util.find_spec(name):
                return name
    raise UserError(
        f"there is no testbench module {tb!r}, neither in fpgapipe.sim_tb.testbenches nor on "
        "Python's path"
    )


def _simulator(name: str | None) -> str:
    found = name or os.environ.get("FPGAPIPE_SIMULATOR") or SIMULATORS[0]
    if found not in SIMULATORS:
        raise UserError(f"the simulator must be {' or '.join(SIMULATORS)}, not {found!r}")
    return found


def _seed_of_shell() -> int:
    text = os.environ.get("COCOTB_RANDOM_SEED", "")
    if not text:
        return random.SystemRandom().randrange(1 << 32)
    if not text.isdecimal():
        raise UserError(f"COCOTB_RANDOM_SEED must be a whole number, not {text!r}")
    return int(text)


def _cocotb_environment() -> dict[str, str]:
    """Environment that cocotb documents for custom flows, with this interpreter and its path."""
    from cocotb_tools import config

    libraries = [str(config.libs_dir), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        "GPI_USERS": config.pygpi_entry_point(),
        "PYGPI_PYTHON_BIN": sys.executable,
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "TOPLEVEL_LANG": "verilog",
    }


def _read_results(
    results: Path, testbench: str, seed: int, log: Path, failure: ToolError | None
) -> Simulation:
    """Read the results that cocotb wrote; raise if a test failed or none ran."""
    try:
        cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        if failure:
            raise failure from None
        raise ToolError(
            f"the simulator left no results of {testbench}", last_lines(log), log
        ) from None
    failures: dict[str, str] = {}
    for case in cases:
        for verdict in (*case.findall("failure"), *case.findall("error")):
            message = verdict.get("error_msg") or verdict.get("message") or ""
            failures[case.get("name", "?")] = message.partition("\n")[0]
    if failures:
        raise SimulationError(testbench, failures, len(cases), seed, log)
    ran = [case for case in cases if case.find("skipped") is None]
    if not ran:
        raise ToolError(f"{testbench} has no tests that ran", last_lines(log), log)
    return Simulation(
        tests=tuple(case.get("name", "?") for case in ran),
        seed=seed,
        simulated_ns=sum(
            float(item.get("value", 0))
            for case in ran
            for item in case.iter("property")
            if item.get("name") == "sim_time_duration"
        ),
        wall_s=sum(float(case.get("time", 0)) for case in ran),
        log=log,
        waves=None,
    )
