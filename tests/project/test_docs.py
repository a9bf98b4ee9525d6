"""The pages: their links, command lines, options and programs."""

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
import sys
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from cases.command_cases import commands_of
from plugin_cases import forgotten

from fpgapipe.host.cli.main import cli, main

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    + list((ROOT / "docs").rglob("*.md"))
    + list((ROOT / "examples").rglob("*.md"))
)
SLOW = {"api.md", "tutorial.md"}
"""Pages whose programs take more than the normal suite has time for."""

FOREIGN = {"--config-settings"}
"""Options of other programs that pages mention."""

page = pytest.mark.parametrize(
    "path", PAGES, ids=lambda path: path.relative_to(ROOT).with_suffix("").as_posix()
)


@dataclass(frozen=True)
class Block:
    """A fenced block: the words behind the fence, its first line's number, its text.

    ``python run`` and ``sh run`` are run, in order, with what the blocks before left behind, those
    with ``slow`` in the whole suite alone;
    ``python file=NAME`` (or ``yaml``) becomes a file, to which ``more=NAME`` adds. Of ``sh`` those
    lines are run that begin with ``fpgapipe`` or ``pip install ./``. ``console`` is commands and
    lines that they print; of ``console refused``, errors.
    """

    words: list[str]
    line: int
    text: str

    @property
    def language(self):
        return self.words[0] if self.words else ""

    def write(self, folder):
        """Write or continue the file that the block is of, if it is of one."""
        for word in self.words:
            key, _, name = word.partition("=")
            if key in ("file", "more"):
                (folder / name).parent.mkdir(exist_ok=True)
                with (folder / name).open("w" if key == "file" else "a") as file:
                    file.write(self.text)


def blocks(text):
    found, words, begin, fence = [], None, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r" *(```+)(.*)$", line)
        if words is None and mark:
            words, begin, fence, lines = mark[2].split(), number + 1, mark[1], []
        elif mark and mark[1] == fence and not mark[2]:
            found.append(Block(words, begin, "\n".join(lines) + "\n"))
            words = None
        elif words is not None:
            lines.append(line)
    assert words is None, f"a block that begins in line {begin} does not end"
    return found


def prose(text):
    """All but the fenced blocks."""
    return re.sub(r"^ *(```+).*?^ *\1$", "", text, flags=re.M | re.S)


def headings(text):
    """Anchors as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@page
def test_links_lead_somewhere(path):
    text = path.read_text()
    links = re.findall(r"\]\(([^)#\s]*)(#[^)\s]+)?\)", prose(text))
    pictures = [(name, "") for name in re.findall(r'(?:src|href)="([^"]+)"', prose(text))]
    for target, anchor in links + pictures:
        if target.startswith(("http://", "https://")):
            continue
        there = path.parent / target if target else path
        assert there.exists(), f"{path.name} links to {target}, which is not there"
        if anchor and there.suffix == ".md":
            assert anchor[1:] in headings(there.read_text()), f"{path.name}: no {target}{anchor}"


@page
def test_files_that_are_named_exist(path):
    """Names in code that begin with a folder of the repository."""
    if path.name == "CHANGELOG.md":
        return
    folders = "hw|host|lowering|network|partition|boards|sim_tb|tests|bench|docs|examples|tools"
    for name in re.findall(rf"`((?:{folders})/[\w./*-]+)`", prose(path.read_text())):
        assert list(ROOT.glob(name.rstrip("/"))), f"{path.name} names {name}, which is not there"


def command_lines(block):
    """Command lines of a block: ``fpgapipe ...`` with its continuation, comments left out."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if command := re.fullmatch(r"\s*(?:\$ )?(?:[A-Z_]+=\S* )*fpgapipe( .*)?", line):
            words = shlex.split(command[1] or "", comments=True)
            ends = [i for i, word in enumerate(words) if word in ("|", ">", "2>", "&&", "&")]
            yield words[: min(ends, default=len(words))]


def named_command(words):
    """The (sub-)command that the words name, and those that are left."""
    command = cli
    while words and isinstance(command, click.Group) and words[0] in commands_of(command):
        command, words = commands_of(command)[words[0]], words[1:]
    return command, words


def parse(words):
    """Let click parse a command line, without running the command."""
    command, rest = named_command(words)
    if "--help" not in rest and "--version" not in rest:
        command.make_context(command.name, list(rest)).close()
    return command


def options_of(command):
    found = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return found | {"--help", "-h"}


def all_options(command):
    inner = commands_of(command).values() if isinstance(command, click.Group) else ()
    return options_of(command).union(*(all_options(each) for each in inner))


@page
def test_command_lines_can_be_parsed(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for block in blocks(path.read_text()):
        if "pip install ./" in block.text:
            continue  # it adds names that commands take, so that they can only be run
        if block.language in ("", "sh", "console"):
            for words in command_lines(block):
                try:
                    parse(words)
                except click.ClickException as error:
                    pytest.fail(f"{path.name}: fpgapipe {' '.join(words)}: {error.message}")


@page
def test_commands_in_sentences_exist(path):
    for line in re.findall(r"`fpgapipe( [^`\n]*)?`", prose(path.read_text())):
        words = [word.strip("[]") for word in line.split()]
        command, rest = named_command(words)
        assert command is not cli or not rest or rest[0].startswith("-"), f"{path.name}: {line}"
        wrong = {word for word in rest if word.startswith("-")} - options_of(command)
        assert not wrong, f"{path.name}: fpgapipe{line} has no {', '.join(wrong)}"


@page
def test_options_in_sentences_exist(path):
    known = all_options(cli) | FOREIGN
    if path.name == "CONTRIBUTING.md":
        return
    named = set(re.findall(r"`(--[a-z0-9-]+)[ =\]|A-Z0-9]*[^`]*`", prose(path.read_text())))
    assert not named - known, f"{path.name}: no command has {', '.join(sorted(named - known))}"


def output_of(words):
    """Exit code of a command, and what it prints."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(words)
    said.seek(0)
    return code, said.read()


def installed(source):
    """Folder into which a package was installed as pip does it: its wheel, unpacked."""
    command = "from setuptools.build_meta import build_wheel; print(build_wheel('..'))"
    made = subprocess.run(
        [sys.executable, "-c", command], cwd=source, check=True, capture_output=True, text=True
    )
    place = source.with_name(f"{source.name}.installed")
    with zipfile.ZipFile(source.parent / made.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(place)
    return place


def run_page(path, folder, monkeypatch, *, slow):
    """Run what a page says is run, in a folder of its own, with or without what is slow."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    warnings.simplefilter("default")  # other libraries' are not the page's
    names = {"__name__": "__main__"}
    for block in blocks(path.read_text()):
        block.write(folder)
        if "run" not in block.words or ("slow" in block.words and not slow):
            continue
        if block.language == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
            exec(code, names)
        for source in re.findall(r"^pip install \./(\S+)$", block.text, re.M):
            monkeypatch.syspath_prepend(str(installed(folder / source)))
        for words in command_lines(block):
            if block.language == "sh":
                code, printed = output_of(words)
                assert code == 0, f"fpgapipe {' '.join(words)}:\n{printed}"


def transcript(block):
    """Commands of a ``console`` block, each with the lines below it."""
    for part in re.split(r"^\$ fpgapipe ", block.text, flags=re.M)[1:]:
        command, _, lines = part.partition("\n")
        yield shlex.split(command), lines


@page
def test_output_is_what_the_command_prints(path, tmp_path, monkeypatch):
    """All lines of a block are printed, in this order, or an error that says the same words."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    for block in blocks(path.read_text()):
        if block.language != "console":
            continue
        for words, wanted in transcript(block):
            code, printed = output_of(words)
            if "refused" in block.words:
                assert (code, printed.split()) == (2, wanted.split()), shlex.join(words)
            else:
                assert code == 0
                lines = iter(printed.splitlines())
                for line in wanted.splitlines():
                    assert line in lines, f"{shlex.join(words)} prints no {line!r}"


RUNNABLE = [path for path in PAGES if re.search(r"^ *```\w+.* run\b", path.read_text(), re.M)]
HAVE_SLOW = [path for path in PAGES if re.search(r"^ *```\w+ run slow$", path.read_text(), re.M)]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.name in SLOW)) for path in RUNNABLE],
    ids=lambda path: path.stem,
)
def test_programs_run(path, tmp_path, monkeypatch):
    if "from torchvision" in path.read_text():
        if importlib.util.find_spec("torchvision") is None:
            pytest.skip("torchvision is not installed")
        monkeypatch.syspath_prepend(str(ROOT / "bench"))
        importlib.import_module("architectures").torchvision_models()
    with forgotten(tmp_path):
        run_page(path, tmp_path, monkeypatch, slow=path.name in SLOW)


@pytest.mark.slow
@pytest.mark.parametrize("path", HAVE_SLOW, ids=lambda path: path.stem)
def test_all_programs_run(path, tmp_path, monkeypatch):
    with forgotten(tmp_path):
        run_page(path, tmp_path, monkeypatch, slow=True)
