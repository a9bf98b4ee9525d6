"""Builds as somebody else may have changed them, their digests written anew."""

import contextlib
import hashlib
import json

from pydantic import ValidationError

from fpgapipe.host.build.build import MANIFEST
from fpgapipe.host.build.build_parts import CLUSTERS
from fpgapipe.partition.plan import Plan


def renew(folder, **fields):
    """Write the manifest anew for the files that are there, with other fields if given."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text()) | fields
    manifest["files"] = {
        name: {
            "bytes": (folder / name).stat().st_size,
            "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
        }
        for name in manifest["files"]
        if (folder / name).is_file()
    }
    path.write_text(json.dumps(manifest, indent=2) + "\n")


def change_json(path, change):
    """Let a function change what a file of JSON has; it is written as a build writes it."""
    value = json.loads(path.read_text())
    change(value)
    text = json.dumps(value, indent=1) + "\n"
    with contextlib.suppress(ValidationError):
        if path.name == "cluster.json":
            text = CLUSTERS.dump_json(CLUSTERS.validate_json(text), indent=1).decode() + "\n"
        elif path.name == "plan.json":
            text = Plan.model_validate_json(text).to_json()
    path.write_text(text)


def flip(path, at, mask=1):
    """Change bits of a byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)
