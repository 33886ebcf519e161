"""Options of the commands that publish checkpoints; docs/guides/checkpoints.md has the rules behind them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Backlog(StrEnum):
    """The choice of checkpoints to publish if several wait."""

    newest = "newest"
    all = "all"


Inside = Annotated[
    str | None,
    typer.Option(help="Where in each checkpoint the policy is, a glob: actor/huggingface; . takes it whole."),
]
Ignore = Annotated[
    list[str] | None, typer.Option(help="Pass over what this glob matches, a path or a name; may be repeated.")
]
TrainingState = Annotated[
    bool, typer.Option("--training-state", help="Publish optimizer, scheduler and random states too.")
]
FollowLinks = Annotated[
    bool,
    typer.Option("--follow-links", help="Publish what links out of the directory lead to."),
]
