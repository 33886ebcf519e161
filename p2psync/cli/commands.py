"""Commands whose options may come from the environment: bad values are named by the variable that they stand in."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from p2psync.environment import bad_value, ignored_line, is_service_link
from p2psync.errors import P2PSyncError, UsageError

#: Options whose values are not shown.
_SECRET = frozenset({"token"})
_HIDDEN = "…"


def _variable(context: Any, option: str) -> str:
    return f"{context.auto_envvar_prefix}_{option}".upper()


def _from_environment(context: Any) -> list[Any]:
    """The options of a command whose values the environment gave."""
    given = [(one, context.get_parameter_source(one.name or "")) for one in context.command.params]
    return [one for one, source in given if source is not None and source.name == "ENVIRONMENT"]


def _value(context: Any, option: str) -> str:
    return _HIDDEN if option in _SECRET else os.environ.get(_variable(context, option), "")


def drop_service_links(context: Any) -> None:
    """Take those variables out of the environment that would be read as options, and are Kubernetes' own."""
    for option in context.command.params:
        variable = _variable(context, option.name or "")
        value = os.environ.get(variable, "")
        if is_service_link(value):
            print(f"p2psync: {ignored_line(variable, value)}", file=sys.stderr)
            del os.environ[variable]


def refused(context: Any, error: BadParameter) -> UsageError | None:
    """The refusal of an option's value, if the environment gave it."""
    option = error.param
    if option is None or option not in _from_environment(context):
        return None
    name = option.name or ""
    why = error.message[:1].lower() + error.message[1:]
    return bad_value(_variable(context, name), _value(context, name), why.rstrip("."))


def name_variable(context: Any, error: P2PSyncError) -> None:
    """Adds the environment variable to an error that names an option, or its value, which that variable gave."""
    text = str(error)
    for option in _from_environment(context):
        variable, value = _variable(context, option.name or ""), _value(context, option.name or "")
        named = any(re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) for flag in option.opts)
        if (named or (value not in ("", _HIDDEN) and value in text)) and variable not in text:
            text = f"{text} ({variable}={value!r} is set in the environment)"
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
            table = " ".join(ctx.command_path.split()[1:]).replace(" ", ".")
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(
                    f"Options come from the environment too ({_variable(ctx, given[0].name or '')}, …) and from the "
                    f"table [{table}] of the file in `p2psync --config FILE`. Exit codes: `p2psync --help`."
                )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options. Raises `UsageError` for a bad value of the environment."""
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
            name_variable(ctx, error)
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
