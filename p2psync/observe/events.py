"""The typed events of a daemon, and the line that each shows to people."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, TypeAlias

import msgspec

from p2psync.membership.runs import run_name, short_run
from p2psync.setting_names import named

#: Smallest part of the fetched bytes that `Committed` names: a smaller one would show as 0.0 MB.
_SHOWN_BYTES = 50_000

#: How urgent an event is. info: normal operation. warning: needs attention. error: the daemon cannot go on.
Severity: TypeAlias = Literal["info", "warning", "error"]


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events. `line()` is the text for a terminal or a log.

    severity: a constant of each class, "info" unless it says otherwise.
    """

    severity: ClassVar[Severity] = "info"

    def line(self) -> str:
        """One line for people."""
        raise NotImplementedError


class Warned(Event, frozen=True):
    """Base of the events that ask for attention."""

    severity: ClassVar[Severity] = "warning"


class CodecCompiling(Warned, frozen=True):
    """The node starts to compile the codec; it decodes and publishes nothing before that is done."""

    def line(self) -> str:
        """One line for people."""
        return "compiling the codec, once for this machine: half a minute or more; versions wait for it"


class CodecCompiled(Event, frozen=True):
    """The node has compiled the codec, `seconds` after it began."""

    seconds: float

    def line(self) -> str:
        """One line for people."""
        return f"the codec is compiled ({self.seconds:.0f} s)"


class HubJoined(Event, frozen=True):
    """The hub granted a lease."""

    url: str

    def line(self) -> str:
        """One line for people."""
        return f"joined the hub at {self.url}"


class HubUnreachable(Warned, frozen=True):
    """The hub cannot be reached; emitted once until it is back."""

    message: str

    def line(self) -> str:
        """One line for people."""
        return self.message


class RunRefused(Warned, frozen=True):
    """The hub offers a run, or an epoch of it, that this node does not follow; see `p2psync.membership.runs`.

    run, epoch: those offered. live: the run of this node's live version. reason: older, fenced or other. message: the
    line for people.
    """

    run: str
    epoch: int
    live: str
    reason: str
    message: str

    def line(self) -> str:
        """One line for people."""
        return self.message


class RunChanged(Event, frozen=True):
    """A version of another run became live. before: the earlier run."""

    run: str
    before: str

    def line(self) -> str:
        """One line for people."""
        return f"follows {run_name(self.run)} now, instead of {run_name(self.before)}"


class PeerUp(Event, frozen=True):
    """A peer connected."""

    peer: str
    region: str

    def line(self) -> str:
        """One line for people."""
        return f"peer {self.peer[:8]} connected" + (f" (region {self.region})" if self.region else "")


class PeerDown(Event, frozen=True):
    """A peer disconnected."""

    peer: str

    def line(self) -> str:
        """One line for people."""
        return f"peer {self.peer[:8]} gone"


class PeerBanned(Warned, frozen=True):
    """A peer was banned for data that the manifest does not sign."""

    peer: str
    reason: str

    def line(self) -> str:
        """One line for people."""
        return f"peer {self.peer[:8]} is shut out: {self.reason}"


class Fetching(Event, frozen=True):
    """The node chose a path to a version and fetches it. payload_bytes: of the chunks that peers must still send."""

    version: int
    steps: int
    anchor: bool
    payload_bytes: int

    def line(self) -> str:
        """One line for people."""
        first = "an anchor" if self.anchor else "a delta"
        more = f" and {self.steps - 1} more" if self.steps > 1 else ""
        return f"fetching version {self.version} by {first}{more}, {self.payload_bytes / 1e6:.1f} MB"


class FetchProgress(Event, frozen=True):
    """The progress of fetching a version; emitted every few seconds while it lasts.

    held_bytes, total_bytes: of the chunks that the way to it needs. bytes_per_second: since the fetch began.
    seconds_left: at that rate; None while nothing comes.
    """

    version: int
    held_bytes: int
    total_bytes: int
    bytes_per_second: float
    seconds_left: float | None

    def line(self) -> str:
        """One line for people."""
        percent = 100 * self.held_bytes / self.total_bytes if self.total_bytes else 100.0
        left = "nothing comes" if self.seconds_left is None else f"about {_span(self.seconds_left)} left"
        return (
            f"fetching version {self.version}: {math.floor(percent)} % of {_size(self.total_bytes)}, "
            f"{self.bytes_per_second / 1e6:.1f} MB/s, {left}"
        )


class Committed(Event, frozen=True):
    """A version became live.

    steps: manifests on the path to it, from version `since` on; None: the first is an anchor. changed, total: units
    that the path's deltas change, and units that they cover, each summed over the deltas; of an anchor alone, its own.
    payload_bytes: of the chunks that the path needs. fetched_bytes: of the chunks that peers sent since the commit
    before; wasted_bytes of them were duplicate, late or damaged, pushed_bytes came along the plan's trees without a
    request. seconds: since the path was chosen. at: Unix seconds.
    """

    version: int
    digest: str
    changed: int
    total: int
    fetched_bytes: int
    seconds: float
    pause_seconds: float
    stage_seconds: float
    at: float
    steps: int = 1
    since: int | None = None
    payload_bytes: int = 0
    wasted_bytes: int = 0
    pushed_bytes: int = 0

    @property
    def share(self) -> float:
        """The share of its units that a delta of the path changes, on average; 0 to 1."""
        return self.changed / self.total if self.total else 0.0

    def line(self) -> str:
        """One line for people."""
        return (
            f"version {self.version} is live ({self._path()}, {self._bytes()}, {self.seconds:.2f} s, "
            f"pause {1e3 * self.pause_seconds:.1f} ms, digest {self.digest[:12]})"
        )

    def _path(self) -> str:
        deltas = self.steps - (self.since is None)
        percent = f"{100 * self.share:.2f} %"
        if not self.total:
            return "empty"
        if self.since is None:
            return f"whole, and {_deltas(deltas, percent)}" if deltas else "whole"
        if deltas > 1:
            return f"{_deltas(deltas, percent)} since version {self.since}"
        return f"{percent} changed" + (f" since version {self.since}" if self.version > self.since + 1 else "")

    def _bytes(self) -> str:
        """Returns the bytes fetched, and why they exceed those that the path needs."""
        useful = self.fetched_bytes - self.wasted_bytes
        surplus = [
            (self.wasted_bytes, "came twice or too late"),
            (max(0, useful - self.payload_bytes), "of other versions"),
        ]
        parts = [f"{_mb(size)} {why}" for size, why in surplus if size >= _SHOWN_BYTES]
        return f"{_mb(self.fetched_bytes)} fetched" + (f", of it {' and '.join(parts)}" if parts else "")


class Published(Event, frozen=True):
    """The trainer made a version durable and announced it.

    at: Unix seconds. checkpoint: the path that the version was read from; "" if it was read from no file.
    """

    version: int
    digest: str
    anchor: bool
    changed: int
    total: int
    payload_bytes: int
    full_bytes: int
    chunks: int
    seconds: float
    at: float
    profile: str = "fast"
    checkpoint: str = ""

    def line(self) -> str:
        """One line for people."""
        ratio = f"{self.full_bytes / self.payload_bytes:.0f}× smaller than whole, " if self.payload_bytes else ""
        if self.anchor:
            ratio = f"whole, of {self.full_bytes / 1e6:.2f} MB, "
        kind = "anchor" if self.anchor else f"{100 * self.changed / max(1, self.total):.2f} % changed, {self.profile}"
        return (
            f"published version {self.version}{_from(self.checkpoint)} ({kind}, {self.payload_bytes / 1e6:.2f} MB, "
            f"{ratio}{self.chunks} chunks, {self.seconds:.2f} s, digest {self.digest[:12]})"
        )


class Watching(Event, frozen=True):
    """The trainer watches a directory.

    checkpoint: the path that the live version was read from, "" if unknown. version: the live one; None before the
    first.
    """

    directory: str
    checkpoint: str
    version: int | None

    def line(self) -> str:
        """One line for people."""
        if self.version is None:
            return f"watching {self.directory}: nothing is published yet"
        return f"watching {self.directory}: version {self.version}{_from(self.checkpoint)} is live"


class ProfileChosen(Event, frozen=True):
    """The trainer codes deltas in this profile from now on.

    seconds: predicted time until the last commit, by profile.
    """

    profile: str
    why: str
    seconds: dict[str, float] = {}

    def line(self) -> str:
        """One line for people."""
        return f"publishing in profile {self.profile}: {self.why}"


class ActorsOnNewerRun(Warned, frozen=True):
    """Some actors run a newer run than this trainer's, or a later epoch of it, and reject its versions.

    actors: their number. run, epoch: theirs. own, own_epoch: the trainer's.
    """

    actors: int
    run: str
    epoch: int
    own: str
    own_epoch: int

    def line(self) -> str:
        """One line for people."""
        who = f"{self.actors} actor follows" if self.actors == 1 else f"{self.actors} actors follow"
        if self.run == self.own:
            which = f"epoch {self.epoch} of this run, and this trainer is at {self.own_epoch}, of an older store"
        else:
            which = f"{run_name(self.run)}, which is newer than {run_name(self.own)} of this trainer"
        return (
            f"{who} {which}: its versions are not taken there; to have all take them, start this trainer with"
            f" --supersede {short_run(self.run)}"
            + ("" if self.run == self.own else f", to have some, start those with --follow-run {short_run(self.own)}")
        )


class FewTensorsShared(Warned, frozen=True):
    """A version shares few tensors with its base.

    shared of `tensors` are common to both, shared_bytes of `total_bytes`.
    """

    version: int
    base: int
    shared: int
    tensors: int
    shared_bytes: int
    total_bytes: int

    def line(self) -> str:
        """One line for people."""
        fetched = (self.total_bytes - self.shared_bytes) / 1e6
        setting = named("store")
        few = f"{self.shared} of its {self.tensors} tensors" if self.shared else f"none of its {self.tensors} tensors"
        return (
            f"version {self.version} shares {few} with version {self.base}: every actor fetches {fetched:.1f} of"
            f" {self.total_bytes / 1e6:.1f} MB again; is {setting} the one of this model? An empty one begins a new run"
        )


class Squashed(Event, frozen=True):
    """The trainer squashed a chain of deltas into one, for members that are behind.

    chain_bytes: bytes of the chain's chunks.
    """

    base: int
    version: int
    steps: int
    payload_bytes: int
    chain_bytes: int
    seconds: float
    profile: str = "fast"

    def line(self) -> str:
        """One line for people."""
        return (
            f"squashed {self.steps} deltas into {self.base} → {self.version} "
            f"({self.profile}, {self.payload_bytes / 1e6:.2f} MB instead of {self.chain_bytes / 1e6:.2f}, "
            f"{self.seconds:.2f} s)"
        )


class Trouble(Warned, frozen=True):
    """An operation failed; the live version stays live, and the node retries where that can help."""

    message: str

    def line(self) -> str:
        """One line for people."""
        return self.message


class Note(Event, frozen=True):
    """A notable event without a type of its own."""

    message: str

    def line(self) -> str:
        """One line for people."""
        return self.message


def _from(checkpoint: str) -> str:
    return f" from {checkpoint}" if checkpoint else ""


def _deltas(count: int, percent: str) -> str:
    """The number of deltas, and the share that each changes."""
    if count == 1:
        return f"a delta of {percent} changed"
    return f"{count} deltas of {percent} changed each on average"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
