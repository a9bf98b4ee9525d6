"""Errors say what is meant by words that other tools know."""

import pytest
from cases.command_cases import commands_of

from fpgapipe.host.cli.options.suggestions import BACKENDS, COMMANDS, OPTIONS
from fpgapipe.host.transports.opening import backend_names


def test_what_is_suggested_is_there():
    commands = commands_of()
    options = {name for each in commands.values() for param in each.params for name in param.opts}
    assert {name.split()[0] for name in COMMANDS.values()} <= set(commands)
    assert set(OPTIONS.values()) <= options
    assert not set(COMMANDS) & set(commands)
    assert not set(BACKENDS) & set(backend_names())


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ("train out/x", "Error: no command 'train'; did you mean 'run'?"),
        ("Fit", "Error: no command 'Fit'; did you mean 'run'?"),
        ("infer", "Error: no command 'infer'; did you mean 'build --mode infer'?"),
        ("xyzzy", "Error: no command 'xyzzy'"),
        ("run x --lr 0.1", "Error: No such option '--lr'. Did you mean '--learning-rate'?"),
        ("build --lr 0.1", "Error: No such option '--lr'."),
        ("build mynet:net", "Error: build takes its network as an option: --network mynet:net"),
        ("plan lenet5 other", "Error: Got unexpected extra argument (other)"),
        (
            "run x --backend gpu",
            "'xdma', 'xrt'; PyTorch computes with --backend torch, on a GPU if there is one "
            "(--device cuda says so).",
        ),
        ("run x --check RTL", "'auto', 'none'; simulated devices are --backend sim."),
        ("run x --backend x", "'pynq', 'xdma', 'xrt'."),
        (
            "inspect mynet.py",
            "error: 'mynet.py' is a file of Python: name the function in it that gives the "
            "network, as mynet:FUNCTION",
        ),
        ("inspect a/mynet.py", "as mynet:FUNCTION, with a as the working directory"),
    ],
)
def test_words_of_other_tools(cli, words, last):
    code, out, err = cli(*words.split())
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith(last)
