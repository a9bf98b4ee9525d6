"""Rare garbage collections, and none at the end of a process that ends anyway."""

import gc
import subprocess
import sys

from fpgapipe.garbage import rare_collections

SCRIPT = """
import gc
from fpgapipe.garbage import end_after_command, rare_collections
if {ends}:
    end_after_command()
with rare_collections(last={last}):
    with rare_collections():
        pass
    kept = [[] for _ in range(1000)]
    assert gc.get_threshold()[0] > 100_000 and not gc.get_freeze_count()
assert gc.get_threshold() == (700, 10, 10)
print(gc.get_freeze_count() > 1000)
"""


def test_restores_the_threshold():
    before = gc.get_threshold()
    with rare_collections(last=True):
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before
    assert not gc.get_freeze_count()  # this process goes on


def test_leaves_to_the_system_only_what_the_last_command_made():
    for ends in (False, True):
        for last in (False, True):
            script = SCRIPT.format(ends=ends, last=last)
            done = subprocess.run(
                [sys.executable, "-c", script], check=True, capture_output=True, text=True
            )
            assert done.stdout == f"{ends and last}\n"
