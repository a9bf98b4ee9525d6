"""Runs Tcl text with the vendor's commands replaced, and returns the calls in their order.

There are three ways: tclsh, the Tcl in Python's tkinter, and a small interpreter in Python, which
knows as much of the language as the packages use and is there on every machine. A replaced command
returns ``@`` and the index of its call; a command that is not in the list is an error, as it would
be in the vendor's tools.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path


class TclError(Exception):
    """The text is no Tcl of the subset, or calls an unknown command."""


PRELUDE = """
set calls {}
proc vendor {name args} {
    global calls
    lappend calls [list $name {*}$args]
    return @[expr {[llength $calls] - 1}]
}
rename file real_file
rename source real_source
foreach name {%s} {
    if {[string match *::* $name]} { namespace eval [namespace qualifiers ::$name] {} }
    interp alias {} ::$name {} vendor $name
}
"""


def interpreters():
    """Names of the ways that this machine has."""
    found = ["python"]
    if shutil.which("tclsh"):
        found.append("tclsh")
    try:
        import tkinter

        tkinter.Tcl()
    except Exception:  # Debian's python3 comes without it
        return found
    return [*found, "tkinter"]


def run_tcl(text, commands, interpreter="python"):
    """Return the calls of `commands` in a text, each a list of words."""
    if interpreter == "python":
        return Subset(commands).run(text)
    prelude = PRELUDE % " ".join(commands)
    if interpreter == "tkinter":
        import tkinter

        tcl = tkinter.Tcl()
        try:
            tcl.eval(prelude)
            tcl.eval(text)
        except tkinter.TclError as error:
            raise TclError(str(error)) from None
        split = tcl.splitlist
        return [list(split(each)) for each in split(tcl.eval("set calls"))]
    # Words are printed one in a line, with their line breaks replaced; a number comes before each.
    tail = """
foreach each $calls {
    puts [llength $each]
    foreach word $each { puts [string map [list \\n \\x01] $word] }
}
"""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.tcl")
        script.write_text(text)
        guarded = (
            f"if {{[catch {{real_source {script}}} message]}} {{ puts stderr $message; exit 1 }}"
        )
        done = subprocess.run(
            ["tclsh"],
            input=f"{prelude}\n{guarded}\n{tail}",
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    if done.returncode:
        raise TclError(done.stderr.strip())
    lines = iter(done.stdout.splitlines())
    return [[next(lines).replace("\x01", "\n") for _ in range(int(count))] for count in lines]


class Subset:
    """Commands with words that are plain, in braces, in brackets, or variables."""

    def __init__(self, commands):
        self.commands = set(commands)
        self.calls = []
        self.variables = {}

    def run(self, text):
        self.text, self.at = text, 0
        while self.at < len(text):
            self._command(top=True)
        return self.calls

    def _command(self, *, top):
        """Run one command, and return its result."""
        words = []
        while True:
            while self._peek() in (" ", "\t") or self.text.startswith("\\\n", self.at):
                self.at += 2 if self._peek() == "\\" else 1
            here = self._peek()
            if here == "#" and not words:
                while self._peek() not in ("\n", ""):
                    self.at += 1
                here = self._peek()
            if here in ("\n", ";", ""):
                if not top:
                    raise TclError("missing close-bracket")
                self.at += 1
                return self._call(words)
            if here == "]" and not top:
                self.at += 1
                return self._call(words)
            words.append(self._word(top=top))

    def _peek(self):
        return self.text[self.at] if self.at < len(self.text) else ""

    def _word(self, *, top):
        if self._peek() == "{":
            return self._braced()
        if self._peek() in "\"'":
            raise TclError("quotes are not in the subset")
        parts = []
        while (here := self._peek()) not in (" ", "\t", "\n", ";", "") and not (
            here == "]" and not top
        ):
            if here == "[":
                self.at += 1
                parts.append(self._command(top=False))
            elif here == "$":
                begin = self.at = self.at + 1
                while self._peek().isalnum() or self._peek() == "_":
                    self.at += 1
                name = self.text[begin : self.at]
                if name not in self.variables:
                    raise TclError(f'can\'t read "{name}": no such variable')
                parts.append(self.variables[name])
            elif here == "\\":
                raise TclError("backslashes are not in the subset")
            else:
                parts.append(here)
                self.at += 1
        return "".join(parts)

    def _braced(self):
        begin, depth = self.at + 1, 0
        while True:
            here = self._peek()
            if not here:
                raise TclError("missing close-brace")
            depth += (here == "{") - (here == "}")
            self.at += 1
            if not depth:
                break
        if self._peek() not in (" ", "\t", "\n", ";", "", "]"):
            raise TclError("extra characters after close-brace")
        return self.text[begin : self.at - 1]

    def _call(self, words):
        if not words:
            return ""
        name, *arguments = words
        if name == "set":
            if len(arguments) != 2:
                raise TclError("set needs a name and a value")
            self.variables[arguments[0]] = arguments[1]
            return arguments[1]
        if name == "list":
            return joined(arguments)
        if name not in self.commands:
            raise TclError(f'invalid command name "{name}"')
        self.calls.append(list(words))
        return f"@{len(self.calls) - 1}"


def joined(words):
    """A list of Tcl, quoted as Tcl does it for the words of packages."""
    return " ".join(
        each if each and not set(each) & set(" {}[]$;\n") else f"{{{each}}}" for each in words
    )


def split_list(text):
    """The words of a list of Tcl."""
    words, at = [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        if text[at] == "{":
            depth, begin = 0, at + 1
            while True:
                depth += (text[at] == "{") - (text[at] == "}")
                at += 1
                if not depth:
                    break
            words.append(text[begin : at - 1])
        else:
            begin = at
            while at < len(text) and not text[at].isspace():
                at += 1
            words.append(text[begin:at])
    return words
