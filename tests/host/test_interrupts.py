"""Signals that ask a command to end: none is lost, and the command says at once where it is."""

import subprocess
import sys
import textwrap

import pytest

HEAD = """
import os, signal, sys, threading, time
from fpgapipe.host.terminal.interrupts import terminations, told_of_ending

def told(name):
    os.write(1, f"told of {name}\\n".encode())

def receive():
    time.sleep(60)
"""


def said(body):
    """Lines of a program that is sent a signal; it has to end within a minute."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(body)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_another_thread_receives_is_not_lost(name):
    """The kernel may hand it to any thread, as it does right after SIGCONT."""
    assert said(f"""
        threading.Thread(target=receive, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.{name}}})
        lock = threading.Lock()
        lock.acquire()
        with terminations() as come, told_of_ending(told):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.{name})).start()
            try:
                lock.acquire()
            except KeyboardInterrupt:
                print("interrupted", come)
    """) == [f"told of {name}", f"interrupted {[15] if name == 'SIGTERM' else []}"]


def test_where_a_command_is_can_be_told_while_the_main_thread_computes():
    """C code that runs for long keeps Python's handlers waiting, but not the other thread."""
    assert said("""
        import hashlib
        with terminations() as come, told_of_ending(told):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            try:
                hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)
            except KeyboardInterrupt:
                print("interrupted", come)
    """) == ["told of SIGTERM", "interrupted [15]"]


def test_signals_are_as_before_afterwards():
    assert said("""
        before = [signal.getsignal(each) for each in (signal.SIGURG, signal.SIGTERM)]
        for _ in range(3):
            with terminations():
                pass
        assert [signal.getsignal(each) for each in (signal.SIGURG, signal.SIGTERM)] == before
        assert signal.set_wakeup_fd(-1) == -1
        assert threading.active_count() == 1
        print("done")
    """) == ["done"]
