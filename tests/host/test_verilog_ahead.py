"""Verilog that is begun before a plan is finished."""

import contextlib

import pytest

from fpgapipe.host.build import verilog_ahead
from fpgapipe.host.build.verilog_ahead import Begun
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec


@pytest.fixture
def cores(monkeypatch):
    found = verilog_ahead.core_verilog
    monkeypatch.setattr(found, "device_verilog", lambda core: f"core of {core.rows} rows")
    return [CoreSpec(rows, 8) for rows in (8, 16)]


def test_gives_what_was_begun_in_the_order_asked_for(cores):
    with contextlib.ExitStack() as stack:
        begun = Begun(stack)
        assert begun.take(cores) is None
        begun.begin(cores, is_large=False)
        texts = begun.take(cores[::-1])
        assert texts() == ["core of 16 rows", "core of 8 rows"]


def test_ends_what_nobody_wants(cores):
    with contextlib.ExitStack() as stack:
        begun = Begun(stack)
        begun.begin(cores[:1], is_large=False)
        ended = []
        stack.callback(ended.append, True)
        assert begun.take(cores) is None
        assert ended == [True]
        begun.begin(cores, is_large=False)
        assert begun.take(cores)() == ["core of 8 rows", "core of 16 rows"]
