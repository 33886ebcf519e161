"""Commands whose options may come from the environment or a file: an error names the place where a bad value stands."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, NamedTuple

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from p2psync.environment import bad_value, ignored_line, is_service_link
from p2psync.errors import P2PSyncError, UsageError

#: Options whose values are not shown.
_SECRET = frozenset({"token"})
_HIDDEN = "…"
#: An error that holds a value of so many characters is taken to be about it: a shorter one may stand anywhere.
_NAMING_CHARACTERS = 3


class _Given(NamedTuple):
    """An option that the environment or the configuration file gives.

    name: of the variable, or of the table and key. value: "…" if it must not be shown. place: where it stands.
    """

    option: Any
    name: str
    value: str
    place: str

    @property
    def setting(self) -> str:
        """Returns name and value for people."""
        return f"{self.name}={self.value!r}"


def _variable(context: Any, option: str) -> str:
    return f"{context.auto_envvar_prefix}_{option}".upper()


def _table(context: Any) -> str:
    """The table of a command in the configuration file."""
    return ".".join(context.command_path.split()[1:])


def _given(context: Any) -> list[_Given]:
    """Returns the options of a command that the environment or the configuration file gives."""
    found = []
    for option in context.command.params:
        name = option.name or ""
        source = getattr(context.get_parameter_source(name), "name", "")
        if source == "ENVIRONMENT":
            variable = _variable(context, name)
            found.append(_Given(option, variable, _shown(name, os.environ.get(variable, "")), "the environment"))
        elif source == "DEFAULT_MAP":
            value = context.default_map[name]
            values = value if isinstance(value, list) else [value]
            key = f"[{_table(context)}] {name.replace('_', '-')}"
            file = str(context.find_root().params["config"])
            found += [_Given(option, key, _shown(name, str(one)), file) for one in values]
    return found


def _shown(option: str, value: str) -> str:
    return _HIDDEN if option in _SECRET or value.lstrip().startswith("p2psync-private-") else value


def drop_service_links(context: Any) -> None:
    """Take those variables out of the environment that would be read as options, and are Kubernetes' own."""
    for option in context.command.params:
        variable = _variable(context, option.name or "")
        value = os.environ.get(variable, "")
        if is_service_link(value):
            print(f"p2psync: {ignored_line(variable, value)}", file=sys.stderr)
            del os.environ[variable]


def refused(context: Any, error: BadParameter) -> UsageError | None:
    """The refusal of an option's value, if the environment or the configuration file gave it."""
    given = next((one for one in _given(context) if one.option is error.param), None)
    if given is None:
        return None
    why = error.message[:1].lower() + error.message[1:]
    return bad_value(given.setting, given.place, why.rstrip("."))


def name_place(context: Any, error: P2PSyncError) -> None:
    """Adds the variable, or file and key, to an error that names an option or its value which was given there."""
    text = str(error)
    for given in _given(context):
        named = any(re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) for flag in given.option.opts)
        named |= len(given.value) >= _NAMING_CHARACTERS and given.value in text
        if named and given.name not in text:
            text = f"{text} ({given.setting} is set in {given.place})"
    error.args = (text, *error.args[1:])


def _hide_variables(command: Any) -> None:
    """Leave the variable of each option out of its help: one line at the end stands for all."""
    for option in command.params:
        option.show_envvar = False


class Command(TyperCommand):
    """A command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """See `TyperCommand`."""
        super().__init__(*args, **options)
        _hide_variables(self)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Writes an epilog about options from the environment and a file."""
        given = [one for one in self.params if one.name != "help" and getattr(one, "allow_from_autoenv", True)]
        if given and ctx.auto_envvar_prefix:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(
                    f"Options come from the environment too ({_variable(ctx, given[0].name or '')}, …) and from the "
                    f"table [{_table(ctx)}] of the file in `p2psync --config FILE`. Exit codes: `p2psync --help`."
                )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the options. Raises `UsageError` for a bad value of the environment or the file."""
        drop_service_links(ctx)
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            raise refused(ctx, error) or error from None

    def invoke(self, ctx: Any) -> Any:
        """Runs the command, and raises its errors."""
        try:
            return super().invoke(ctx)
        except P2PSyncError as error:
            name_place(ctx, error)
            raise


class CommandGroup(TyperGroup):
    """A group of commands with options of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """See `TyperGroup`."""
        super().__init__(*args, **options)
        _hide_variables(self)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands, each with the whole first sentence of its help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(self.listed(name).help or "")) for name in self.commands])

    def listed(self, name: str) -> Any:
        """The command as the list shows it."""
        return self.commands[name]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `Command`."""
        drop_service_links(ctx)
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            raise refused(ctx, error) or error from None


def _first_sentence(text: str) -> str:
    """The first sentence of a help text, in one line."""
    return re.split(r"(?<=[.!?]) |\n\n", " ".join(text.split("\n\n")[0].split()))[0]
