"""A sample of bench/bench_strategy_matrix.py: plans are right, or refused by a sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

BENCH = Path(__file__).parents[2] / "bench/bench_strategy_matrix.py"


def test_plans_of_strategies_are_right_or_refused():
    done = subprocess.run(
        [sys.executable, BENCH, "--sample"], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert (found["faults"], found["reached"], done.returncode) == ([], True, 0)
    assert (found["made"], found["refused"]) == (9, 1)
    ((reason, _),) = found["reasons"]
    assert reason.startswith("a batch of 6 samples cannot be shared equally by 4 devices")
