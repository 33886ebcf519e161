"""A group of commands whose modules are imported when one of them runs: its help lists them without."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand

from p2psync.cli.commands import Command, CommandGroup
from p2psync.environment import VLLM_PREFIX, unknown_line


@dataclass(frozen=True)
class Entry:
    """One command or sub-group: where it stands and what the list of commands says of it.

    target: the name in the module of a function, or of a `typer.Typer` for a sub-group.
    """

    module: str
    target: str
    help: str


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, each imported at its first use."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._entries[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._entries, **self._loaded})

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._loaded

    def __len__(self) -> int:
        return len({**self._entries, **self._loaded})

    def stub(self, name: str) -> Any:
        """Returns an entry of the list of commands: the command itself if it is loaded, else its name and help."""
        if name in self._loaded:
            return self._loaded[name]
        return TyperCommand(name, help=self._entries[name].help)


class LazyGroup(CommandGroup):
    """A group over `LazyCommands`."""

    commands: Any
    #: Set in a subclass.
    entries: Mapping[str, Entry] = {}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands = LazyCommands(self.entries)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `CommandGroup`. Tells, on stderr, of each environment variable that is meant as an option and is none."""
        if not ctx.resilient_parsing:
            self._tell_unknown(f"{ctx.auto_envvar_prefix}_", [option.name or "" for option in self.params])
        return super().parse_args(ctx, args)

    def _tell_unknown(self, prefix: str, own_options: list[str]) -> None:
        variables = [one for one in os.environ if one.startswith(prefix) and not one.startswith(VLLM_PREFIX)]
        if not variables:
            return
        known = own_options + [
            f"{name} {option.name}" for name, command in all_commands(self) for option in command.params
        ]
        names = {prefix + name.replace(" ", "_").replace("-", "_").upper() for name in known}
        for variable in variables:
            if line := unknown_line(variable, names):
                print(f"p2psync: {line}", file=sys.stderr)

    def listed(self, name: str) -> Any:
        """The command as the list shows it, without importing it."""
        return self.commands.stub(name)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order in which they are listed."""
        return list(self.commands)


def _load(name: str, entry: Entry) -> Any:
    target = getattr(importlib.import_module(entry.module), entry.target)
    if isinstance(target, typer.Typer):
        for registered in target.registered_commands:
            registered.cls = Command
        target.rich_markup_mode = None
        target.info.cls = CommandGroup
        command: Any = typer.main.get_group(target)
        command.name = name
        return command
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name, cls=Command)(target)
    return typer.main.get_command(alone)


def all_commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below a group with its full name, imported."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command
