"""Additions of other installed packages to fpgapipe, which they offer by entry points.

Nothing is imported before it is asked for by its name, and names alone need no import. What cannot
be used is refused where it is asked for by its name. Where all things of a kind are gone through, a
line of the log names it, and it is left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, TypeVar, cast

from fpgapipe.errors import UserError, nearest, shown

T = TypeVar("T")

Kind = type | tuple[type, ...] | Callable[[Any], object]
"""Type of a result, or a function that raises `TypeError` if it is something else."""

logger = logging.getLogger(__name__)


class Registry(Generic[T]):
    """Things of one kind by their names: those of fpgapipe, and those of other packages.

    Parameters
    ----------
    group : str
        Group of the entry points of other packages. The name of an entry point is that of the
        thing, and its value says where Python finds it, ``module`` or ``module:object``.
    what : str
        What one thing is, in messages.
    own : mapping of str
        The things of fpgapipe, in the order of lists. A text is the place of one that is imported
        when it is asked for, written as the value of an entry point.
    read : callable
        Returns the thing that an entry point offers, given the entry point and what Python finds
        there. It raises `TypeError` if that is another kind of thing; the message is a sentence
        without a subject.

    Attributes
    ----------
    group, what, own
        As given.
    """

    def __init__(
        self,
        group: str,
        what: str,
        own: Mapping[str, T | str],
        read: Callable[[EntryPoint, Any], T],
    ) -> None:
        self.group, self.what = group, what
        self.own, self._read = own, read

    def names(self) -> list[str]:
        """All names: those of fpgapipe, then the others in the order of the alphabet."""
        return [*self.own, *sorted(set(self._offered) - set(self.own))]

    def usable(self) -> list[str]:
        """Names of the things that can be used; the log names the others, each once."""
        found = []
        for name in self.names():
            try:
                if name in self._offered:
                    self[name]
            except UserError as error:
                _leave_out(str(error))
            else:
                found.append(name)
        return found

    def guarded(
        self, name: str, function: Callable[..., Any], kind: type | tuple[type, ...]
    ) -> Callable[..., Any]:
        """Return a function of a thing so that a package of others is named when it fails.

        Parameters
        ----------
        name : str
            The thing's name.
        function : callable
        kind : type
            What its result must be.
        """
        for entry in self._offered.get(name, ()):
            return _Guarded(entry, function, kind)
        return function

    def __contains__(self, name: object) -> bool:
        """Whether there is a thing of this name."""
        return name in self.own or name in self._offered

    def __getitem__(self, name: str) -> T:
        """Return a thing by its name.

        Raises
        ------
        UserError
            If there is none, several packages offer it, or the one that does is broken.
        """
        offers = self._offered.get(name, ())
        if name in self.own:
            for entry in offers:
                raise UserError(
                    f"{offer(entry)}, and fpgapipe has a {self.what} of that name; rename the "
                    f"entry point, or uninstall {giver(entry)}"
                )
            own = self.own[name]
            if isinstance(own, str):
                entry = EntryPoint(name, own, self.group)
                return self._read(entry, entry.load())
            return own
        if not offers:
            known = self.names()
            hint = nearest(name, known) or f"; the {self.what}s are {', '.join(known)}"
            raise UserError(f"there is no {self.what} named {shown(name)}{hint}")
        if len({entry.value for entry in offers}) > 1:
            givers = " and ".join(giver(entry) for entry in offers)
            raise UserError(
                f"the {self.what} {name!r} is offered by {givers}; uninstall all but one of them"
            )
        found = loaded(offers[0])
        try:
            return self._read(offers[0], found)
        except TypeError as error:
            raise UserError(
                f"{offer(offers[0])}, which {error}; mend {giver(offers[0])}, or uninstall it"
            ) from None

    @property
    def _offered(self) -> dict[str, tuple[EntryPoint, ...]]:
        return offered(self.group)


def offered(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of a group by their names."""
    return _offered(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _offered(group: str, places: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """The same; packages are looked for once for a group and the folders of ``sys.path``."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=group):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def digest_of_others() -> str:
    """Digest of the sources of all packages that offer something to fpgapipe."""
    return _digest_of_others(tuple(sys.path))


@lru_cache(maxsize=64)
def _digest_of_others(places: tuple[str, ...]) -> str:
    """The same; sources are read once for the folders of ``sys.path``."""
    digest = hashlib.sha256()
    for top in sorted({_top(entry.module) for entry in _all_offered()}):
        digest.update(top.encode())
        spec = importlib.util.find_spec(top)
        files = [Path(spec.origin)] if spec and spec.origin and spec.has_location else []
        for folder in (spec and spec.submodule_search_locations) or ():
            files += sorted(Path(folder).rglob("*.py"))
        for path in files:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def load_all(group: str) -> None:
    """Import the modules of a group, which register what they have themselves.

    The log names those that cannot be imported, or register a name that is taken.
    """
    _load_all(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _load_all(group: str, places: tuple[str, ...]) -> None:
    """The same; this is done once for a group and the folders of ``sys.path``."""
    for entries in offered(group).values():
        for entry in entries:
            try:
                loaded(entry)
            except UserError as error:
                _leave_out(str(error))


@lru_cache(maxsize=1024)
def _leave_out(why: str) -> None:
    """Say once that something is left out."""
    logger.warning("left out: %s", why)


def loaded(entry: EntryPoint) -> Any:
    """Return what an entry point of another package stands for.

    Raises
    ------
    UserError
        If it cannot be imported.
    """
    try:
        return entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Importing a module runs its own code, which can raise any exception.
        raise _broken(entry, "cannot be imported", error) from error


def _broken(entry: EntryPoint, what: str, error: BaseException) -> UserError:
    """The error that names a package whose code has raised an exception; ``-v`` logs it whole."""
    logger.debug("%s, which %s", offer(entry), what, exc_info=error)
    try:
        text = str(error)
    except Exception:
        text = "no text"
    return UserError(
        f"{offer(entry)}, which {what}: {type(error).__name__}: {shown(text, 200)}; mend "
        f"{giver(entry)}, or uninstall it"
    )


@dataclasses.dataclass(frozen=True)
class _Guarded:
    """A function of another package, which is named if the function fails.

    Attributes
    ----------
    entry : EntryPoint
        What offers it.
    function : callable
    kind : type, or callable
        What its result must be, or what raises `TypeError` if the result is something else.
    """

    entry: EntryPoint
    function: Callable[..., Any]
    kind: Kind

    def __call__(self, *args: Any, **options: Any) -> Any:
        try:
            found = self.function(*args, **options)
            if isinstance(self.kind, FunctionType):
                self.kind(found)
            elif not isinstance(found, kind := cast("type | tuple[type, ...]", self.kind)):
                raise TypeError(f"it returns {_described(found)}, not {_names(kind)}")
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise _broken(self.entry, "fails", error) from error
        return self._items(found) if isinstance(found, Iterator) else found

    def _items(self, found: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from found
        except (UserError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            raise _broken(self.entry, "fails", error) from error


def giver(entry: EntryPoint) -> str:
    """The package that an entry point is of, for messages."""
    return f"the package {entry.dist.name}" if entry.dist else "the package"


def offer(entry: EntryPoint) -> str:
    """The beginning of a message about an entry point: a package and what it offers."""
    return f"{giver(entry)} offers '{entry.name} = {entry.value}' in {entry.group}"


def instance_of(kind: type[T], **results: Kind) -> Callable[[EntryPoint, Any], T]:
    """Return a `read` of `Registry` for objects of a class.

    If it is a dataclass, then the functions in an object of another package name the package when
    they fail, or when they return something else than `results` says of them: another type, or
    what a function of `results` refuses by a `TypeError`.
    """

    def read(entry: EntryPoint, found: Any) -> T:
        if not isinstance(found, kind):
            raise TypeError(f"is {_described(found)}, not a {kind.__name__}")
        if entry.dist is None or not dataclasses.is_dataclass(found):
            return found
        values = {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
        guarded = {
            name: _Guarded(entry, value, results.get(name, object))
            for name, value in values.items()
            if callable(value)
        }
        return cast("T", dataclasses.replace(cast("Any", found), **guarded))

    return read


def subclass_of(kind: type[T]) -> Callable[[EntryPoint, Any], type[T]]:
    """Return a `read` of `Registry` for classes that are made from another one."""

    def read(entry: EntryPoint, found: Any) -> type[T]:
        if not (isinstance(found, type) and issubclass(found, kind)):
            raise TypeError(f"is {_described(found)}, not a subclass of {kind.__name__}")
        return found

    return read


def package_of(module: str) -> EntryPoint | None:
    """An entry point for fpgapipe of the package that has a module; None if there is none."""
    top = _top(module)
    if top in ("fpgapipe", "__main__"):
        return None
    return next((entry for entry in _all_offered() if _top(entry.module) == top), None)


def _all_offered() -> Iterator[EntryPoint]:
    """The entry points for fpgapipe of all packages."""
    entries = (entry for each in distributions() for entry in each.entry_points)
    return (entry for entry in entries if entry.group.startswith("fpgapipe."))


def _top(module: str) -> str:
    """The package of a module that is no part of another one."""
    return module.partition(".")[0]


def expected(found: Any, kind: type | tuple[type, ...], function: Callable[..., Any]) -> Any:
    """Return the result of a function, which a package may have registered, if it is of a type.

    Raises
    ------
    UserError
        If it is not, and the function is of another package.
    """
    if not isinstance(found, kind) and (entry := package_of(function.__module__)):
        what = f"whose {function.__qualname__} returns {_described(found)}, not {_names(kind)}"
        raise UserError(f"{offer(entry)}, {what}; mend {giver(entry)}, or uninstall it")
    return found


def blamed(error: BaseException) -> UserError | None:
    """The error that names a package in whose code an exception was raised; None without one."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if entry := package_of(str(frame.f_globals.get("__name__", ""))):
            return _broken(entry, f"fails in {frame.f_code.co_name}", error)
    return None


def _names(kind: type | tuple[type, ...]) -> str:
    """Names of types."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(each.__name__ for each in kinds)


def _described(found: Any) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
