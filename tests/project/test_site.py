"""The site of 'make site': its pages, its links, and that it loads nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

pytest.importorskip("mkdocs")

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PAGES += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
OTHERS = sorted(
    {
        name
        for page in PAGES
        for name in re.findall(r"\]\(\.\./(\w+/[^)#\s]+)", (ROOT / page).read_text())
    }
)
"""Files of other folders that pages in docs/ link to."""

ELEMENTS = {"h1", "h2", "h3", "h4", "p", "li", "pre", "tr", "td", "blockquote", "code", "a", "img"}


class Elements(HTMLParser):
    """Addresses and anchors of a page, and the elements of its text."""

    def __init__(self, text, *, inside):
        super().__init__()
        self.links, self.loads, self.anchors, self.counts = set(), set(), set(), Counter()
        self.inside = inside
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if attrs.get("itemprop") == "articleBody":
            self.inside = True
        elif tag == "footer":
            self.inside = False
        if self.inside and tag in ELEMENTS:
            self.counts[tag] += 1
        self.anchors.update(attrs[key] for key in ("id", "name") if key in attrs)
        if "href" in attrs:
            (self.links if tag == "a" else self.loads).add(attrs["href"])
        if "src" in attrs:
            self.loads.add(attrs["src"])


def build(source, target):
    """Build the site as 'make site' does; the process, with what it said."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", target]
    return subprocess.run(command, cwd=source, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT, target)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


@pytest.fixture(scope="module")
def made(site):
    """Every page of HTML by its path in the site, read."""
    paths = site.rglob("*.html")
    return {path.resolve(): Elements(path.read_text(), inside=False) for path in paths}


def place_of(page):
    return "index.html" if page == "README.md" else page.removesuffix(".md") + ".html"


def test_every_page_is_there(site, made):
    wanted = {site / place_of(page) for page in PAGES} | {site / "docs/decisions/index.html"}
    assert set(made) == wanted


def test_links_lead_to_files_and_anchors(site, made):
    for path, page in made.items():
        for link in page.links | page.loads:
            parts = urlsplit(link)
            if link in page.links and parts.scheme in ("http", "https"):
                continue
            assert not parts.scheme, f"{path} loads {link}"
            assert not parts.netloc, f"{path} loads {link}"
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert site in there.parents, f"{path} links to {link}"
            assert there.is_file(), f"{path} links to {link}"
            if parts.fragment and there in made:
                assert unquote(parts.fragment) in made[there].anchors, f"{path}: no {link}"


def test_styles_load_nothing_from_elsewhere(site):
    styles = list(site.rglob("*.css"))
    assert styles
    for path in styles:
        text = path.read_text()
        assert "@import" not in text
        for address in re.findall(r"url\(['\"]?([^)'\"]+)", text):
            if not address.startswith("data:"):
                assert (path.parent / urlsplit(address).path).is_file(), f"{path.name}: {address}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_markdown_says(page, site, made):
    """MkDocs reads another Markdown than GitHub; both must find the same elements."""
    there = MarkdownIt("commonmark").enable("table").render((ROOT / page).read_text())
    assert made[site / place_of(page)].counts == Elements(there, inside=True).counts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/core.md", "[no page](nowhere.md)"),
        ("docs/core.md", "[no anchor](vector.md#nowhere)"),
        ("docs/core.md", "[no file](../hw/nowhere.py)"),
        ("docs/page.md", "# A page that the navigation has not"),
    ],
    ids=["page", "anchor", "file", "navigation"],
)
def test_what_is_wrong_ends_it(name, text, tmp_path):
    for folder in ("docs", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("mkdocs.yml", *PAGES[:3], *OTHERS):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    with (tmp_path / name).open("a") as page:
        page.write(f"\n{text}\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1, warnings
    assert name in done.stderr
