"""Commands that take their options as one struct: a dataclass, of which each field is an option, or a group of options.

Imports nothing but typer, as the modules of all commands do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def takes_options(kind: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Makes a function of one struct a command: typer reads the struct's fields as if they were its parameters.

    kind: a dataclass whose arguments are keywords. A field is an option (`name: Annotated[…, typer.Option(…)]`), or a
    group, another such dataclass, whose options stand in the field's place, in `--help` too.
    """

    def make(run: Callable[[T], None]) -> Callable[..., None]:
        @wraps(run)
        def command(**given: Any) -> None:
            run(_struct(kind, given))

        command.__signature__ = inspect.Signature(list(_parameters(kind)))  # type: ignore[attr-defined]
        return command

    return make


def _parameters(kind: type[Any]) -> Iterator[inspect.Parameter]:
    for name, annotation, default in _fields(kind):
        if _is_group(annotation):
            yield from _parameters(annotation)
        else:
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _struct(kind: type[T], given: Mapping[str, Any]) -> T:
    """Returns the struct whose options have these values; `given` may have more."""
    values = {
        name: _struct(annotation, given) if _is_group(annotation) else given[name]
        for name, annotation, _ in _fields(kind)
    }
    return kind(**values)


def _fields(kind: type[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields name, annotation and default of each field."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        yield field.name, hints[field.name], inspect.Parameter.empty if field.default is MISSING else field.default


def _is_group(annotation: Any) -> bool:
    return is_dataclass(annotation)
