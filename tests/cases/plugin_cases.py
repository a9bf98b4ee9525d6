"""Packages that offer something by entry points, as if they were installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def install(
    site: Path, package: str, files: Mapping[str, str], entries: Mapping[str, Mapping[str, str]]
) -> None:
    """Write a package of version 1.0 into a folder, which is or gets on Python's path.

    Parameters
    ----------
    site : Path
        Folder that packages are found in.
    package : str
        Name of the package, and of its folder.
    files : mapping of str to str
        Text of each file in the package's folder.
    entries : mapping of str to mapping of str to str
        For each group of entry points, their names and values.
    """
    folder, info = site / package, site / f"{package}-1.0.dist-info"
    for each in (folder, info):
        each.mkdir(parents=True)
    for name, text in {"__init__.py": "", **files}.items():
        (folder / name).write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        line
        for group, offered in entries.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in offered.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
