"""A safe reader of YAML: plain values with their line numbers, and all faults of a file at once.

The reader accepts only mappings, lists, numbers and words, which is enough for a table of numbers.
Tags, anchors, aliases and several documents are faults, so a file can neither run code nor expand
when it is read. Scalars follow YAML 1.2 and not PyYAML's 1.1: ``1e9`` is a number, ``no`` and
``on`` are words, ``1:30`` is not a sexagesimal number, and ``010`` is not an octal one.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fpgapipe.errors import FileError, shown
from fpgapipe.files import read_text

MAX_FILE_BYTES = 128 * 1024
"""Largest size of a file: PyYAML reads about 0.2 MB/s, and a board needs 5 kB."""

MAX_DEPTH = 16
"""Deepest nesting of lists and mappings; a board needs 4."""

MAX_KEY = 100
"""Largest number of characters of a key."""

MAX_DIGITS = 40
"""Largest number of characters of a number. No quantity here needs more, and Python itself refuses
more than about 4,300."""

FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C, which takes a tenth of the time, where PyYAML has it."""

MAX_FAULTS = 50
"""Largest number of faults that are shown for one file."""

Loc = tuple[str | int, ...]
"""Location of a value: the keys and list indices that lead to it from the top of the file."""

_NUMBER = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.?(nan|inf|infinity)", re.IGNORECASE)
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


@dataclass(frozen=True)
class Fault:
    """One fault of a file: its location, and a sentence that says what to correct."""

    loc: Loc
    sentence: str
    line: int | None = None


@dataclass
class Document:
    """A file's content: plain values, the line of each, and the faults found so far."""

    path: Path
    value: Any = None
    lines: dict[Loc, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def line_of(self, loc: Loc) -> int | None:
        """Return the line of a value, or of the innermost enclosing value that the file has."""
        for length in range(len(loc), -1, -1):
            if loc[:length] in self.lines:
                return self.lines[loc[:length]]
        return None

    def add(self, faults: list[Fault]) -> None:
        """Add faults, except those inside a value that already has one."""
        known = {fault.loc for fault in self.faults if fault.loc}
        self.faults += [
            fault
            for fault in faults
            if not any(fault.loc[:length] in known for length in range(1, len(fault.loc) + 1))
        ]

    def raise_faults(self) -> None:
        """Raise one `FileError` with all faults, in the order of the file's lines.

        Raises
        ------
        FileError
            If there are any faults.
        """
        if not self.faults:
            return
        told = []
        for fault in self.faults:
            line = fault.line or (self.line_of(fault.loc) if fault.loc else None)
            where = f"line {line}: " if line else ""
            key = f"{dotted(fault.loc)}: " if fault.loc else ""
            told.append((line or 0, f"{where}{key}{fault.sentence}"))
        told.sort(key=lambda each: each[0])
        sentences = [sentence for _, sentence in told]
        if len(sentences) > MAX_FAULTS:
            more = len(sentences) - MAX_FAULTS
            sentences = [*sentences[:MAX_FAULTS], f"and {more} faults more"]
        raise FileError(self.path, sentences)


def dotted(loc: Loc) -> str:
    """Return a location as text, such as ``resources.dies[0].dsp``."""
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text if len(text) <= 120 else text[:117] + "..."


def read_yaml(path: Path) -> Document:
    """Read a file into plain values.

    Parameters
    ----------
    path : Path
        Path of the file, as the user gave it.

    Returns
    -------
    Document
        The file's content. Its ``faults`` are those that leave the rest readable; they should be
        shown to the user together with the faults of the schema.

    Raises
    ------
    FileError
        If the file cannot be read, or is not YAML.
    """
    text = read_text(path, MAX_FILE_BYTES)
    document = Document(path)
    try:
        _Builder(document, yaml.parse(text, Loader=FAST)).build()
        if not document.faults:
            return _not_empty(document)
    except (yaml.YAMLError, ValueError, OverflowError):
        pass  # what is wrong is said by PyYAML's own parser, whatever is installed
    document = Document(path)
    try:
        _Builder(document, yaml.parse(text, Loader=yaml.SafeLoader)).build()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise FileError(path, [f"{line}not readable as YAML: {error.problem}"]) from None
    except yaml.reader.ReaderError as error:
        line = f"line {text.count(chr(10), 0, error.position) + 1}: "
        what = f"{line}must be text, without the control character {chr(_code(error))!r}"
        raise FileError(path, [what]) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML does not catch the errors of chr() and int() for escapes and directives that are
        # out of range.
        raise FileError(path, [f"not readable as YAML: {shown(str(error))}"]) from None
    return document if document.faults else _not_empty(document)


def _not_empty(document: Document) -> Document:
    if document.value is None:
        what = "must hold a mapping of keys to values, but holds nothing"
        raise FileError(document.path, [what])
    return document


def _code(error: yaml.reader.ReaderError) -> int:
    character = error.character
    return character if isinstance(character, int) else ord(character)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class _TooDeepError(Exception):
    """Ends the reading of a file that is nested too deeply."""


class _Builder:
    """Builds a document from YAML events."""

    def __init__(self, document: Document, events: Iterator[Any]) -> None:
        self.document = document
        self.events = events

    def build(self) -> None:
        """Read the only document of the file."""
        num_documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    line = _line(event)
                    self._fault((), "must be one YAML document; '---' begins another", line)
                    return
            elif isinstance(event, yaml.NodeEvent):
                try:
                    self.document.value = self._node(event, ())
                except _TooDeepError:
                    return

    def _node(self, event: Any, loc: Loc) -> Any:
        line = _line(event)
        self.document.lines.setdefault(loc, line)
        if isinstance(event, yaml.AliasEvent):
            self._fault(loc, f"must be written out; the alias '*{event.anchor}' is not read", line)
            return None
        if event.tag is not None:
            self._fault(loc, f"must have no tag, such as {shown(event.tag)}", line)
        if event.anchor is not None:
            self._fault(loc, f"must have no anchor, such as '&{event.anchor}'", line)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, loc, line)
        # The limit keeps this recursion shallow, and that of all code that reads the values.
        if len(loc) >= MAX_DEPTH:
            self._fault(loc, f"must be nested at most {MAX_DEPTH} deep", line)
            raise _TooDeepError
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(item := next(self.events), yaml.SequenceEndEvent):
                items.append(self._node(item, (*loc, len(items))))
            return items
        return self._mapping(loc)

    def _mapping(self, loc: Loc) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = _line(event)
            key = event.value if isinstance(event, yaml.ScalarEvent) else None
            if key is None or not key.isprintable() or not 0 < len(key) <= MAX_KEY:
                found = "a list, a mapping or an alias" if key is None else shown(key)
                self._fault(loc, f"a key must be a word, not {found}", line)
                self._node(event, (*loc, "?"))
                self._node(next(self.events), (*loc, "?"))
                continue
            place = (*loc, key)
            if key in mapping:
                first = self.document.lines[place]
                self._fault(place, f"must be given once, and was on line {first}", line)
                self._node(next(self.events), place)
                continue
            if event.tag is not None or event.anchor is not None:
                self._fault(place, "a key must have no tag and no anchor", line)
            self.document.lines[place] = line
            mapping[key] = self._node(next(self.events), place)
        return mapping

    def _scalar(self, event: Any, loc: Loc, line: int) -> Any:
        text = event.value
        if any("\ud800" <= character <= "\udfff" for character in text):
            self._fault(loc, "must be text, without half of a surrogate pair", line)
            return None
        if not event.implicit[0]:  # quoted, so a string
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _NOT_FINITE.fullmatch(text):
            self._fault(loc, f"must be a finite number, not {text}", line)
            return None
        if not _NUMBER.fullmatch(text):
            return text
        if len(text) > MAX_DIGITS:
            self._fault(loc, f"must have at most {MAX_DIGITS} digits, not {len(text)}", line)
            return None
        plain = text.replace("_", "")
        if plain.lstrip("-+").isdigit():
            if plain.lstrip("-+").startswith("0") and int(plain) != 0:
                self._fault(loc, f"must not begin with 0, as {text} does: is it octal?", line)
                return None
            return int(plain)
        value = float(plain)
        if not math.isfinite(value):
            self._fault(loc, f"must be a finite number, not {text}", line)
            return None
        return value

    def _fault(self, loc: Loc, sentence: str, line: int) -> None:
        self.document.faults.append(Fault(loc, sentence, line))
