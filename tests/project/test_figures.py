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
