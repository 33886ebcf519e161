"""What a daemon tells of itself: typed events, and the one line that each is for people."""

from __future__ import annotations

import math

import msgspec

from p2psync.membership.runs import run_name, short_run

#: Bytes below which a part of what was fetched is not told: it would be shown as 0.0 MB.
_SHOWN_BYTES = 50_000


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events. `line()` is what a terminal or a log shows; a severity of "warning" asks for attention."""

    def line(self) -> str:
        """One line for people."""
        raise NotImplementedError

    @property
    def severity(self) -> str:
        """ "info" or "warning"."""
        return "info"


class Warned(Event, frozen=True):
    """Base of the events that ask for attention."""

    @property
    def severity(self) -> str:
        """ "warning"."""
        return "warning"


class HubJoined(Event, frozen=True):
    """The hub granted a lease."""

    url: str

    def line(self) -> str:
        """One line for people."""
        return f"joined the hub at {self.url}"


class HubAway(Warned, frozen=True):
    """The hub cannot be reached; told once until it is back."""

    message: str

    def line(self) -> str:
        """One line for people."""
        return self.message


class RunRefused(Warned, frozen=True):
    """The hub offers a run, or an epoch of it, that this node does not follow; see `p2psync.membership.runs`.

    run, epoch: what is offered. live: the run that this node is at. reason: older, fenced or other.
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
    """A version of another run than before is live."""

    run: str
    before: str

    def line(self) -> str:
        """One line for people."""
        return f"follows {run_name(self.run)} now, instead of {run_name(self.before)}"


class PeerUp(Event, frozen=True):
    """A peer is connected."""

    peer: str
    region: str

    def line(self) -> str:
        """One line for people."""
        return f"peer {self.peer[:8]} connected" + (f" (region {self.region})" if self.region else "")


class PeerDown(Event, frozen=True):
    """A peer is gone."""

    peer: str

    def line(self) -> str:
        """One line for people."""
        return f"peer {self.peer[:8]} gone"


class PeerBanned(Warned, frozen=True):
    """A peer sent what the manifest does not sign."""

    peer: str
    reason: str

    def line(self) -> str:
        """One line for people."""
        return f"peer {self.peer[:8]} is shut out: {self.reason}"


class Fetching(Event, frozen=True):
    """A way to a version was chosen. payload_bytes: of the chunks still to be had from peers."""

    version: int
    steps: int
    anchor: bool
    payload_bytes: int

    def line(self) -> str:
        """One line for people."""
        way = "an anchor" if self.anchor else "a delta"
        more = f" and {self.steps - 1} more" if self.steps > 1 else ""
        return f"fetching version {self.version} by {way}{more}, {self.payload_bytes / 1e6:.1f} MB"


class FetchProgress(Event, frozen=True):
    """How far the fetch of a version is; told every few seconds while it lasts.

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
    """A version is live.

    steps: manifests on the way to it, from version `since` on; None: the first is an anchor. changed, total: units that
    the deltas among them change, and units that they are of, each summed over the deltas; of an anchor that is alone,
    its own. payload_bytes: of the chunks that the way needs. fetched_bytes: of the chunks that peers sent since the
    commit before; wasted_bytes of them came twice, too late or damaged. seconds: since the way was chosen.
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

    @property
    def share(self) -> float:
        """The part of its units that a delta of the way changes, on average; 0 to 1."""
        return self.changed / self.total if self.total else 0.0

    def line(self) -> str:
        """One line for people."""
        return (
            f"version {self.version} is live ({self._way()}, {self._bytes()}, {self.seconds:.2f} s, "
            f"pause {1e3 * self.pause_seconds:.1f} ms, digest {self.digest[:12]})"
        )

    def _way(self) -> str:
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
        """What was fetched, and why it is more than the way needs."""
        useful = self.fetched_bytes - self.wasted_bytes
        surplus = [
            (self.wasted_bytes, "came twice or too late"),
            (max(0, useful - self.payload_bytes), "of other versions"),
        ]
        told = [f"{_mb(size)} {why}" for size, why in surplus if size >= _SHOWN_BYTES]
        return f"{_mb(self.fetched_bytes)} fetched" + (f", of it {' and '.join(told)}" if told else "")


class Published(Event, frozen=True):
    """The trainer made a version durable and announced it. at: Unix seconds. checkpoint: the path that it was read
    from; "" if it was read from no file."""

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
        kind = "anchor" if self.anchor else f"{100 * self.changed / max(1, self.total):.2f} % changed, {self.profile}"
        return (
            f"published version {self.version}{_from(self.checkpoint)} ({kind}, {self.payload_bytes / 1e6:.2f} MB, "
            f"{ratio}{self.chunks} chunks, {self.seconds:.2f} s, digest {self.digest[:12]})"
        )


class Watching(Event, frozen=True):
    """The trainer watches a directory. checkpoint: what the live version was read from, "" if that is not known.
    version: the live one; None before the first."""

    directory: str
    checkpoint: str
    version: int | None

    def line(self) -> str:
        """One line for people."""
        if self.version is None:
            return f"watching {self.directory}: nothing is published yet"
        return f"watching {self.directory}: version {self.version}{_from(self.checkpoint)} is live"


class ProfileChosen(Event, frozen=True):
    """Deltas are coded in this profile from now on. seconds: expected until the last commit, by profile."""

    profile: str
    why: str
    seconds: dict[str, float] = {}

    def line(self) -> str:
        """One line for people."""
        return f"publishing in profile {self.profile}: {self.why}"


class ActorsElsewhere(Warned, frozen=True):
    """So many actors are at a newer run than this trainer's, or at a later epoch of it: they do not take its versions.

    run, epoch: theirs. own: the trainer's run.
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


class Unlike(Warned, frozen=True):
    """A version has few tensors in common with its base: shared of `tensors`, and bytes of them."""

    version: int
    base: int
    shared: int
    tensors: int
    shared_bytes: int
    total_bytes: int

    def line(self) -> str:
        """One line for people."""
        fetched = (self.total_bytes - self.shared_bytes) / 1e6
        few = f"{self.shared} of its {self.tensors} tensors" if self.shared else f"none of its {self.tensors} tensors"
        return (
            f"version {self.version} shares {few} with version {self.base}: every actor fetches {fetched:.1f} of"
            f" {self.total_bytes / 1e6:.1f} MB anew; is --store the one of this model? An empty one begins a new run"
        )


class Squashed(Event, frozen=True):
    """A chain of deltas was squashed into one, for members that are behind. chain_bytes: of the chunks of the chain."""

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
    """Something failed; what was live stays live, and it will be tried again where that makes sense."""

    message: str

    def line(self) -> str:
        """One line for people."""
        return self.message


class Note(Event, frozen=True):
    """Something worth a line."""

    message: str

    def line(self) -> str:
        """One line for people."""
        return self.message


def _from(checkpoint: str) -> str:
    return f" from {checkpoint}" if checkpoint else ""


def _deltas(count: int, percent: str) -> str:
    """How many deltas, and what each of them changes."""
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
