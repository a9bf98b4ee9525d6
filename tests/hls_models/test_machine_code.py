"""Machine code where its cache cannot be written."""

import pytest

pytest.importorskip("numba")

from numba.core.dispatcher import Dispatcher

from fpgapipe import machine_code


def test_a_cache_that_cannot_be_written_is_passed_over(monkeypatch, caplog):
    def refuse(self):
        raise RuntimeError("cannot cache function 'f': no locator available for file 'f.py'")

    monkeypatch.setattr(Dispatcher, "enable_caching", refuse)
    machine_code._say.cache_clear()
    functions = [machine_code.compiled(lambda x, n=n: x + n) for n in (1, 2)]
    assert [function(1) for function in functions] == [2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "machine code cannot be kept, so every command takes some seconds to make it anew; set "
        "NUMBA_CACHE_DIR to a folder that can be written"
    ]


def test_a_numba_that_always_counts_references_will_do(monkeypatch):
    njit = machine_code.numba.njit

    def without_option(**options):
        if "_nrt" in options:
            raise KeyError("Unrecognized options: {'_nrt'}. Known options are ...")
        return njit(**options)

    monkeypatch.setattr(machine_code.numba, "njit", without_option)
    assert machine_code.compiled_without_counts(lambda x: x + 1)(2) == 3
