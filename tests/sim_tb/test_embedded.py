"""The process that runs a simulator."""

import subprocess
import sys

CHILD = """
import time
from fpgapipe.sim_tb.drivers.embedded import end_with_parent
end_with_parent()
print("ready", flush=True)
time.sleep(60)
"""

PARENT = f"""
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_simulator_ends_with_the_process_that_waits_for_it():
    # Standard error stays open as long as any of the two lives.
    result = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, check=False, timeout=30
    )
    assert (result.returncode, result.stdout, result.stderr) == (-9, "ready\n", "")
