"""A sample of the fuzzer of build folders; bench/bench_fuzz_builds.py does ten thousand cases."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench/bench_fuzz_builds.py"
CASES = 200


def test_changed_builds_are_refused_or_do_no_harm():
    done = subprocess.run(
        [sys.executable, BENCH, "--cases", str(CASES), "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert (found["faults"], found["reached"], done.returncode) == ([], True, 0)
    assert found["cases"] == CASES
    assert found["accepted and equal"]  # not everything is refused
