"""Counts the lines of code of each folder of the package: no blank lines, comments or docstrings.

Prints one JSON object. Lines of a text that is no docstring count, as do those of one statement.
"""

import argparse
import ast
import io
import json
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("boards", "host", "hw", "lowering", "network", "partition", "sim_tb")
NO_CODE = {
    tokenize.COMMENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.INDENT, tokenize.NEWLINE,
    tokenize.NL,
}  # fmt: skip
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> int:
    """Lines of code of a file."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docs.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def main() -> None:
    """Print the numbers."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    found = {
        folder: sum(
            code_lines(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py")
        )
        for folder in FOLDERS
    }
    print(json.dumps({"folders": found, "all": sum(found.values())}, indent=1))


if __name__ == "__main__":
    main()
