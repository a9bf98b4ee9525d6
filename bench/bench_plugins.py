"""Installs broken packages and looks whether fpgapipe names them and does all else.

Each package offers one thing in one of seven groups of entry points: its import raises an
exception, ends the process, or raises what is no `Exception`; what it offers is a number; it takes
a name that there is already; or what it offers fails, or returns nonsense, when it is used. With
each, commands that do not ask for it by its name have to do what they do without it, and one that
does has to be refused with exit code 2. Where a package is met, a message has to name it.

Prints one JSON object, and exits with 1 if there is a fault.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cases"))
from plugin_cases import install

CLI = (sys.executable, "-m", "fpgapipe.host.cli.main")
LIMIT_S = 120.0

IMPORTS = {
    "raises": "raise RuntimeError('boom')",
    "exits": "import sys; sys.exit(0)",
    "raises no Exception": "class Odd(BaseException): pass\nraise Odd('odd')",
}
NUMBER = "THING = 17"

CLUSTER = """
format: 1
name: desk
devices:
  - {name: front, board: u280, address: {device: 0}}
topology: chain
"""
PLAN = "plan lenet5 --board u280 --devices 2 --array 8x8 --batch 8 --micro-batches 4"
BUILD = "build --network lenet5 --board u280 --devices 1 --array 4x4 --batch 4 --no-hardware"
OTHERS = (
    "boards",
    "inspect lenet5",
    PLAN,
    f"{BUILD} -o OUT",
    "schedule 1f1b --stages 2 --micro-batches 2",
)
"""Commands that ask for no thing of a package."""


@dataclass(frozen=True)
class Group:
    """A group of entry points.

    Attributes
    ----------
    asks : str
        Command that asks for the thing ``odd``.
    taken : str
        Name that fpgapipe has; for operators, the class.
    asks_taken : str
        Command that asks for it.
    uses : tuple of str
        Texts of modules whose thing fails, and returns nonsense, when it is used.
    met : tuple of str
        Beginnings of the other commands that meet a broken package.
    """

    asks: str = ""
    taken: str = ""
    asks_taken: str = ""
    uses: tuple[str, ...] = ()
    met: tuple[str, ...] = ()


def _used(imports: str, made: str) -> tuple[str, ...]:
    return tuple(
        f"{imports}\ndef function(*args):\n    {body}\nTHING = {made}\n"
        for body in ("1 / 0", "return 17")
    )


WIRE = """
from fpgapipe.host.driver.transport import BoardTransport
from fpgapipe.host.transports.modelled import ModelledTransport
class THING(ModelledTransport, BoardTransport):
    name = "odd"
    @classmethod
    def open(cls, address, board, folder):
        {body}
"""
MARK = """
from dataclasses import dataclass
from typing import ClassVar
from fpgapipe.network.operators import Operator
from fpgapipe.network.operators.others import adds
@adds
@dataclass(frozen=True)
class Conv(Operator):
    kind: ClassVar[str] = "odd"
"""
GROUPS = {
    "boards": Group("plan lenet5 --board odd --devices 2 --batch 8", "u280", PLAN, met=("boards",)),
    "operators": Group(taken="Conv", met=("plan", "build")),
    "schedules": Group(
        "schedule odd --stages 2 --micro-batches 2",
        "gpipe",
        "schedule gpipe --stages 2 --micro-batches 2",
        _used(
            "from fpgapipe.partition.schedule.schedule_kind import ScheduleKind",
            "ScheduleKind('odd', function)",
        ),
    ),
    "strategies": Group(
        f"{PLAN} --strategy odd",
        "data",
        f"{PLAN} --strategy data",
        _used("from fpgapipe.partition.strategies.strategy import Strategy", "Strategy(function)"),
    ),
    "transports": Group(
        "run BUILT --backend odd --cluster desk.yaml --data random",
        "xdma",
        "run BUILT --backend xdma --cluster desk.yaml --data random",
        (WIRE.format(body="1 / 0"), WIRE.format(body="return 17")),
    ),
    "packages": Group(
        f"{BUILD.replace(' --no-hardware', '')} --package odd -o OUT",
        "vivado",
        f"{BUILD.replace(' --no-hardware', '')} --package vivado -o OUT",
    ),
    "frontends": Group(
        "inspect net.odd",
        "csv",
        "inspect net.csv",
        _used(
            "from fpgapipe.network.frontends.frontend import Frontend", "Frontend('odd', function)"
        ),
    ),
}


def run(command: str, folder: Path, site: Path | None) -> tuple[int, str, str]:
    """Run a command, which may find the package of a site; returns code, output and messages."""
    out = tempfile.mkdtemp(dir=folder)
    words = [word.replace("OUT", out).replace("BUILT", "built") for word in command.split()]
    paths = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": f"{site}:{paths}" if site else paths}
    done = subprocess.run(
        [*CLI, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    return done.returncode, done.stdout.replace(out, "OUT"), done.stderr.replace(out, "OUT")


def cases() -> list[tuple[str, str, str, str, str]]:
    """Group, what is wrong, the module's text, the entry point's name, and what asks for it."""
    found = []
    for name, group in GROUPS.items():
        for what, text in {**IMPORTS, "offers a number": NUMBER}.items():
            if name != "operators" or text != NUMBER:
                found.append((name, what, text, "odd", group.asks))
        shadow = MARK if name == "operators" else NUMBER
        entry = "odd" if name == "operators" else group.taken
        found.append((name, f"takes the name {group.taken}", shadow, entry, group.asks_taken))
        for what, text in zip(("fails", "returns nonsense"), group.uses, strict=False):
            found.append((name, f"{what} when it is used", text, "odd", group.asks))
    return found


def case(
    number: int, found: tuple[str, str, str, str, str], folder: Path, alone: dict[str, Any]
) -> list[str]:
    """Install a broken package; returns the faults."""
    name, _, text, entry, asks = found
    site, package = folder / f"site-{number}", f"fpx_{name}_{number}"
    site.mkdir()
    value = f"{package}.mod" if name in ("boards", "operators") else f"{package}.mod:THING"
    install(site, package, {"mod.py": text}, {f"fpgapipe.{name}": {entry: value}})
    faults = []
    for command in OTHERS:
        if command == asks:
            continue
        if name == "boards" and entry != "odd" and "u280" in command:
            continue  # it asks for the name that is taken
        code, out, err = run(command, folder, site)
        if (code, out) != (alone[command][0], alone[command][1]) and command != "boards":
            faults.append(f"{command}: exit code {code}: {err[-300:]}")
        if command.startswith(GROUPS[name].met or ("-",)) and package not in out + err:
            faults.append(f"{command}: it does not name the package")
        if "Traceback" in out + err:
            faults.append(f"{command}: a traceback")
    if asks:
        code, out, err = run(asks, folder, site)
        if code != 2 or "Traceback" in err:
            faults.append(f"{asks}: exit code {code}: {err[-300:]}")
        elif package not in err:
            faults.append(f"{asks}: it does not name the package: {err[-300:]}")
    return faults


def main() -> int:
    """Do all cases, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, help="Groups, instead of all.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "desk.yaml").write_text(CLUSTER)
        for suffix in ("odd", "csv"):
            (folder / f"net.{suffix}").write_text("16, 64, 10\n")
        assert run(f"{BUILD} -o built", folder, None)[0] == 0
        alone = {command: run(command, folder, None) for command in OTHERS}
        assert all(code == 0 for code, _, _ in alone.values()), alone
        found: dict[str, list[str]] = {}
        for number, each in enumerate(cases()):
            if not given.only or each[0] in given.only:
                found[f"{each[0]}: {each[1]}"] = case(number, each, folder, alone)
                print(f"{each[0]}: {each[1]}: {found[f'{each[0]}: {each[1]}']}", file=sys.stderr)
    faults = {name: each for name, each in found.items() if each}
    print(json.dumps({"cases": len(found), "faults": len(faults), "faulty": faults}, indent=2))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
