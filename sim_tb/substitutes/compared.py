"""Whether a block's model in C++ was compared with the gateware that there is now.

``compared.json`` has a digest for each block, of all sources that its comparison depended on: its
gateware with what that imports, its model, and the Verilog around the model. The test that compares
blocks with their models writes the file, after it has passed, and fails when the file is old. So a
change of the gateware that was not compared is seen, for all parameters and whatever versions of
Amaranth and Yosys turn it into Verilog.
"""

import ast
import hashlib
import importlib.util
import inspect
import json
from functools import cache
from pathlib import Path

from fpgapipe.sim_tb.substitutes.block import Block

RECORD = Path(__file__).with_name("compared.json")


def is_compared(block: Block) -> bool:
    """Whether a block is what its comparison was recorded of."""
    return bool(json.loads(RECORD.read_text()).get(block.name) == digest_of(block))


@cache
def digest_of(block: Block) -> str:
    """Digest of what a block's comparison depends on, without comments and empty lines."""
    folder = Path(__file__).parent
    paths = [folder / name for name in block.sources]
    paths += [Path(inspect.getfile(block.body)), *_imported(block.gateware)]
    digest = hashlib.sha256()
    for path in paths:
        lines = [line.strip() for line in path.read_text().splitlines()]
        code = "\n".join(line for line in lines if line and not line.startswith("# "))
        digest.update(f"{path.name} {hashlib.sha256(code.encode()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _imported(module: str) -> list[Path]:
    """Files of a module and of all in `fpgapipe.hw` that it imports, by their names."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or not name.startswith("fpgapipe.hw."):
            continue
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        found[name] = Path(spec.origin)
        for node in ast.walk(ast.parse(found[name].read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                waiting.append(node.module)
    return [found[name] for name in sorted(found)]
