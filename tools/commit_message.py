"""Checks the form of a commit's message; `.pre-commit-config.yaml` runs it.

``python3 tools/commit_message.py FILE`` reads the message. What is wrong is printed, and the exit
code is 1; ``git commit --no-verify`` commits all the same.
"""

import re
import subprocess
import sys
from pathlib import Path

SUBJECT = re.compile(r"[\w.:/-]+( [\w.:/-]+)*(, [\w.:/ -]+)*: .+\.")
MOST_LINES = 20
"""Changed lines, added and removed, that a subject may say all about."""


def faults_of(message: str, changed_lines: int) -> list[str]:
    """What is wrong with a message.

    Parameters
    ----------
    message : str
    changed_lines : int
        Lines that the commit adds and removes.
    """
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject, rest = (lines[0], lines[1:]) if lines else ("", [])
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return []
    found = []
    if not SUBJECT.fullmatch(subject):
        found.append("the subject should read like 'hw.rtl.systolic: keep a word that waits.'")
    if rest and rest[0].strip():
        found.append("the line below the subject should be empty")
    if changed_lines > MOST_LINES and not any(line.strip() for line in rest):
        found.append(f"{changed_lines} lines change: a body should say why")
    return found


def changed_lines() -> int:
    """Lines that the staged changes add and remove."""
    command = ["git", "diff", "--cached", "--numstat"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = (part for line in text.splitlines() for part in line.split("\t")[:2])
    return sum(int(number) for number in numbers if number.isdecimal())


def main() -> int:
    """Check the message in the file that is named; returns the exit code."""
    message = Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace")
    found = faults_of(message, changed_lines())
    for fault in found:
        print(f"commit message: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
