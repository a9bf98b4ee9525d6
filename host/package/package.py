"""Writes the package of a build: a folder for each board, with all that a vendor's tools need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.files import exchange, scratch_folder
from fpgapipe.host.package.clocks import CLOCKS, PACKAGE, clocks_text
from fpgapipe.host.package.flow import FLOWS
from fpgapipe.host.package.readme import device_readme
from fpgapipe.host.package.targets import targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fpgapipe.boards.cluster import Cluster
    from fpgapipe.host.build.build import Build
    from fpgapipe.host.package.flow import Flow
    from fpgapipe.host.package.target import Target

MAKEFILE = "Makefile"
"""Name of the file in the package's folder that builds all devices."""


def package_files(flow: Flow, target: Target) -> Iterator[tuple[str, str]]:
    """Names and texts of all files of a board."""
    yield from flow.files(target)
    yield "README.md", device_readme(flow, target)


def makefile(folders: Sequence[str]) -> str:
    """Return the Makefile above the folders of the boards, each of which has one of its own."""
    return f"""\
# Builds all boards, with -j several at a time. Made by fpgapipe; do not edit.
DEVICES := {" ".join(folders)}

all: $(DEVICES)

$(DEVICES):
	$(MAKE) -C $@

clean: $(DEVICES:%=clean-%)

clean-%:
	$(MAKE) -C $* clean

.PHONY: all clean $(DEVICES)
"""


def write_package(build: Build, cluster: Cluster, kind: str) -> Path:
    """Write the packages of all boards of a build; an earlier package is replaced.

    Parameters
    ----------
    build : Build
    cluster : Cluster
        The cluster that it was planned for, which `check_boards` has accepted.
    kind : str
        Name of the flow.

    Returns
    -------
    Path
        The folder, in the build.

    Raises
    ------
    UserError
        If a device cannot be packaged, the build has no Verilog or the folder cannot be written.
    """
    build.check_hardware()
    flow = FLOWS[kind]
    found = targets(build, cluster, flow)
    folder = build.folder / PACKAGE / kind
    try:
        folder.parent.mkdir(exist_ok=True)
        with scratch_folder(folder) as scratch:
            fresh = scratch / "new"
            fresh.mkdir()
            (fresh / CLOCKS).write_text(clocks_text(found))
            (fresh / MAKEFILE).write_text(makefile([target.folder for target in found]))
            for target in found:
                place = fresh / target.folder
                place.mkdir(parents=True)
                for name, text in package_files(flow, target):
                    (place / name).write_text(text)
            if folder.exists():
                exchange(fresh, folder)
            else:
                fresh.replace(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    return folder
