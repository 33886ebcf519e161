"""Under any history of a watched directory, the newest whole policy known is live, and never an earlier one.

Histories are drawn at random: shards that come one by one, touches, new inodes, removals by halves, renames, copies,
links, read errors, clock jumps, restarts from the durable state, crashes around a publish. A small reference model,
over (step, policy) pairs instead of files, tells after each look which checkpoint must be live.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from watch_parts import Disk, Watched

from p2psync.trainer.watch.listing import ListingEntry
from p2psync.trainer.watch.memory import WatchMemory

SETTLE = 2.0
SHARDS = 2
STEPS = range(1, 6)
NAMES = [f"model-{i:05d}-of-{SHARDS:05d}.safetensors" for i in range(1, SHARDS + 1)]
INDEX = "model.safetensors.index.json"
PARTS = [*NAMES, INDEX]


def place(step: int) -> str:
    return f"run/checkpoint-{step}"


@dataclass
class Reference:
    """A model of the live checkpoint: `live` is (step, policy); `retired` are policies that may never come back."""

    live: tuple[int, str] | None = None
    live_time: int = 0
    retired: set[str] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    unfit: set[int] = field(default_factory=set)
    looked_at: dict[int, tuple[list[ListingEntry], float]] = field(default_factory=dict)

    def look(self, disk: Disk, now: float) -> None:
        """Take in one scan of the directory."""
        whole = {step for step in STEPS if self.is_quiet(disk, step, now) and is_whole(disk, step)}
        present = {step for step in STEPS if disk.below(place(step))}
        self.choose(disk, whole, present)

    def choose(self, disk: Disk, whole: set[int], present: set[int]) -> None:
        """Returns the live checkpoint after a scan that found these steps."""
        policies = {step: policy(disk, step) for step in whole}
        if whole and self.follows(disk, max(whole), policies, present):
            top = max(whole)
            for step in present - {top}:
                if step < top:
                    self.seen.add(step)
                    self.unfit |= {step} - whole
            times = [time_of(disk, step) for step in whole]
            self.live, self.live_time = (top, policies[top]), max([self.live_time, *times])
            self.retired.add(policies[top])
            self.seen.add(top)
        if self.live is not None:
            for step in whole - {self.live[0]}:
                if step < self.live[0]:
                    self.retired.add(policies[step])
                    self.seen.add(step)
                    self.unfit.discard(step)

    def follows(self, disk: Disk, top: int, policies: dict[int, str], present: set[int]) -> bool:
        """Returns whether the highest whole step is to become live."""
        if self.live is None or top > self.live[0]:
            return True
        step, live = self.live
        if top == step:
            return policies[top] != live
        weighted = {s for s in present if any(name in disk.entries for name in parts(s))}
        if step in present or any(other > top for other in weighted) or policies[top] in self.retired:
            return False
        return top not in self.unfit if top in self.seen else time_of(disk, top) > self.live_time

    def is_quiet(self, disk: Disk, step: int, now: float) -> bool:
        """Returns whether nothing in a step has changed for the settling time."""
        entries = [replace(disk.entries[name], identity=(0, 0)) for name in sorted(disk.below(place(step)))]
        before, since = self.looked_at.get(step, ([], 0.0))
        if before != entries or now < since:
            since = now
        self.looked_at[step] = (entries, since)
        return now - since >= SETTLE


def parts(step: int) -> list[str]:
    return [f"{place(step)}/{name}" for name in PARTS]


def is_whole(disk: Disk, step: int) -> bool:
    there = disk.below(place(step))
    clean = not any(disk.entries[name].error or name.endswith(".partial") for name in there)
    return clean and set(parts(step)) <= set(there)


def policy(disk: Disk, step: int) -> str:
    return "+".join(disk.bits[name] for name in parts(step)[:SHARDS])


def time_of(disk: Disk, step: int) -> int:
    return max(disk.entries[name].mtime for name in parts(step))


class History:
    """Applies drawn events to a disk."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.disk.folder("run")
        self.policies = 0
        self.coming: dict[int, list[str]] = {}

    def apply(self, event: str, step: int, part: int) -> None:
        """Apply one event."""
        self.disk.now += 1
        here = self.disk.below(place(step))
        match event:
            case "begin":
                self.policies += 1
                self.disk.write(f"{place(step)}/config.json")
                self.coming[step] = [f"{name}={self.policies}" for name in PARTS[part:] + PARTS[:part]]
            case "write" | "finish":
                coming = self.coming.get(step, [])
                while coming:
                    self.write_part(step, *coming.pop(0).split("="))
                    if event == "write":
                        break
            case "touch" if here:
                self.disk.touch(place(step))
            case "inodes":
                self.disk.new_inodes("")
            case "evaluate" if here:
                self.disk.write(f"{place(step)}/eval.json", str(self.disk.now))
            case "partial" if here:
                self.disk.write(f"{place(step)}/{NAMES[0]}.partial")
            case "moved":
                self.disk.remove(f"{place(step)}/{NAMES[0]}.partial")
            case "remove part":
                self.disk.remove(f"{place(step)}/{PARTS[part]}")
                self.coming.pop(step, None)
            case "remove":
                self.disk.remove(place(step))
                self.coming.pop(step, None)
            case "error" if f"{place(step)}/{NAMES[0]}" in self.disk.entries:
                name = f"{place(step)}/{NAMES[0]}"
                self.disk.entries[name] = replace(self.disk.entries[name], error="Input/output error")
            case "mend":
                for name in here:
                    self.disk.entries[name] = replace(self.disk.entries[name], error="")
            case "link":
                self.disk.link("run/latest", place(step))
            case "wait":
                self.disk.now += 3
            case "wait long":
                self.disk.now += 100

    def write_part(self, step: int, name: str, bits: str) -> None:
        """Write one file of a checkpoint."""
        path = f"{place(step)}/{name}"
        if name == INDEX:
            self.disk.index(path, *NAMES)
        else:
            self.disk.write(path, bits)


EVENTS = [
    "begin", "begin", "write", "finish", "finish", "touch", "inodes", "evaluate", "partial", "moved", "remove part",
    "remove", "remove", "error", "mend", "link", "wait", "wait", "wait long",
    "copy", "rename", "restart", "crash", "jump",
]  # fmt: skip
HISTORIES = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.sampled_from(list(STEPS)), st.integers(0, SHARDS)), min_size=5, max_size=60
)


@settings(max_examples=200, deadline=None)
@given(HISTORIES)
def test_random_histories_keep_the_newest_whole_policy_live(events: list[tuple[str, int, int]]) -> None:
    history, reference, skew = History(), Reference(), 0.0
    watched = Watched(history.disk, settle=SETTLE)
    for event, step, part in events:
        history.apply(event, step, part)
        disk = history.disk
        if event in ("copy", "rename") and is_whole(disk, step) and policy(disk, step) in reference.retired:
            to = "run/latest-copy" if event == "copy" else f"run/old-{chr(97 + step)}"
            disk.remove(to)
            (disk.copy if event == "copy" else disk.move)(place(step), to)
        if event == "restart":
            watched.restart(msgspec.json.decode(msgspec.json.encode(watched.watcher.memory), type=WatchMemory))
            reference.looked_at.clear()
        if event == "jump":
            skew += (step - 3) * 50.0
        now = disk.now + skew
        reference.look(disk, now)
        crash = event == "crash"
        for _ in range(3):
            candidate = watched.offered(now)
            if candidate is None:
                break
            watched.publish(candidate, crash=crash)
            if crash:
                reference.looked_at.clear()
                break
        expected = place(reference.live[0]) if reference.live else None
        assert watched.live == expected, (event, step, watched.history)
