"""Hook of MkDocs: the site has every page at the path that the repository has it at.

So the links of the pages need no change. Files that pages link to are copied.
"""

import importlib.metadata
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

DECISIONS = "docs/decisions"
LINK = re.compile(r"\]\(([^)#\s:]+)")
"""Target of a link to a file, without its anchor."""

STYLE = """\
.wy-nav-content { max-width: 64em }
.wy-table-responsive table td, .wy-table-responsive table th { white-space: normal }
.rst-content .highlight pre > code { border: 0; padding: 0; background: none }
"""
"""Changes of the theme: wider pages, tables whose cells have several lines, one frame for code."""


def anchor(heading: str, separator: str) -> str:
    """Return the anchor of a heading as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set what ``mkdocs.yml`` cannot say."""
    config.mdx_configs["toc"] = {"slugify": anchor}
    config.extra["version"] = importlib.metadata.version("fpgapipe")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of ``docs/`` by all pages and what they link to, at their paths."""
    config.theme.static_templates.clear()  # a 404 page and a site map, which need an address
    root = Path(config.config_file_path).resolve().parent
    for file in [each for each in files if each.src_dir == config.docs_dir]:
        files.remove(file)
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += (root / "docs").rglob("*.md")
    paths = {path for path in (root / "docs").rglob("*") if path.is_file()}.union(pages)
    for page in pages:
        targets = {(page.parent / link).resolve() for link in LINK.findall(page.read_text())}
        paths.update(path for path in targets if path.is_file() and root in path.parents)
    for path in sorted(paths):
        place = path.relative_to(root).as_posix()
        files.append(File(place, str(root), config.site_dir, use_directory_urls=False))
    index = "# Decisions\n\n"
    for path in sorted((root / DECISIONS).glob("*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        index += f"* [{title}]({path.name})\n"
    files.append(File.generated(config, f"{DECISIONS}/index.md", content=index))
    style = STYLE + HtmlFormatter().get_style_defs(".highlight")  # the theme has none for code
    files.append(File.generated(config, "css/site.css", content=style))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn what GitHub reads, and MkDocs does not, into what both do."""
    markdown = re.sub(r"^(```+\w+) .*$", r"\1", markdown, flags=re.M)  # words behind a language
    return markdown.replace(f"]({DECISIONS})", f"]({DECISIONS}/index.md)")
