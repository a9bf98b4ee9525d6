"""Plants small faults in the source, one after another, and says whether the tests find them.

It draws files of each folder by chance, and changes one place of each: a comparison, a sum, a
product, a condition or a number, or it takes the larger of two for the smaller. The tests that
import the file run first, those that import it most often before the others, and then those of its
folder, until one fails or the time is over. The test that fails must pass without the change. A
change is thus *found*, or *not found* by any of these tests, or *undecided* at the end of its time.

Files are changed where they are and put back, also after Ctrl-C or SIGTERM, so run it in a clone of
its own, with nothing uncommitted. Prints one JSON object; ``--log FILE`` has a line for each change
as soon as it is known, and a run with the same file goes on where it ended. ``--again FILE`` runs,
for each change that such a file calls found, the test that found it before the others, which says
whether changed tests find no less. ``--folders`` takes some of the folders, ``--count N`` changes
in each, ``--seed N`` draws others, ``--limit-s N`` seconds each.
"""

import argparse
import ast
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("hw/rtl", "lowering", "partition")
TESTS = {"hw/rtl": ("rtl", "sim_tb"), "lowering": ("lowering",), "partition": ("partition",)}
"""Folders of tests of each folder of source."""

COMPARED = {"Lt": "<=", "LtE": "<", "Gt": ">=", "GtE": ">", "Eq": "!=", "NotEq": "=="}
COMPUTED = {"Add": "-", "Sub": "+", "Mult": "+", "FloorDiv": "*"}
LEAST_LINES = 20
"""Lines of a file below which nothing of it is drawn."""


@dataclass(frozen=True)
class Change:
    """A change of a file.

    Attributes
    ----------
    path : str
    line : int
    begin, end : int
        Characters of the file that are replaced.
    text : str
        What stands there then.
    """

    path: str
    line: int
    begin: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The changed text of the file."""
        return source[: self.begin] + self.text + source[self.end :]


def changes_of(path: Path) -> Iterator[Change]:
    """All changes of a file that are drawn from."""
    source = path.read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        whole = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(whole.encode()[:column].decode())

    def span(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    def change(node: ast.expr, begin: int, end: int, text: str) -> Change:
        return Change(str(path.relative_to(ROOT)), node.lineno, begin, end, text)

    def between(node: ast.expr, left: ast.expr, right: ast.expr, to: str) -> Change:
        """Another operator between two operands, whose brackets stay."""
        begin, end = span(left)[1], span(right)[0]
        kept = source[begin:end]
        signs = kept.strip("() \n\\")
        return change(node, begin, end, kept.replace(signs, f" {to} ", 1))

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            if to := COMPARED.get(type(node.ops[0]).__name__):
                yield between(node, node.left, node.comparators[0], to)
        elif isinstance(node, ast.BinOp) and (to := COMPUTED.get(type(node.op).__name__)):
            # Sums of texts and lists are errors with another operator, which any test finds.
            if not any(
                isinstance(each, ast.List | ast.Tuple | ast.JoinedStr)
                for each in (node.left, node.right)
            ):
                yield between(node, node.left, node.right, to)
        elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
            to = "or" if isinstance(node.op, ast.And) else "and"
            yield between(node, node.values[0], node.values[1], to)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield change(node, span(node)[0], span(node.operand)[0], "")
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.value < 64:
            yield change(node, *span(node), str(node.value + 1))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("min", "max"):
            to = "max" if ast.unparse(node.func) == "min" else "min"
            yield change(node, *span(node.func), to)


def drawn(folder: str, count: int, seed: int) -> list[Change]:
    """Changes of a folder, no two of them of one file as long as there are other files."""
    draw = random.Random(f"{folder} {seed}")
    files = [each for each in sorted((ROOT / folder).rglob("*.py"))
             if len(each.read_text().splitlines()) >= LEAST_LINES]  # fmt: skip
    draw.shuffle(files)
    found: list[Change] = []
    while len(found) < count:
        for path in files:
            if len(found) < count and (choices := [*changes_of(path)]):
                each = draw.choice(choices)
                changed = each.applied(path.read_text())
                try:
                    ast.parse(changed)
                except SyntaxError:
                    continue
                if each not in found:
                    found.append(each)
    return found


def tests_of(change: Change, folder: str) -> list[str]:
    """Files of tests, those that import the changed file most often first."""
    module = Path(change.path).with_suffix("").parts
    name = "fpgapipe." + ".".join(module)
    own, rest = [], []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        count = text.count(name) + text.count(f"import {module[-1]}")
        if count or module[-1] in path.stem:
            own.append((module[-1] not in path.stem, -count, str(path.relative_to(ROOT))))
        elif path.relative_to(ROOT / "tests").parts[0] in TESTS[folder]:
            rest.append(str(path.relative_to(ROOT)))
    near = [each for each in rest if module[-2] in each]
    others = [each for each in rest if each not in near]
    return [*(path for *_, path in sorted(own)), *near, *others]


def verdict(tests: list[str], limit_s: float) -> tuple[str, str]:
    """Whether the tests find a change, and the test that does."""
    command = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--no-header", "--tb=no"),
        *("-m", "not slow", "-p", "no:cacheprovider", "-p", "no:randomly", *tests),
    ]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return "undecided", ""
    lines = [each for each in done.stdout.splitlines() if each.startswith(("FAILED ", "ERROR "))]
    if done.returncode not in (0, 5):
        return "found", lines[0].split(" - ")[0].split(" ", 1)[1] if lines else tests[0]
    return "not found", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folders", nargs="+", default=FOLDERS, choices=FOLDERS)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=300)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--again", type=Path)
    given = parser.parse_args()
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
        sys.exit("there are uncommitted changes, which could be lost: run it in a clone of its own")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rows: list[dict[str, object]] = []
    if given.log and given.log.exists():
        rows = [json.loads(line) for line in given.log.read_text().splitlines()]
    earlier = None
    if given.again:
        earlier = [json.loads(line) for line in given.again.read_text().splitlines()]
        earlier = [each for each in earlier if each["state"] == "found"]
    wanted = (
        [(each["folder"], Change(**each["change"]), each) for each in earlier]
        if earlier is not None
        else [(f, c, None) for f in given.folders for c in drawn(f, given.count, given.seed)]
    )
    known = {json.dumps(each["change"]) for each in rows}
    for number, (folder, change, before) in enumerate(wanted, 1):
        if json.dumps(asdict(change)) in known:
            continue
        path = ROOT / change.path
        source, began = path.read_text(), time.monotonic()
        tests = tests_of(change, folder)
        if before and before["test"].startswith("tests/"):
            first = before["test"].split("::")[0]
            tests = [before["test"], first, *(each for each in tests if each != first)]
            tests = [each for each in tests if (ROOT / each.split("::")[0]).exists()]
        try:
            path.write_text(change.applied(source))
            state, test = verdict(tests[:1], given.limit_s) if before else ("", "")
            if state != "found":
                state, test = verdict(tests, given.limit_s)
        finally:
            path.write_text(source)
        if state == "found" and verdict([test], given.limit_s)[0] != "not found":
            sys.exit(f"{test} fails without a change, too: mend that first, or make the setup anew")
        was = source[change.begin : change.end].strip()
        row = {
            "folder": folder, "change": asdict(change), "was": was, "state": state, "test": test,
            "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
        rows.append(row)
        print(
            f"{number}/{len(wanted)} {change.path}:{change.line}: {was!r} -> {change.text!r}: "
            f"{state} {test}",
            file=sys.stderr,
            flush=True,
        )
        if given.log:
            with given.log.open("a") as file:
                file.write(json.dumps(row) + "\n")
    counts = {
        folder: {
            state: sum((each["folder"], each["state"]) == (folder, state) for each in rows)
            for state in ("found", "not found", "undecided")
        }
        for folder in FOLDERS
    }
    print(json.dumps({"counts": counts, "changes": rows}, indent=1))


if __name__ == "__main__":
    main()
