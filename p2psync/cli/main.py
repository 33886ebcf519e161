"""The `p2psync` command: its sub-commands, its configuration, and how errors end it.

Configuration: flags over `P2PSYNC_*` (`P2PSYNC_ACTOR_JOIN`, …) over a TOML file with a table for each command:

    [actor]
    join = "http://trainer.example:7070"

Every error is one line on stderr that says what to do; exit 1, or 2 for wrong usage.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from p2psync.cli import actor, bench, delta, demo, doctor, hub, keys, publish, sim, status, trainer, verify, wan, warm
from p2psync.cli.commands import Command, Group
from p2psync.cli.config import read_config
from p2psync.errors import P2PSyncError, UsageError
from p2psync.parallel import limit_threads

app = typer.Typer(
    name="p2psync",
    cls=Group,
    help="Every new policy of a reinforcement-learned model, bit for bit, on every rollout actor.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "P2PSYNC", "help_option_names": ["-h", "--help"]},
)


@app.callback()
def configure(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="A TOML file with a table of options for each command.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Cores that coding may use [all that this process may run on].", min=1)
    ] = None,
) -> None:
    """Every new policy of a reinforcement-learned model, bit for bit, on every rollout actor."""
    if config is not None:
        assert isinstance(context.command, TyperGroup)
        context.default_map = read_config(config, context.command)
    limit_threads(threads)


for command, name in (
    (trainer.trainer, "trainer"),
    (publish.publish, "publish"),
    (actor.actor, "actor"),
    (hub.hub, "hub"),
    (status.status, "status"),
    (verify.verify, "verify"),
    (demo.demo, "demo"),
    (doctor.doctor, "doctor"),
    (warm.warm, "warm"),
):
    app.command(name, cls=Command)(command)
for group in (keys, bench, delta, wan, sim):
    for registered in group.app.registered_commands:
        registered.cls = Command
app.add_typer(keys.app, name="keys")
app.add_typer(bench.app, name="bench")
app.add_typer(delta.app, name="delta")
app.add_typer(wan.app, name="wan")
app.add_typer(sim.app, name="sim")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except P2PSyncError as error:
        print(f"p2psync: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"p2psync: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
