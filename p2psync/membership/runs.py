"""Decides which run a node follows, and describes runs for people. Pure.

A run id begins with the time of its creation, so ids order runs by age. The same rules hold at every node:

- An older run never replaces the run whose version is live, whichever hub offers it and whoever signed it.
- Within a run an earlier epoch never replaces a later one. Epochs of two runs are never compared.
- Only the live version counts: a run or an epoch that was announced, but of which nothing was committed, binds no node.

An operator goes back on purpose in one of two ways: `p2psync trainer --supersede RUN` makes the trainer, which holds
the key, continue under a run that is newer than RUN; `p2psync actor --follow-run RUN` makes one actor follow RUN.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from p2psync.errors import UsageError
from p2psync.membership.checks import printable_line
from p2psync.membership.records import new_run
from p2psync.setting_names import named

#: `--follow-run`: the newest run (by the rules above), or whichever run the hub offers; any other value is the start of
#: a run's id.
NEWEST = "newest"
ANY = "any"
#: Hex digits of a run id that hold its time of creation (milliseconds), by which people name it.
SHORT_RUN = 12
_RUN_DIGITS = 32

#: Why a run is not followed. older: than the live one. fenced: a later epoch of it is live. other: the operator chose
#: another run.
RefusalReason: TypeAlias = Literal["older", "fenced", "other"]


@dataclass(frozen=True, slots=True)
class RunRefusal:
    """A run and epoch that a hub offers and a node does not follow. live: the run and epoch of the node's live version.

    follow: the node's `--follow-run`, see `parse_follow`.
    """

    reason: RefusalReason
    run: str
    epoch: int
    live: str
    live_epoch: int
    follow: str = NEWEST

    def text(self) -> str:
        """Returns one line for people, with the remedy."""
        offered = f"the hub offers {run_name(self.run)}"
        if self.reason == "other":
            return (
                f"told to follow run {self.follow} (--follow-run); {offered}: not followed; leave --follow-run out to"
                " follow the newest run"
            )
        if self.reason == "fenced":
            return (
                f"at epoch {self.live_epoch} of {run_name(self.run)}; the hub offers its epoch {self.epoch}, which is"
                " over: not followed; stop that trainer and start the one with the newest store, or start it with"
                f" --supersede {short_run(self.run)}"
            )
        return (
            f"follows {run_name(self.live)}; {offered}, which is older: not followed; to follow it, start its trainer"
            f" with --supersede {short_run(self.live)}, or this node with --follow-run {short_run(self.run)}"
        )


def parse_follow(text: str) -> str:
    """Parses `--follow-run`: NEWEST, ANY, or at least the first 12 hex digits of a run's id. Raises `UsageError`."""
    if text in (NEWEST, ANY):
        return text
    return parse_run(text, named("follow_run"), f"{NEWEST}, {ANY} or ")


def parse_run(text: str, option: str, others: str = "") -> str:
    """Parses the start of a run's id, 12 to 32 hex digits. Raises `UsageError` that names `option`."""
    digits = text.lower()
    if not SHORT_RUN <= len(digits) <= _RUN_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise UsageError(
            f"{option} wants {others}the {SHORT_RUN} to {_RUN_DIGITS} hex digits of a run, as `p2psync status` shows it"
        )
    return digits


def why_not(follow: str, *, live: tuple[str, int], offered: tuple[str, int]) -> RefusalReason | None:
    """Returns why the offered (run, epoch) must not be followed; None if it may be.

    live: the run and epoch of the live version, or of the last one; ("", 0) before the first.
    """
    run, epoch = offered
    if follow not in (NEWEST, ANY) and not run.startswith(follow):
        return "other"
    if follow == NEWEST and run < live[0]:
        return "older"
    if run == live[0] and epoch < live[1]:
        return "fenced"
    return None


def is_newer(run: str, than: str) -> bool:
    """Returns whether a run is newer than another one, whose id starts with `than`."""
    return run[: len(than)] > than


def later_run(than: str, unix_ms: int, randomness: bytes) -> str:
    """Returns a new run's id, created at this time, or just after the run `than` ("": none) if that is later.

    So a new run is the newest, whatever clocks show. randomness: 10 bytes. Raises `UsageError` if no id follows `than`.
    """
    after = int(than[:SHORT_RUN], 16) + 1 if than else 0
    if after >= 1 << 48:
        raise UsageError(f"there is no run after {than[:SHORT_RUN]}; was that its id?")
    return new_run(max(unix_ms, after), randomness)


def short_run(run: str) -> str:
    """Returns the part of a run's id by which people name it, as one printable line whatever the hub sent."""
    return printable_line(run[:SHORT_RUN])


def run_name(run: str) -> str:
    """Returns a run's name for people: the first 12 digits of its id, and its time of creation."""
    if not run:
        return "no run"
    try:
        created = datetime.fromtimestamp(int(run[:SHORT_RUN], 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # not a time: the id was made elsewhere
        return f"run {short_run(run)}"
    return f"run {short_run(run)} (created {created:%Y-%m-%d %H:%M:%S} UTC)"
