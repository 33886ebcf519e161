"""The `p2psync` command line: its commands, its global options, its configuration.

Configuration: flags over `P2PSYNC_*` (`P2PSYNC_ACTOR_JOIN`, …) over a TOML file with a table for each command:

    [actor]
    join = "http://trainer.example:7070"
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from p2psync.cli import logs
from p2psync.cli.lazy import Entry, LazyGroup
from p2psync.errors import UsageError

_HELP = "Every new policy of a reinforcement-learned model, bit for bit, on every rollout actor."
_EPILOG = """\b
Exit codes:
  0    success; a daemon that SIGTERM ended
  1    failure, told in one line on stderr; also a check that did not pass
  2    wrong usage: an option, an argument or the configuration
  130  interrupted (Ctrl-C)

\b
Every option can stand in the environment (P2PSYNC_ACTOR_JOIN for `actor --join`)
and in the file that --config names: a TOML table [actor] with join = "…".
"""

#: Every command, in the order of the list.
ENTRIES: Mapping[str, Entry] = {
    "demo": Entry("p2psync.cli.demo", "demo", "Train, publish and roll out on this machine, with real processes."),
    "trainer": Entry("p2psync.cli.trainer", "trainer", "Publish each checkpoint that appears in a directory."),
    "actor": Entry("p2psync.cli.actor", "actor", "Keep a directory identical to the published checkpoint."),
    "publish": Entry("p2psync.cli.publish", "publish", "Publish one checkpoint to a hub that runs by itself."),
    "hub": Entry("p2psync.cli.hub", "hub", "Run the hub alone."),
    "keys": Entry("p2psync.cli.keys", "app", "Make and show identities."),
    "status": Entry("p2psync.cli.status", "status", "Show the run, its newest version, and who runs what."),
    "verify": Entry("p2psync.cli.verify", "verify", "Check a checkpoint against what the trainer signed."),
    "doctor": Entry("p2psync.cli.doctor", "doctor", "Show what this machine can do, and what to mend."),
    "warm": Entry("p2psync.cli.warm", "warm", "Compile the codec for this machine, once."),
    "delta": Entry("p2psync.cli.delta", "app", "Deltas between checkpoints on disk."),
    "wan": Entry("p2psync.cli.wan", "app", "Networks between regions: plan for them, emulate them."),
    "sim": Entry("p2psync.cli.sim", "app", "The swarm and the ledger in virtual time."),
    "bench": Entry("p2psync.cli.bench", "app", "Measure p2psync against bounds and other systems."),
}


class Commands(LazyGroup):
    """The group of all commands."""

    entries = ENTRIES


app = typer.Typer(
    name="p2psync",
    cls=Commands,
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"auto_envvar_prefix": "P2PSYNC", "help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import p2psync

        print(f"p2psync {p2psync.__version__}")
        raise typer.Exit


@app.callback()
def configure(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="A TOML file with a table of options for each command.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Cores that coding may use [all that this process may run on].", min=1)
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log details too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors only.")] = False,
    log_format: Annotated[
        logs.Format, typer.Option(help="Of the log on stderr: lines of text, or of JSON.")
    ] = logs.Format.text,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Every new policy of a reinforcement-learned model, bit for bit, on every rollout actor."""
    if verbose and quiet:
        raise UsageError("--verbose and --quiet exclude each other: give one of them")
    logs.set_up(logs.level_of(verbose=verbose, quiet=quiet), log_format)
    if config is not None:
        from p2psync.cli.config import read_config

        context.default_map = read_config(config, context.command)  # type: ignore[arg-type]
    if threads is not None:
        from p2psync.parallel import limit_threads

        limit_threads(threads)


#: The exit code after an interrupt: typer returns it for Ctrl-C, and so do daemons after SIGINT.
_INTERRUPTED = 130
#: The errors that typer raises for wrong usage: a missing command or option, an unknown one, a bad value.
_UsageRefusal: type[Any] = typer.BadParameter.__mro__[1]


def run() -> int:
    """Run the command line; returns the exit code. Raises what the command raises, and `UsageError` for wrong usage."""
    try:
        code = app(prog_name="p2psync", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _UsageRefusal as refusal:
        if refusal.ctx is not None and type(refusal).__name__ == "NoArgsIsHelpError":
            print(refusal.ctx.get_help(), file=sys.stderr)
            return 2
        raise UsageError(_one_line(refusal)) from None
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _one_line(refusal: Any) -> str:
    """Returns why typer refuses the command line, and where to read on."""
    text = " ".join(refusal.format_message().split()).rstrip(".")
    text = re.sub(r"\. Did you mean (.*)\?$", r" (did you mean \1?)", text)
    text = text[:1].lower() + text[1:]
    if refusal.ctx is None:
        return text
    return f"{text}; `{refusal.ctx.command_path} --help` tells more"
