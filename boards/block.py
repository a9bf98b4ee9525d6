"""Common base of the models of board and cluster files: strict keys, cross-checks, messages."""

from collections.abc import Iterator
from types import NoneType
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from fpgapipe.boards.yaml_file import Document, Fault, Loc
from fpgapipe.errors import nearest, shown


class Block(BaseModel):
    """A mapping in a file: it accepts only known keys, is immutable, and reports all its faults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Yield the faults between values: the place within the block, and a sentence."""
        yield from ()

    @model_validator(mode="after")
    def _raise_faults(self) -> Self:
        faults = list(self.faults())
        if faults:
            raise PydanticCustomError("faults", "see context", {"faults": faults})
        return self


AnyBlock = TypeVar("AnyBlock", bound=Block)


def duplicates(names: list[str]) -> Iterator[tuple[int, str]]:
    """Yield index and name of every name that has occurred before."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield index, name
        seen.add(name)


def validated(document: Document, model: type[AnyBlock]) -> AnyBlock | None:
    """Check a document against a model, and add the faults to the document.

    Returns
    -------
    Block or None
        The block; None if the document violates the schema.
    """
    if not isinstance(document.value, dict):
        if not document.faults:
            found = shown(document.value)
            document.add([Fault((), f"must be a mapping of keys to values, not {found}")])
        return None
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        found_faults = []
        for details in error.errors(include_url=False):
            found_faults += _faults_of(details, model)
        document.add(found_faults)
        return None


def _faults_of(details: ErrorDetails, model: type[Block]) -> list[Fault]:
    loc: Loc = details["loc"]
    context = details.get("ctx", {})
    found = details["input"]
    match details["type"]:
        case "faults":
            return [Fault((*loc, *place), what) for place, what in context["faults"]]
        case "missing":
            return [Fault(loc[:-1], f"the key {str(loc[-1])!r} is missing")]
        case "extra_forbidden":
            keys = _keys_at(model, loc[:-1])
            hint = nearest(str(loc[-1]), keys) or f"; the keys are {', '.join(keys)}"
            return [Fault(loc, f"unknown key {shown(loc[-1])}{hint}")]
        case "sentence":
            what = context["text"]
        case "model_type" | "dict_type":
            what = f"must be a mapping of keys to values, not {shown(found)}"
        case "list_type":
            what = f"must be a list, not {shown(found)}"
        case "too_short":
            what = f"must have at least {context['min_length']} entries, not {len(found)}"
        case "too_long":
            what = f"must have at most {context['max_length']} entries, not {len(found)}"
        case _:
            what = f"{details['msg']}, not {shown(found)}"
    return [Fault(loc, what)]


def _keys_at(model: type[Block], loc: Loc) -> list[str]:
    """Return the keys that a model allows at a place within it."""
    here: Any = model
    for step in loc:
        if _is_block(here):
            fields = {field.alias or name: field for name, field in here.model_fields.items()}
            here = fields[str(step)].annotation
            if NoneType in get_args(here):
                here = next(each for each in get_args(here) if each is not NoneType)
        else:  # list[item] or dict[str, item]
            here = get_args(here)[-1]
    if not _is_block(here):
        return []
    return [field.alias or name for name, field in here.model_fields.items()]


def _is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Block)
