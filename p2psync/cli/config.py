"""The configuration file: a TOML table of options for each command, of which no key is passed over.

    [trainer]
    watch = "checkpoints"
    token = "…"

    [bench.swarm]
    seeds = 3

A key is an option's name without the leading dashes. A table or key that no command has, and a value of a kind that
the option cannot take, is refused with the nearest right one: a mistyped `tokn` must not open a hub to everyone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from typer.core import TyperCommand, TyperGroup

from p2psync.errors import UsageError

#: How alike a key and an option must be for the option to be offered, 0 to 1: a wrong or a missing letter or two.
ALIKE = 0.5


def read_config(path: Path, commands: TyperGroup) -> dict[str, Any]:
    """The options in a file, by command and option, as the command line takes them for defaults.

    Raises `UsageError` for a file that cannot be read, is no TOML, or holds settings that no command of `commands` has.
    """
    try:
        tables = msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UsageError(f"{path} is not a TOML file: {error}") from None
    return _commands(path, "", tables, commands)


def _commands(path: Path, where: str, tables: Mapping[str, Any], group: TyperGroup) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, table in tables.items():
        command = group.commands.get(name)
        full = f"{where}{name}"
        if not isinstance(table, dict):
            outside = f"[{where[:-1]}] holds tables of its commands only" if where else "options stand in a table"
            options = [f"[{c}] {o}" for c, one in group.commands.items() for o in _options(one) if o == _key(name)]
            raise UsageError(f"{path}: {name} = … is in no command's table: {outside}{_nearest(options, options)}")
        if command is None:
            near = _near(name, group.commands)
            raise UsageError(f"{path}: there is no command for the table [{full}]{_nearest(near, group.commands)}")
        if isinstance(command, TyperGroup):
            found[name] = _commands(path, f"{full}.", table, command)
        else:
            found[name] = _values(path, full, table, command)
    return found


def _values(path: Path, where: str, table: Mapping[str, Any], command: Any) -> dict[str, Any]:
    options, found = _options(command), dict[str, Any]()
    for key, value in table.items():
        option = options.get(_key(key))
        if option is None:
            near = [name.replace("_", "-") for name in _near(_key(key), options)]
            every = [name.replace("_", "-") for name in options]
            raise UsageError(f"{path}: [{where}] has no option {key}{_nearest(near, every)}")
        if option.name in found:
            raise UsageError(f"{path}: [{where}] gives {key} twice; leave one out")
        found[option.name] = _value(f"{path}: [{where}] {key}", value, option)
    return found


def _options(command: Any) -> dict[str, Any]:
    """The options and arguments of a command, by their names in a file."""
    if not isinstance(command, TyperCommand):
        return {}
    return {_key(opt): one for one in command.params for opt in one.opts if one.name != "help" and len(opt) > 2}


def _value(what: str, value: Any, option: Any) -> Any:
    """A value as the command line takes it; one string where several are taken is one of them."""
    several = bool(getattr(option, "multiple", False)) or option.nargs != 1
    is_flag = bool(getattr(option, "is_flag", False))
    if isinstance(value, dict):
        raise UsageError(f"{what} is a table; it takes a value")
    if isinstance(value, list):
        if not several:
            raise UsageError(f"{what} takes one value, not a list")
        if any(isinstance(one, list | dict | bool) for one in value):
            raise UsageError(f"{what} takes a list of plain values")
        return [str(one) for one in value]
    if is_flag != isinstance(value, bool):
        raise UsageError(f"{what} takes {'true or false' if is_flag else 'a value, not true or false'}")
    if is_flag:
        return value
    return [str(value)] if several else str(value)


def _key(text: str) -> str:
    return text.lstrip("-").replace("-", "_")


def _near(name: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(names), n=1, cutoff=ALIKE)


def _nearest(near: list[str], every: Iterable[str]) -> str:
    if near:
        return f"; did you mean {near[0]}?"
    names = sorted(every)
    return f"; there are {', '.join(names)}" if names else ""
