"""Characters that a terminal would obey do not reach it, whatever prints them."""

import io
import json
import logging
import os
import pty
import select
import subprocess
import sys

import click
import pytest

from fpgapipe.host.terminal.console import Table, print_json, set_up_logging
from fpgapipe.host.terminal.escapes import EscapingStream, escaped, escaping

EVIL = "a\x1b[2Jb\x1b]0;title\x07c\x9b31md\re\x08f\u202eg\x7fh\u2028i"
SHOWN = r"a\x1b[2Jb\x1b]0;title\x07c\x9b31md\re\x08f\u202eg\x7fh\u2028i"
OBEYED = set(EVIL) - set("abcdefghi[];0Jmtle231")


def test_what_is_escaped():
    assert escaped(EVIL) == SHOWN
    assert escaped("Schicht 1:\tΔw\n😀\\") == "Schicht 1:\tΔw\n😀\\"
    assert escaped("a\tb\nc\x1b", is_cell=True) == r"a\tb\nc\x1b"
    assert escaped(escaped(EVIL)) == escaped(EVIL)
    controls = set(map(chr, [*range(32), *range(127, 160)])) - set("\t\n")
    assert not controls & set(escaped("".join(controls)))


def test_a_stream_that_escapes():
    inner = io.StringIO()
    stream = EscapingStream(inner)
    assert stream.write(EVIL) == len(EVIL)
    stream.writelines(["\n", "\x1b"])
    assert inner.getvalue() == SHOWN + "\n\\x1b"
    assert not stream.isatty()
    with pytest.raises(TypeError, match="takes a text, not bytes"):
        stream.write(b"")


def log(text):
    set_up_logging(0)
    logging.getLogger("fpgapipe.test").warning("left out: %s", text)


WAYS = {
    "print": print,
    "echo": click.echo,
    "an error": lambda text: click.echo(f"error: {text}", err=True),
    "a usage error": lambda text: click.UsageError(text).show(),
    "a table": lambda text: Table(f"name|{text}", [[text, 1]], text).print(),
    "JSON": lambda text: print_json({text: text}),
    "a log": log,
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_around(way, capsys, monkeypatch):
    logger = logging.getLogger("fpgapipe")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    with escaping():
        WAYS[way](EVIL)
    out, err = capsys.readouterr()
    assert not OBEYED & set(out + err)
    if way == "JSON":
        assert json.loads(out) == {EVIL: EVIL}
    else:
        assert SHOWN[SHOWN.index("]0;") :] in out + err  # click drops colours before


ON_TERMINAL = """
import logging, sys
from fpgapipe.host.terminal.console import Table, progress, set_up_logging
from fpgapipe.host.terminal.escapes import escaping
evil = {evil!r} + "[link=http://x.y]z[/link]"
set_up_logging(0)
with escaping():
    Table("name|" + evil, [[evil, 1]], evil).print()
    with progress() as display:
        display.add_task(evil, total=2)
        logging.getLogger("fpgapipe.test").warning("left out: %s", evil)
        print(evil)
        display.count(1, 2)
    assert sys.stdout.isatty()
"""


def test_what_rich_draws():
    """On a terminal, rich draws with escape sequences of its own, and none of others."""
    ours, theirs = pty.openpty()
    script = ON_TERMINAL.format(evil=EVIL)
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "300"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        drawn = b""
        while select.select([ours], [], [], 30)[0]:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:
                break
            if not part:
                break
            drawn += part
    os.close(ours)
    text = drawn.decode()
    assert process.returncode == 0, text
    assert r"\x1b]0;title" in text
    for sequence in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\x08", "\u202e", "\x7f", "\u2028"):
        assert sequence not in text, repr(sequence)
    assert "\x1b[2K" in text  # rich itself draws
    assert r"\x1b[2K" not in text


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "a\nerror: forged.onnx"),
        ("run", "a\nerror: forged\tb"),
        ("plan", "lenet5", "--cluster", "a\nerror: forged.yaml"),
        ("plan", "lenet5", "--cluster=a\nerror: forged.yaml"),
        ("plan", "lenet5", "--board", "u280", "--devices", "a\nerror: forged"),
    ],
)
def test_a_path_with_a_newline_is_no_further_line_of_an_error(cli, words):
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert r"a\nerror: forged" in err
    assert not [line for line in err.splitlines() if line.startswith("error: forged")]
