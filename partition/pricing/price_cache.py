"""Prices that are kept in files for later commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpgapipe import answers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SOURCES = ("hw.hls_models", "lowering", "network", "partition")
"""Packages that determine prices."""


def remembered(question: Mapping[str, Any], find: Callable[[], Any]) -> Any:
    """The answer to a question about prices; see `answers.remembered`."""
    return answers.remembered("prices", SOURCES, question, find)
