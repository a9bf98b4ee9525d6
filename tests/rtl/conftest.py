"""Settings of tests of gateware."""

import pytest

from fpgapipe.hw.rtl import verilog


@pytest.fixture(autouse=True)
def converted_anew(monkeypatch):
    """Convert each block of a test: some have faults on purpose, under the same class and spec."""
    monkeypatch.setattr(verilog, "_parts", {})
    monkeypatch.setattr(verilog, "_pieces", {})
