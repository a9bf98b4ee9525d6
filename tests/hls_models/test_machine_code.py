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
