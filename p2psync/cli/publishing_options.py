"""Groups of options of the commands that publish checkpoints; docs/guides/checkpoints.md has the rules behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from p2psync.trainer.watch.locations import CheckpointRules


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Options that select the files of a checkpoint to publish."""

    inside: Annotated[
        str | None,
        typer.Option(help="Where in each checkpoint the policy is, a glob: actor/huggingface; . takes it whole."),
    ] = None
    ignore: Annotated[
        list[str] | None, typer.Option(help="Pass over what this glob matches, a path or a name; may be repeated.")
    ] = None
    training_state: Annotated[
        bool, typer.Option("--training-state", help="Publish optimizer, scheduler and random states too.")
    ] = False
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Publish what links out of the directory lead to.")
    ] = False

    def rules(self, marker: str | None = None) -> CheckpointRules:
        """Returns them as a scanner takes them. marker: the file that makes a checkpoint complete."""
        from p2psync.trainer.watch.locations import CheckpointRules

        return CheckpointRules(
            marker=marker,
            inside=self.inside,
            ignore=tuple(self.ignore or ()),
            training_state=self.training_state,
            follow_links=self.follow_links,
        )


@dataclass(frozen=True, kw_only=True)
class CodingOptions:
    """How deltas are coded."""

    profile: Annotated[
        str, typer.Option(help="How deltas are coded: fast, tight or auto (the last actor commits soonest).")
    ] = "auto"
    link_mbps: Annotated[
        float, typer.Option(help="What the slowest link gives, for auto; 0: as actors measure it.", min=0)
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class SuccessionOptions:
    """How a run takes the place of another one, on purpose."""

    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Take the hub from another run on purpose, though its trainer is at work."),
    ] = False
    supersede: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Go back on purpose: go on from --store under a new run, which takes the place of RUN at every actor.",
        ),
    ] = ""

    def superseded_run(self) -> str:
        """Returns how the id of the run to supersede begins; "": none is. Raises `UsageError`."""
        from p2psync.membership.runs import parse_run

        return parse_run(self.supersede, "--supersede") if self.supersede else ""
