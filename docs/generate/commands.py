"""The pages of the command line and of configuration, from typer's own tree of commands."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import typer

from docs.generate.prose import NOTE, cell, fields, table
from p2psync.actor.node import ActorConfig
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.ledger.config import LedgerConfig

ROOT = Path(__file__).parents[2]
#: The environment of a vLLM engine is read in these files, by names behind this prefix.
VLLM_PREFIX = "P2PSYNC_VLLM_"
VLLM_SOURCES = ("actor/vllm/backend.py", "actor/vllm/routes.py")
VLLM_MEANING = {
    "JOIN": "the hub's address; an engine joins by itself only where it is set",
    "TRUST": "public keys whose manifests the engine believes, separated by commas",
    "STORE": "directory of chunks; a temporary one unless given",
    "HOST": "address to listen on",
    "PORT": "port for peers; 0: any; -1: the engine only dials out",
    "ADVERTISE": "addresses told to peers, separated by commas",
    "REGION": "where this machine is: any word",
    "TOKEN": "the join token",
    "HOLD": "1: the server generates nothing before the first version is live",
}


@functools.cache
def root() -> Any:
    """The command `p2psync`, as typer makes it."""
    place = next(name for name in ("p2psync.cli.app", "p2psync.cli.main") if importlib.util.find_spec(name))
    return typer.main.get_command(importlib.import_module(place).app)


def walk(command: Any, words: tuple[str, ...] = ("p2psync",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that runs something, with the words that name it."""
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, inner in command.commands.items():
        yield from walk(inner, (*words, name))


def options(command: Any) -> list[Any]:
    """The options that a command shows."""
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden and one.name != "help"]


def flags(option: Any) -> str:
    """An option's names, with `--no-…` where it has one."""
    names = [*option.opts, *option.secondary_opts]
    return ", ".join(f"`{name}`" for name in names)


def values(option: Any) -> str:
    """Returns an option's kind of value, or its choices."""
    if option.is_flag:
        return "flag"
    kind = option.type_descriptor.annotation
    many = get_origin(kind) is list
    kind = get_args(kind)[0] if many else kind
    parts = [one for one in get_args(kind) if one is not type(None)]
    kind = parts[0] if parts else kind
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        name = ", ".join(f"`{one.value}`" for one in kind)
    else:
        name = {Path: "path", str: "text", int: "whole number", float: "number"}.get(kind, str(kind))
    return f"{name}, may be repeated" if many else name


def default(option: Any) -> str:
    """An option's default, for a cell."""
    value = option.default
    if option.required:
        return "required"
    if value is None or value == "" or value == [] or callable(value):
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    if option.is_flag:
        return "on" if value else "off"
    return f"`{value}`"


def _usage(words: tuple[str, ...], command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    named = [str(one.metavar or one.name.upper()) for one in arguments]
    shown = [name if one.required else f"[{name}]" for name, one in zip(named, arguments, strict=True)]
    needed = [f"{one.opts[0]} {one.name.upper()}" for one in options(command) if one.required]
    return " ".join([*words, *shown, *needed, "[OPTIONS]"])


def _section(words: tuple[str, ...], command: Any) -> str:
    parts = [f"## {' '.join(words)}", doc_of(command), f"```text\n{_usage(words, command)}\n```"]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if arguments:
        rows = [(f"`{one.metavar or one.name.upper()}`", cell(one.help or "")) for one in arguments]
        parts.append(table(("argument", "meaning"), rows))
    if shown := options(command):
        rows4 = [(flags(one), values(one), default(one), cell(one.help or "")) for one in shown]
        parts.append(table(("option", "takes", "default", "meaning"), rows4))
    return "\n\n".join(parts)


def doc_of(command: Any) -> str:
    """A command's help, its lines joined to paragraphs."""
    text = inspect.cleandoc(command.help or "").replace("\b", "")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))


def cli_page() -> str:
    """docs/reference/cli.md."""
    command = root()
    top = [(flags(one), values(one), cell(one.help or "")) for one in options(command)]
    intro = (
        "Every command ends with exit code 0, with 1 and one line on stderr that says what to do, or with 2 for wrong\n"
        "usage. Ctrl-C ends a command with 130. Options of `p2psync` itself stand before the command's name."
    )
    head = ["# Command line", NOTE, intro, table(("option", "takes", "meaning"), top)]
    return "\n\n".join([*head, *(_section(*one) for one in walk(command))]) + "\n"


def variable(words: tuple[str, ...], option: Any) -> str:
    """The environment variable of a command's option."""
    return "_".join([*words, option.name]).upper().replace("-", "_")


def _dataclass(kind: type[Any], name: str, command: Any) -> str:
    said = fields(kind)
    helps = {one.name: one.help or "" for one in command.params}
    hints = get_type_hints(kind)
    rows = []
    for field in dataclasses.fields(kind):
        has = field.default is not dataclasses.MISSING
        shown = f"`{field.default!r}`" if has else "required"
        kind_of = hints[field.name]
        label = kind_of.__name__ if isinstance(kind_of, type) and not get_args(kind_of) else str(kind_of)
        label = label.replace("typing.", "").split(".")[-1] if "Private" in label else label.replace("typing.", "")
        meaning = said.get(field.name, "")
        if not meaning or meaning.startswith("see "):
            meaning = helps.get(field.name, meaning)
        rows.append((f"`{field.name}`", f"`{cell(label)}`", shown, cell(meaning)))
    return f"### `{name}`\n\n" + table(("setting", "type", "default", "meaning"), rows)


def vllm_variables() -> list[str]:
    """The variables that a vLLM engine reads, found in its source."""
    names: list[str] = []
    for source in VLLM_SOURCES:
        text = (ROOT / source).read_text(encoding="utf-8")
        names += re.findall(r'given\.(?:text|checked|number)\("([A-Z]+)"', text)
        names += re.findall(VLLM_PREFIX + r'([A-Z]+)"', text)
    return [f"{VLLM_PREFIX}{name}" for name in dict.fromkeys(names)]


CONFIGURATION = """# Configuration

{note}

A command takes each option from the first of these that has it:

1. the command line: `--region eu`;
2. the environment: `P2PSYNC_ACTOR_REGION=eu`;
3. a TOML file, named by `p2psync --config FILE.toml …`, with a table for each command;
4. the default.

```toml
[trainer]
watch = "/checkpoints"
region = "eu"

[bench.swarm]
rounds = 5
```

A key of the file is an option's name without its dashes. An option that may be repeated takes a list. p2psync refuses a
table or key that no command has, and names the nearest right one. The environment gives several values of one option
separated by spaces. p2psync ignores variables that Kubernetes sets for a service (`tcp://…`) and says so.

## Options, variables and keys of each command
"""


def configuration_page() -> str:
    """docs/reference/configuration.md."""
    parts = [CONFIGURATION.format(note=NOTE).rstrip()]
    every = [(("p2psync",), root()), *walk(root())]
    for words, command in every:
        rows = [
            (flags(one), f"`{variable(words, one)}`", f"`{one.opts[0].lstrip('-')}`", default(one))
            for one in options(command)
            if words != ("p2psync",) or one.name != "config"
        ]
        if not rows:
            continue
        where = f"`[{'.'.join(words[1:])}]`" if words[1:] else "no table: flags and variables alone"
        head = ("option", "variable", f"key in {where}" if words[1:] else "key", "default")
        if not words[1:]:
            rows = [(one, name, "none", what) for one, name, _, what in rows]
        parts.append(f"### {' '.join(words)}\n\n" + table(head, rows))
    rows2 = [(f"`{name}`", VLLM_MEANING[name.removeprefix(VLLM_PREFIX)]) for name in vllm_variables()]
    parts.append(
        "## Variables of a vLLM engine\n\n"
        "An engine that joins by itself reads these; see [vLLM](../guides/vllm.md).\n\n"
        + table(("variable", "meaning"), rows2)
    )
    parts.append(
        "## Other variables\n\n"
        + table(
            ("variable", "meaning"),
            [
                ("`MASTER_ADDR`", "of `torch.distributed`: where ranks reach the hub that rank 0 embeds"),
                ("`NUMBA_CACHE_DIR`, `XDG_CACHE_HOME`", "where the compiled codec is kept"),
            ],
        )
    )
    parts.append("# Settings in Python")
    parts.append(
        "`TrainerConfig`, `ActorConfig` and `LedgerConfig` are frozen dataclasses; all arguments are keywords."
    )
    commands = {" ".join(words[1:]): command for words, command in every}
    parts.append(_dataclass(TrainerConfig, "TrainerConfig", commands["trainer"]))
    parts.append(_dataclass(ActorConfig, "ActorConfig", commands["actor"]))
    parts.append(_dataclass(LedgerConfig, "LedgerConfig", commands["trainer"]))
    return "\n\n".join(parts) + "\n"
