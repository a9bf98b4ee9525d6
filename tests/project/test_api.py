"""The names that `import fpgapipe` offers."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fpgapipe

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
NAMES = [name for name in fpgapipe.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_name_is_that_of_its_module(name):
    value = getattr(fpgapipe, name)
    assert value is getattr(importlib.import_module(fpgapipe._modules()[name]), name)
    assert inspect.getdoc(value), f"{name} has no docstring"


def test_two_lists_are_one():
    """The names that are offered are those that type checkers see and that are imported."""
    modules = {name: each for name, each in fpgapipe._modules().items() if name != "TYPE_CHECKING"}
    assert sorted(modules) == sorted(NAMES)
    assert all(each.startswith("fpgapipe.") for each in modules.values())
    assert set(fpgapipe.__all__) <= set(dir(fpgapipe))


def test_unknown_name_is_refused():
    with pytest.raises(AttributeError, match=r"^module 'fpgapipe' has no attribute 'lode_board'$"):
        fpgapipe.lode_board  # noqa: B018


def test_import_brings_in_no_library():
    code = (
        "import sys; before = set(sys.modules); import fpgapipe; dir(fpgapipe)\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert ast.literal_eval(done) == ["fpgapipe"]


def without_types(value):
    """A signature as the page has it: no annotations; long defaults, and functions, as dots."""

    class Dots:
        def __repr__(self):
            return "..."

    try:
        signature = inspect.signature(value)
    except ValueError:  # an exception's
        return None
    plain = [
        each.replace(
            annotation=each.empty,
            default=Dots()
            if each.default is not each.empty and len(repr(each.default)) > 20
            else each.default,
        )
        for each in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


@pytest.mark.parametrize("name", NAMES)
def test_page_has_the_signature(name):
    """Of functions, and of classes that users construct."""
    value = getattr(fpgapipe, name)
    found = re.search(rf"^#### `{name}`\n\n(?:```text\n({name}\(.*?)\n```)?", PAGE, re.M | re.S)
    assert found, f"docs/api.md has no heading for {name}"
    if found[1] is None:
        assert inspect.isclass(value), f"docs/api.md has no signature of {name}"
    else:
        assert found[1].replace("\n    ", " ") == name + without_types(value)


def test_page_has_no_other_names():
    assert set(re.findall(r"^#### `(\w+)`$", PAGE, re.M)) == set(NAMES)
