"""``fpgapipe doctor``: lists what fpgapipe needs on a machine, and what was found."""

import dataclasses

import click

from fpgapipe import __version__
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.setup.doctor import examine
from fpgapipe.host.terminal.console import Table, print_json


@command("doctor", example="fpgapipe doctor")
@click.option("--brief", is_flag=True, help="Print one line if all is well, else only the faults.")
@click.option("--deep", is_flag=True, help="Compile and simulate a small design as well (10 s).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(brief: bool, deep: bool, as_json: bool) -> int:
    """List what is needed, what was found, and the line that mends what is not right.

    Exits with 1 if planning and simulating cannot run; optional things may be missing.
    """
    findings = examine(deep=deep)
    faults = [finding for finding in findings if finding.is_fault]
    if as_json:
        things = [dataclasses.asdict(finding) for finding in findings]
        print_json({"fpgapipe": __version__, "ok": not faults, "things": things})
        return 1 if faults else 0
    if not brief:
        headings = "thing|needed for|found|minimum|state|mend it with"
        rows = [
            (
                finding.thing,
                finding.purpose,
                finding.found or "-",
                finding.minimum or "any",
                finding.state if finding.required or finding.state == "ok" else "optional",
                finding.mend or "-",
            )
            for finding in findings
        ]
        Table(headings, rows).print()
    elif not faults:
        names = ("python", "g++", "make", "verilator", "yosys", "cocotb")
        versions = [f"{each.thing} {each.found}" for each in findings if each.thing in names]
        click.echo(f"fpgapipe {__version__}: all is well ({', '.join(versions)})")
    for fault in faults:
        click.echo(fault.sentence, err=True)
    return 1 if faults else 0
