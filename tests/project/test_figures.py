"""Files of figures: each says where it comes from, and a page refers to it."""

import json
import re
import runpy
import shutil
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = sorted((ROOT / "docs/figures").iterdir())


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.name)
def test_says_where_it_comes_from(path):
    figure = json.loads(path.read_text())
    name = path.relative_to(ROOT).as_posix()
    bench = ROOT / figure["bench"]
    assert name in bench.read_text(), f"{figure['bench']} does not write {name}"
    assert re.fullmatch(r"[0-9a-f]{7,40}", figure["commit"]), "made from files of no commit"
    assert "machine" in figure or date.fromisoformat(figure["date"])
    assert figure["note"]
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if f"`{name}`" in page.read_text()]
    assert pages, f"no page refers to {name}"


@pytest.mark.skipif(
    not (ROOT / ".git").exists() or not shutil.which("git"), reason="needs the repository's git"
)
def test_a_bench_writes_where_it_comes_from(tmp_path):
    write = runpy.run_path(str(ROOT / "bench/figure.py"))["write_figure"]
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    write(tmp_path / "rows.json", "bench/bench_x.py", "Rows.", {"rows": rows, "one": [1, 2]})
    text = (tmp_path / "rows.json").read_text()
    figure = json.loads(text)
    assert (figure["bench"], figure["note"], figure["rows"]) == ("bench/bench_x.py", "Rows.", rows)
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", figure["commit"])
    assert date.fromisoformat(figure["date"])
    assert figure["machine"]
    assert '\n  {"a": 1, "b": "x"},\n' in text, "a row is a line"


def test_the_comparison_is_made_from_its_file():
    bench = runpy.run_path(str(ROOT / "bench/comparison_page.py"))
    figure = json.loads((ROOT / bench["FIGURES"]).read_text())
    assert bench["page"](figure) == (ROOT / "docs/comparison.md").read_text()


def test_tables_are_made_from_their_files():
    tables = runpy.run_path(str(ROOT / "bench/tables.py"))
    for page in {table.page for table in tables["TABLES"]}:
        assert tables["written"](page) == (ROOT / "docs" / page).read_text(), "run bench/tables.py"


NUMBER = re.compile(r"[-+~<>≤]?\d[\d,.]*( ?(%|x|s|ms|MHz|MB|GiB|KiB|/.*))?")
TABLE = re.compile(r"^\|.*\n\|[-|: ]+\n(?:\|.*\n?)+", re.MULTILINE)

FACTS = {
    ("links.md", "PHY"),
    ("networks.md", "name"),
    ("registers.md", "register"),
    ("vector.md", "operator"),
    ("vector.md", "function"),
}
"""Tables of numbers that nobody measures: of standards, formats and operators, and of errors that
tests/hls_models/test_function.py holds."""


def unbacked(page, text, made):
    """Headings of tables of numbers made from no file, in sections that name no bench."""
    found = []
    for table in TABLE.finditer(text):
        heading, _, *rows = table.group().splitlines()
        cells = [cell.strip(" *") for row in rows for cell in row.strip("|").split("|")]
        columns = [cell.strip() for cell in heading.strip("|").split("|")]
        if sum(NUMBER.fullmatch(cell) is not None for cell in cells) < 4:
            continue
        above = text[: table.start()].rpartition("\n#")[2]
        below = text[table.end() :].partition("\n#")[0]
        benches = re.findall(r"`(bench/\w+\.py)", above + below)
        named = any((ROOT / each).is_file() for each in benches)
        if not (named or tuple(columns) in made or (page, columns[0]) in FACTS):
            found.append(heading)
    return found


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_tables_of_numbers_have_a_file_or_a_bench(page):
    tables = runpy.run_path(str(ROOT / "bench/tables.py"))["TABLES"]
    made = {table.heading for table in tables if table.page == page.name}
    if page.name == "comparison.md":  # made as a whole
        return
    text = page.read_text()
    assert not unbacked(page.name, text, made)


def test_a_table_without_a_bench_is_seen():
    table = "| network | cycles |\n|---|---|\n" + 4 * "| one | 1,000 |\n"
    assert unbacked("x.md", f"# Speed\n\nMeasured:\n\n{table}", set()) == ["| network | cycles |"]
    assert not unbacked("x.md", f"# Speed\n\nBy `bench/bench_core.py`:\n\n{table}", set())
    assert not unbacked("x.md", table, {("network", "cycles")})
    assert unbacked("x.md", f"# A\n\n`bench/bench_core.py`\n\n# B\n\n{table}", set())
