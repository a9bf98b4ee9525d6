"""Files that describe the platform of the oracle's formulas."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from fpgapipe.boards.yaml_file import read_yaml
from fpgapipe.errors import FileError
from fpgapipe.json_faults import faults_of
from fpgapipe.partition.oracle.platform import Platform


def read_platform(path: Path) -> Platform:
    """Read a platform from a YAML file.

    Raises
    ------
    FileError
        If the file is no valid platform. The message lists every fault.
    """
    document = read_yaml(path)
    document.raise_faults()
    try:
        return Platform.model_validate(document.value)
    except ValidationError as error:
        raise FileError(path, faults_of(error)) from None
