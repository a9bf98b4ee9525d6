"""Maps, places and routes the SoC of a device, and packs its bitstream.

Packages have a copy of this file, ``route.py``, which needs no more than Python. How long wires get
is a matter of luck where a core takes 60 % of the part: placements of one netlist differ by up to a
tenth of their wires, and the router may not end with each of them. So some placements are made, and
routed from the shortest wires on, until one is whole and fast enough; those whose clock hardly
reaches what is asked come last.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = "fpgapipe"
"""Name of the files that soc.py has made, and of those that are made here."""

TOOLS = ("yosys", "nextpnr-ecp5", "ecppack")
"""Tools that are called; each is also on PyPI, with ``yowasp-`` before its name."""

PLACE_AND_ROUTE = ("--placer", "static", "--router", "router2")
"""Options of nextpnr. Its other placer makes the wires a third longer, and its other router does
not end, where a core takes 60 % of the LUTs."""

MAP = f"""\
synth_ecp5 -top {NAME} -run begin:map_luts
techmap -map +/lattice/latches_map.v
abc -lut 4:7
clean
synth_ecp5 -top {NAME} -run map_cells:"""
"""Steps of Yosys in the place of ``synth_ecp5``, which maps to LUTs by abc9: shorter wires, but the
router does not end. LUTs of more than four inputs are made of several and of multiplexers; without
them there are fewer LUTs and as many wires, and the router leaves more of them overused."""

WEIGHTS = {"initCurrCongWeight": 0.5, "currCongWeightMult": 0.5, "histCongWeight": 2}
"""Settings of nextpnr's router: what it costs at first that others use a wire, by how much that
grows with each round, and what the rounds before count. By default the second is 2 and the third 1,
and then the ways around get so long that after some 30 rounds more wires are overused again."""

SEEDS = (1, 2)
"""Seeds of the placements, if none are given."""

PATIENCE = 25
"""Rounds of the router without fewer overused wires, after which it is stopped."""

MARGIN = 1.05
"""How much faster than asked the clocks of a placement should be: two that had links were 4.8 and
4.4 % slower when they were routed, one without was 27 % faster."""

_WIRES = re.compile(r"wirelen = (\d+)")
_ROUND = re.compile(r"iter=(\d+) wires=\d+ overused=(\d+)")
_CLOCK = re.compile(
    r"Max frequency for clock +'([^']+)': ([\d.]+) MHz \((?:PASS|FAIL) at ([\d.]+) MHz\)"
)


@dataclass(frozen=True)
class Placement:
    """nextpnr's report of a placement.

    Parameters
    ----------
    wires : int
        Length of all wires, in tiles.
    clocks : dict of str to tuple of float
        For each clock, by its name, the MHz that nextpnr estimates, and those that are asked for.
    """

    wires: int
    clocks: dict[str, tuple[float, float]]

    @property
    def is_fast(self) -> bool:
        """Whether all clocks are faster than asked by `MARGIN`."""
        return all(mhz >= asked * MARGIN for mhz, asked in self.clocks.values())


class ToolError(Exception):
    """A tool has ended with an error, or was stopped; the message says so in one line."""


def told(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def tools_on_path(folder: Path) -> None:
    """Find the tools: those of PyPI, if this Python has them, or those on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    own = Path(sys.executable).parent
    for name in TOOLS:
        found = shutil.which(f"yowasp-{name}", path=f"{own}{os.pathsep}{os.environ['PATH']}")
        if found:
            shim = folder / name
            shim.write_text(f'#!/bin/sh\nexec "{found}" "$@"\n')
            shim.chmod(0o755)
        elif not shutil.which(name):
            sys.exit(f"route.py: there is neither yowasp-{name} nor {name}; README.md says how")
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def run(
    arguments: Sequence[str], log: Path, look: Callable[[str], bool] = lambda line: True
) -> None:
    """Run a tool in the folder of a log file, which gets what it prints.

    Parameters
    ----------
    arguments : sequence of str
    log : Path
    look : callable
        Gets each line; the tool is stopped when it returns False.

    Raises
    ------
    ToolError
        If the tool was stopped, or ended with an error.
    """
    errors = []
    stopped = False
    with (
        log.open("w") as file,
        subprocess.Popen(
            arguments,
            cwd=log.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                if line.startswith("ERROR"):
                    errors.append(line.strip())
                if not look(line):
                    stopped = True
                    break
        finally:
            if stopped or sys.exc_info()[0]:
                process.kill()
    if stopped:
        raise ToolError(f"{arguments[0]} was stopped; {log} has what it printed")
    if process.returncode:
        what = errors[-1] if errors else f"ended with {process.returncode}"
        raise ToolError(f"{arguments[0]}: {what}; {log} has more")


def commands_of(folder: Path) -> dict[str, list[str]]:
    """Commands of the tools in the script that LiteX has written, by the name of the tool."""
    found = {}
    for line in (folder / f"build_{NAME}.sh").read_text().splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] in TOOLS:
            found[words[0]] = words
    return found


def sources_digest(folder: Path) -> str:
    """Digest of all that decides placements, without comments, which have the time."""
    found = hashlib.sha256(repr((MAP, PLACE_AND_ROUTE, WEIGHTS)).encode())
    for path in sorted(folder.iterdir()):
        if path.suffix in (".v", ".ys", ".init", ".lpf"):
            lines = path.read_text().splitlines()
            found.update("\n".join(each for each in lines if not each.startswith("//")).encode())
    return found.hexdigest()


def mapped(folder: Path, command: list[str]) -> None:
    """Make the netlist with Yosys, unless it is there and its sources are the same."""
    # YoWASP's tools see the folder that they run in, and not every other one (/tmp is their own).
    script = folder / f"{NAME}.ys"
    text = script.read_text().replace(f"{folder}{os.sep}", "")
    if "map_luts" not in text:
        text = re.sub(r"^synth_ecp5 .*$", MAP, text, count=1, flags=re.MULTILINE)
    script.write_text(text)
    mark, digest = folder / "netlist.sha256", sources_digest(folder)
    if mark.is_file() and mark.read_text() == digest:
        told("the netlist is there")
        return
    for old in (mark, *folder.glob("placed-*.json")):
        old.unlink(missing_ok=True)
    told("Yosys maps the SoC to LUTs; some 5 to 10 minutes")
    run(command, folder / "yosys.log")
    mark.write_text(digest)


def clocks_of(log: Path) -> dict[str, tuple[float, float]]:
    """Each clock of a log of nextpnr by its name: MHz that it reaches, and that are asked for."""
    found = _CLOCK.findall(log.read_text())
    return {name: (float(mhz), float(asked)) for name, mhz, asked in found}


def placed(folder: Path, command: list[str], seed: int) -> Placement:
    """Place the netlist, unless it was."""
    result, log = folder / f"placed-{seed}.json", folder / f"place-{seed}.log"
    if not result.is_file():
        half = folder / f"half-{seed}.json"
        begin_s = time.monotonic()
        options = ("--seed", str(seed), "--no-route", "--write", half.name)
        run([*without(command, "--textcfg", "--seed"), *PLACE_AND_ROUTE, *options], log)
        half.write_text(weighted(half.read_text()))
        half.replace(result)
        took = f" in {(time.monotonic() - begin_s) / 60:.0f} minutes"
    else:
        took = " before"
    wires = [int(each) for each in _WIRES.findall(log.read_text())]
    if not wires:
        raise ToolError(f"{log} does not say how long the wires are")
    clocks = clocks_of(log)
    told(f"seed {seed}: placed{took}, wires of {wires[-1]:,} tiles; estimated {named(clocks)}")
    return Placement(wires[-1], clocks)


def named(clocks: dict[str, tuple[float, float]]) -> str:
    """The clocks and what they reach, for a message."""
    return ", ".join(f"{name}: {mhz:g} MHz" for name, (mhz, _) in clocks.items()) or "no clock"


def weighted(design: str) -> str:
    """Return a placed design with the settings of the router that nextpnr has no options for."""
    lines = "".join(f'        "router2/{name}": "{value:f}",\n' for name, value in WEIGHTS.items())
    head, mark, rest = design.partition('"settings": {\n')
    if not mark:
        raise ToolError("nextpnr-ecp5: there are no settings in the placement that it has written")
    return head + mark + lines + rest


def routed(folder: Path, command: list[str], seed: int, asked: dict[str, float]) -> None:
    """Route a placement; stops when no round has had fewer overused wires for a while.

    Parameters
    ----------
    folder : Path
    command : list of str
    seed : int
        Seed of the placement that is routed.
    asked : dict of str to float
        How fast each clock has to be, MHz. nextpnr itself forgets it with a placement that was
        written.

    Raises
    ------
    ToolError
        If it was stopped, or a clock is too slow.
    """
    best, since = 1 << 62, 0

    def look(line: str) -> bool:
        nonlocal best, since
        found = _ROUND.search(line)
        if found:
            number, overused = map(int, found.groups())
            if number % 10 == 0 or not overused:
                told(f"seed {seed}: {overused:,} wires are overused after {number} rounds")
            best, since = min(best, overused), 0 if overused < best else since + 1
        return since < PATIENCE

    log = folder / f"route-{seed}.log"
    begin_s = time.monotonic()
    options = ("--no-pack", "--no-place")
    netlist = ("--json", f"placed-{seed}.json")
    run([*without(command, "--json", "--seed"), *PLACE_AND_ROUTE, *options, *netlist], log, look)
    clocks = clocks_of(log)
    for name, mhz in asked.items():
        if clocks.get(name, (0.0, 0.0))[0] < mhz:
            raise ToolError(
                f"routed for {named(clocks)}, where {name} needs {mhz:g} MHz; {log} has the paths"
            )
    told(f"seed {seed}: routed in {(time.monotonic() - begin_s) / 60:.0f} minutes; {named(clocks)}")


def without(command: Sequence[str], *options: str) -> list[str]:
    """Return a command without some options and their values, nor the placer and the router."""
    found: list[str] = []
    words: Iterator[str] = iter(command)
    for word in words:
        if word in (*options, "--placer", "--router"):
            next(words)
        else:
            found.append(word)
    return found


def main() -> None:
    """Place the SoC with several seeds, and route them, the one with the shortest wires first."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=SEEDS, help="of the placements (1 2)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="placements at a time, each of which takes 2 GB (as many as there are processors)",
    )
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parent
    clk_hz = json.loads((here / "device.json").read_text())["clk_hz"]
    out = here / "build"
    folder = out / "gateware"
    tools_on_path(out / "tools")
    try:
        commands = commands_of(folder)
        mapped(folder, commands["yosys"])
        found: dict[int, Placement] = {}
        seeds = tuple(dict.fromkeys(arguments.seeds))
        told(f"nextpnr places the SoC with {len(seeds)} seeds; each takes some 10 minutes")
        with concurrent.futures.ThreadPoolExecutor(max(arguments.jobs, 1)) as pool:
            jobs = {
                seed: pool.submit(placed, folder, commands["nextpnr-ecp5"], seed) for seed in seeds
            }
            try:
                for seed, job in jobs.items():
                    try:
                        found[seed] = job.result()
                    except ToolError as error:
                        told(f"seed {seed}: {error}")
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)  # else the others would begin
                raise
        for seed in sorted(found, key=lambda each: (not found[each].is_fast, found[each].wires)):
            asked = {name: mhz for name, (_, mhz) in found[seed].clocks.items()}
            if max(asked.values(), default=0.0) < clk_hz / 1e6 - 0.01:  # nextpnr tells two digits
                raise ToolError(f"nextpnr-ecp5 was not asked for the SoC's {clk_hz / 1e6:g} MHz")
            told(f"seed {seed}: nextpnr routes it; a quarter of an hour and more")
            try:
                routed(folder, commands["nextpnr-ecp5"], seed, asked)
            except ToolError as error:
                told(f"seed {seed}: {error}")
                continue
            run(commands["ecppack"], folder / "ecppack.log")
            told(f"{folder / NAME}.bit is there")
            return
    except ToolError as error:
        sys.exit(f"route.py: {error}")
    except KeyboardInterrupt:
        told(
            "route.py: stopped; the next run goes on from the netlist and placements that are there"
        )
        sys.exit(130)
    sys.exit(
        "route.py: no placement was routed with the clock that the SoC needs, as the lines above "
        "say; try other seeds (make SEEDS='3 4'), or plan for a lower clk_target_hz of the "
        "board or a smaller core (--array)"
    )


if __name__ == "__main__":
    main()
