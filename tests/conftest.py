"""Settings that all tests share."""

import os
import signal

import pytest
from hypothesis import settings

# No timed asserts: a slow machine is no failure. The same examples every time: CI is no fuzzer.
settings.register_profile("fpgapipe", deadline=None, derandomize=True)
settings.load_profile("fpgapipe")
# Nor is it one of hardware: COCOTB_RANDOM_SEED=2 make test draws other stimulus.
os.environ.setdefault("COCOTB_RANDOM_SEED", "1")
# Tests change what prices follow from, which no file may remember.
os.environ.setdefault("FPGAPIPE_ANSWERS", "programs")

# Tests are at work on all processors already.
os.environ.setdefault("FPGAPIPE_JOBS", "1")
# Gateware is tested, not the models that commands simulate some of its blocks by.
os.environ.setdefault("FPGAPIPE_SIMULATE", "verilog")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let simulations come first: a long one at the end would keep one worker alone."""
    items.sort(key=lambda item: item.get_closest_marker("sim") is None)


@pytest.fixture
def cli(capsys, monkeypatch):
    """Run the command line in this process; gives exit code, standard output, standard error.

    Lines of progress and of where the time went, which standard error would have on a slow machine
    only, do not come.
    """
    from fpgapipe.host.cli.main import main
    from fpgapipe.host.cli.options import options
    from fpgapipe.host.terminal import progress

    monkeypatch.setattr(progress, "FIRST_S", 3600.0)
    monkeypatch.setattr(options, "LONG_S", 3600.0)

    def run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder in which packages are found, whose modules are forgotten afterwards."""
    from plugin_cases import forgotten

    monkeypatch.syspath_prepend(str(tmp_path))
    with forgotten(tmp_path):
        yield tmp_path


@pytest.fixture
def interruptible():
    """Let Ctrl-C and a hang-up do what they do, also where a shell or nohup has them ignored."""
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGHUP, hang_up)
