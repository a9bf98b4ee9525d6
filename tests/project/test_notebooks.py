"""The notebooks of examples/ print what they are kept with.

Cells are run one after the other, as Jupyter does, which need not be installed. Those that draw run
where pandas and matplotlib are installed; what they draw is not compared.
"""

import contextlib
import io
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
DRAWS = "needs-pandas-and-matplotlib"
MAX_BYTES = 64 << 10


def printed(cell):
    """What a cell was kept with as its output."""
    outputs = [each for each in cell["outputs"] if each["output_type"] == "stream"]
    return "".join("".join(each["text"]) for each in outputs)


@pytest.mark.parametrize("draws", [False, True], ids=["prints", "draws"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path, draws, tmp_path, monkeypatch):
    for library in ("pandas", "matplotlib") if draws else ():
        pytest.importorskip(library, reason=f"cells that draw need {library}")
    pytest.importorskip("sklearn", reason="needs the data extra")
    pytest.importorskip("torch", reason="needs the torch extra")
    assert path.stat().st_size < MAX_BYTES
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = [each for each in json.loads(path.read_text())["cells"] if each["cell_type"] == "code"]
    assert [each["execution_count"] for each in cells] == [*range(1, len(cells) + 1)]
    assert all(each["outputs"] for each in cells)
    names = {"__name__": "__main__"}
    for cell in cells:
        if DRAWS in cell["metadata"].get("tags", ()) and not draws:
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec("".join(cell["source"]), names)
        assert said.getvalue() == printed(cell), "".join(cell["source"])
