"""Clock of the core on UltraScale+, by a static timing estimate before anything is placed.

Prints one JSON object: for each block of a 32 x 32 core with 16 vector lanes and two links, and for
each block of the whole cores that are named, the slowest paths with their delays, their shares of
wires, and where they begin and end, and the clock that the slowest allows. The netlists are Yosys'
for ``-family xcup``; `ultrascale_delays.py` has the delays and says what is assumed about wires.
Ports count as registers: the paths of whole cores, block by block, show what crosses their borders.
``--output docs/figures/clock-paths.json`` writes the same to the file of the page docs/clock.md,
whose other blocks and cores stay; `measured_at` has the commit of each.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any

from bench_resources import COMMANDS, blocks, yosys
from bench_whole_cores import CORES
from figure import commit, write_figure
from flat_netlist import flat
from static_timing import Path, Timing

from fpgapipe.hw.hls_models.model.datapath import DatapathSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.gemm.datapath import GemmDatapath
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.tools import run_tool

SPEC = CoreSpec(
    32, 32, 1, 1024, ScratchpadSpec(4, 1 << 16), 64,
    vector=VectorSpec(16, 4), links=(LinkEngineSpec(64),) * 2,
)  # fmt: skip
"""The core of which blocks are measured; UltraRAM, which is larger, is not in Yosys' netlists."""

NOTE = (
    "Pre-placement estimate; docs/clock.md says what is measured and what is assumed. Names are "
    "those of registers or, where Yosys knows none, of instances with the kind of the cell."
)

CLOCK_HZ = 300e6
MOST_PATHS = 10

COLUMNS = 4
"""Columns of the datapath that is measured; all columns are alike, and pass registers between."""

WHOLE = {name: spec for name, (_, spec) in CORES.items()} | {
    "32x4, 16 lanes, two links": replace(SPEC, cols=COLUMNS)
}
"""The cores that can be measured as a whole. Yosys was stopped after 48 minutes with 32 columns."""

PARTS = ("gemm", "vector")
"""Blocks of a core that are told apart by their own parts."""


def design_of(make: Callable[[], Any], folder: FilePath) -> dict[str, Any]:
    """The netlist of a component that is made; one that is in the folder already is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "top.json"
    if not path.exists():
        (folder / "top.v").write_text(verilog_of(make()))
        script = f"read_verilog top.v; {COMMANDS['xcup']}; write_json top.json"
        run_tool(
            [yosys(), "-q", "-p", script],
            log=folder / "yosys.log",
            outputs=[path],
            cwd=folder,
            timeout_s=7200,
            name="Yosys",
        )
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def block_of(path: Path) -> str:
    """The block of a whole core in which a path ends."""
    names = [re.sub(r"\d+$|_[ab]$", "", name) for name in path.where.split(".")]
    return ".".join(names[: 2 if names[0] in PARTS else 1]) or "between blocks"


def report(paths: Sequence[Path], most: int) -> dict[str, Any]:
    """The slowest paths, the clock that they allow, and how many do not reach `CLOCK_HZ`."""
    period_ps = 1e12 / CLOCK_HZ
    inner = [path for path in paths if not path.is_port]
    return {
        "clock_mhz": round(1e6 / paths[0].delay_ps, 1),
        "clock_without_ports_mhz": round(1e6 / inner[0].delay_ps, 1) if inner else None,
        "too_slow": sum(path.delay_ps > period_ps for path in paths),
        "paths": [
            asdict(path) | {"slack_ps": round(period_ps - path.delay_ps, 1)}
            for path in paths[:most]
        ],
    }


def components() -> dict[str, Any]:
    """Functions that make the blocks, by name."""
    found = {name: block.make for name, block in blocks(SPEC).items() if name != "between blocks"}
    # Its parts are measured instead of the whole.
    for name in ("transposer", "quantiser", "address generator", "vector lane", "vector engine"):
        del found[name]
    datapath = DatapathSpec(SPEC.rows, COLUMNS, SPEC.acc_depth)
    return found | {"datapath": lambda: GemmDatapath(datapath)}


def with_kept(path: FilePath, found: dict[str, Any]) -> dict[str, Any]:
    """What was found, and what a file has of other blocks and cores, with the commits of all."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"commit": None}
    if kept.get("wires", found["wires"]) != found["wires"]:
        raise SystemExit(f"{path} is for wires of {kept['wires']} times the delay")
    merged: dict[str, Any] = {"clock_hz": CLOCK_HZ, "wires": found["wires"], "measured_at": {}}
    commits = kept.get("measured_at", {})
    for part in ("blocks", "cores"):
        before = kept.get(part, {})
        merged[part] = before | found[part]
        for name in merged[part]:
            at = commits.get(name, kept["commit"])
            merged["measured_at"][name] = commit() if name in found[part] else at
    return merged


def main() -> None:
    """Estimate, and print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    made = components()
    parser.add_argument("--blocks", nargs="*", metavar="BLOCK", choices=made, default=list(made))
    parser.add_argument("--cores", nargs="*", metavar="CORE", choices=WHOLE, default=[])
    parser.add_argument("--wires", type=float, default=1.0, help="factor of the wires' delays")
    parser.add_argument("--paths", type=int, default=MOST_PATHS, help="paths of each block")
    parser.add_argument("--work", type=FilePath, help="keep netlists here, and take those there")
    parser.add_argument("-o", "--output", type=FilePath, help="file of figures")
    given = parser.parse_args()
    found: dict[str, Any] = {"blocks": {}, "cores": {}}
    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or FilePath(scratch)
        for name in given.blocks:
            design = design_of(made[name], work / name.replace(" ", "_"))
            found["blocks"][name] = report(Timing(flat(design), given.wires).paths(), given.paths)
            print(f"{name}: {found['blocks'][name]['clock_mhz']} MHz", file=sys.stderr)
        for number, (name, spec) in enumerate(WHOLE.items()):
            if name not in given.cores:
                continue
            design = design_of(partial(Device, spec), work / f"core{number}")
            parts: dict[str, list[Path]] = {}
            for path in Timing(flat(design), given.wires).paths():
                parts.setdefault(block_of(path), []).append(path)
            found["cores"][name] = {
                block: report(paths, given.paths) for block, paths in parts.items()
            }
    result = {"clock_hz": CLOCK_HZ, "wires": given.wires} | found
    if given.output:
        figures = with_kept(given.output, result)
        write_figure(given.output, "bench/bench_clock.py", NOTE, figures)
    print(json.dumps({"bench": "clock", "kind": "pre-placement estimate"} | result, indent=2))


if __name__ == "__main__":
    main()
