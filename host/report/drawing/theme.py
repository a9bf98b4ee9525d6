"""Colours of pages and pictures, light and dark, and the files that are written into pages.

Colours of kinds of work differ in lightness as well as in hue, so that people who see few colours
or none can tell them apart; tests/host/test_report_parts.py checks that.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib import resources

from fpgapipe import __version__

LIGHT = {
    "page": "#f3f5f8",
    "paper": "#ffffff",
    "ink": "#1b2430",
    "soft": "#566374",
    "track": "#e9edf2",
    "grid": "#d5dbe3",
    "accent": "#1f5fa8",
    "bar": "#5b9bdc",
    "warn": "#a63a00",
    "warnbar": "#d9601a",
    "good": "#1a6b43",
    "F": "#8fc3fb",
    "B": "#ffbf73",
    "dX": "#f08c78",
    "dW": "#b5e8a8",
    "U": "#9d86d8",
    "wait": "#c3cad3",
    "SF": "#5b95d6",
    "SB": "#d68a3a",
    "s1": "#0067b1",
    "s2": "#c65a00",
    "s3": "#0a7d5e",
    "s4": "#a04a8a",
    "c1": "#2f7fc8",
    "c2": "#f2a93b",
    "c3": "#8f3d6f",
    "c4": "#e8d25a",
    "c5": "#7cc7b2",
    "c6": "#9aa5b1",
}
"""Colours by the name of the CSS variable: surfaces, text, kinds of tasks, lines, causes."""

DARK = LIGHT | {
    "page": "#0b0f14",
    "paper": "#12171e",
    "ink": "#e8edf3",
    "soft": "#9aa8b8",
    "track": "#1f2731",
    "grid": "#323c48",
    "accent": "#7db8f5",
    "bar": "#3f83c6",
    "warn": "#ff9e66",
    "warnbar": "#e07534",
    "good": "#6fd0a0",
    "F": "#2a63c4",
    "B": "#8c5410",
    "dX": "#8a332c",
    "dW": "#1f6751",
    "U": "#6b529c",
    "wait": "#4b5663",
    "SF": "#4f8fd6",
    "SB": "#d08c45",
    "s1": "#5fb2f7",
    "s2": "#ff9d4d",
    "s3": "#4fcba6",
    "s4": "#dd8cc8",
    "c1": "#3f86cc",
    "c2": "#d98f22",
    "c3": "#a8568a",
    "c4": "#efe08a",
    "c5": "#3f9c86",
    "c6": "#5d6873",
}


def themed(selector: str, names: Collection[str] = LIGHT) -> str:
    """Define colour variables for an element: light or dark as the reader prefers, light on paper.

    ``data-theme`` of the page, ``light`` or ``dark``, takes precedence over the reader's system.

    Parameters
    ----------
    selector : str
        CSS selector of the element: ``:root`` of a page, a class of a picture by itself.
    names : collection of str
        Names of the variables that it needs; all if not given.
    """

    def within(mark: str) -> str:
        return f":root{mark}" if selector == ":root" else f":root{mark} {selector}"

    light, dark = (
        " ".join(f"--{name}:{colour};" for name, colour in colours.items() if name in names)
        for colours in (LIGHT, DARK)
    )
    return (
        f"{selector} {{ color-scheme:light; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ {selector} {{ color-scheme:dark; {dark} }} }}\n"
        f"{within('[data-theme=light]')} {{ color-scheme:light; {light} }}\n"
        f"{within('[data-theme=dark]')} {{ color-scheme:dark; {dark} }}\n"
        f"@media print {{ {selector}, {within('[data-theme]')} "
        f"{{ color-scheme:light; {light} }} }}\n"
    )


@cache
def asset(name: str) -> str:
    """Text of a style sheet or script of this package, to be written into a page."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def page_begins(title: str, *styles: str) -> str:
    """The beginning of a page, up to its body, with all colours and the common style sheet.

    Its security policy allows only what is in the page itself to be loaded or run.

    Parameters
    ----------
    title : str
        Title of the page, already escaped.
    styles : str
        CSS rules in addition to those of ``page.css``.
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<meta name="generator" content="fpgapipe {__version__}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{themed(":root")}{asset("page.css")}{"".join(styles)}</style>
</head>
"""
