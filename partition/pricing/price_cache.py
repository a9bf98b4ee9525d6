"""Prices that are kept in files for later commands."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fpgapipe import answers
from fpgapipe.network.graph_json import to_json
from fpgapipe.partition.explore.explorer import splits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fpgapipe.partition.explore.request import Request

SOURCES = ("hw.hls_models", "lowering", "network", "partition")
"""Packages that determine prices."""


def remembered(question: Mapping[str, Any], find: Callable[[], Any]) -> Any:
    """The answer to a question about prices; see `answers.remembered`."""
    return answers.remembered("prices", SOURCES, question, find)


def question_of(what: str, request: Request, network: str) -> dict[str, Any]:
    """A question that a search answers: its kind, its request, and the network's name."""
    splits = [request.load(request.batch // count) for count in splits_of(request)]
    return {
        "what": what,
        "graphs": [hashlib.sha256(to_json(graph).encode()).hexdigest() for graph in splits],
        "request": [
            repr(getattr(request, each.name)) for each in fields(request) if each.name != "load"
        ],
        "network": network,
    }
