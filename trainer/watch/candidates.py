"""Inspects each checkpoint of a listing: which files are part of it, whether it is whole, and if not, why not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import p2psync.engines.checkpoint.framework_names as names
from p2psync.engines.checkpoint.file_names import check_file_name, is_weights
from p2psync.engines.checkpoint.framework_names import ShardName, StepOrder, printable
from p2psync.errors import FormatError
from p2psync.trainer.watch.listing import EntryKind, Listing, ListingEntry
from p2psync.trainer.watch.locations import CheckpointLocation, CheckpointRules, find_locations, is_state, leads_outside

#: (path, size, mtime) of each weights file: tells one state of the weights from another, cheaply.
WeightStamps: TypeAlias = tuple[tuple[str, int, int], ...]
#: The `ListingEntry.stat` of every file in a checkpoint.
FileStates: TypeAlias = tuple[tuple[str, str, int, int, int, str], ...]

#: How long a fault must last before people are told (seconds). Every checkpoint is unfinished for a while, so that is
#: told only once it looks forgotten; a directory is empty for a moment after it was made.
UNFINISHED_SECONDS, EMPTY_SECONDS = 60.0, 2.0


@dataclass(frozen=True, slots=True)
class CheckpointFault:
    """The reason why a checkpoint cannot be published as it is.

    report_after: seconds that it must last before people are told. passing: it is expected to end by itself. warning:
    people should act.
    """

    reason: str
    report_after: float = 0.0
    passing: bool = True
    warning: bool = True


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One checkpoint in one state.

    path: relative to the watched directory, "" for that itself. order: its place among checkpoints, by its name. lone:
    whether it is a single file. files: the paths that are published, relative to the watched directory. weights: stamps
    of its safetensors files and indices; stamps: the same, each with its ctime. state: of all its files. time: when its
    weights were last written (Unix ns). fault: why it cannot be published as it is, None: it can. left_out: names and
    bytes of files that are not published. marked: whether the marker is there and no older than the weights.
    """

    path: str
    order: StepOrder
    lone: bool = False
    files: tuple[str, ...] = ()
    weights: WeightStamps = ()
    stamps: tuple[tuple[str, int, int, int], ...] = ()
    state: FileStates = ()
    time: int = 0
    fault: CheckpointFault | None = None
    left_out: tuple[tuple[str, int], ...] = ()
    marked: bool = False

    @property
    def file_states(self) -> FileStates:
        """The state of the files that are published, to tell whether they changed while they were read."""
        chosen = frozenset(self.files)
        return tuple(stat for stat in self.state if stat[0] in chosen)


@dataclass(frozen=True)
class FoundCandidates:
    """All checkpoints of a listing. excluded: models that are no checkpoint, by path, and why not."""

    candidates: list[Candidate]
    excluded: dict[str, str]


def find_candidates(listing: Listing, rules: CheckpointRules) -> FoundCandidates:
    """Returns every checkpoint of a listing, inspected."""
    layout = find_locations(listing, rules)
    others = frozenset(
        above for path in [*(p.path for p in layout.locations), *layout.excluded] for above in _ancestors(path)
    )
    candidates = [_CandidateInspector(listing, rules, location, others).candidate() for location in layout.locations]
    return FoundCandidates(candidates, layout.excluded)


@dataclass
class _CandidateInspector:
    listing: Listing
    rules: CheckpointRules
    location: CheckpointLocation
    others: frozenset[str]
    files: list[ListingEntry] = field(default_factory=list)
    unpublished: list[ListingEntry] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    faults: list[CheckpointFault] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    def candidate(self) -> Candidate:
        """Returns the checkpoint at this location."""
        path = self.location.path
        own = self.listing.entries.get(path)
        if own is not None and own.error:
            self.faults.append(CheckpointFault(own.error))
        elif own is not None and own.target is not None and not self.location.lone:
            self._check_links(own)
        if own is not None and self.location.lone:
            self._take_lone(own)
        else:
            self._collect(path)
        self._check_siblings()
        weights = [entry for entry in self.files if is_weights(entry.name) or names.is_index(entry.name)]
        if (fault := self._incomplete(weights)) is not None:
            self.faults.append(fault)
        seen = sorted(self.files + self.unpublished, key=lambda entry: entry.path)
        time = max((entry.mtime for entry in weights), default=0)
        return Candidate(
            path=path,
            order=names.order_of(path),
            lone=self.location.lone,
            files=tuple(sorted(entry.path for entry in self.files)),
            weights=tuple((self._inner(e), e.size, e.mtime) for e in weights),
            stamps=tuple((self._inner(e), e.size, e.mtime, e.ctime) for e in weights),
            state=tuple(entry.stat for entry in seen),
            time=time,
            fault=self.faults[0] if self.faults else None,
            left_out=tuple(sorted(self.left_out.items())),
            marked=self._is_marked(time),
        )

    # ---- the parts of a checkpoint ---------------------------------------------------------------------------------

    def _take_lone(self, entry: ListingEntry) -> None:
        self._take(entry)
        for other in self.listing.children(entry.parent):
            if other.name.startswith((entry.name, f".{entry.name}")) and names.is_unfinished(other.name):
                self._unfinished(other)

    def _collect(self, folder: str) -> None:
        for entry in self.listing.children(folder):
            in_root = self.location.path == "" == folder
            if self.rules.ignores(entry.path):
                continue
            if names.is_unfinished(entry.name):
                # In the watched directory itself these are other, unfinished checkpoints.
                if not (in_root and entry.kind is EntryKind.DIRECTORY):
                    self._unfinished(entry)
            elif names.is_hidden(entry.name):
                if entry.name == ".cache" and not in_root:
                    self._collect_unfinished(entry.path)
            elif entry.error:
                self.unpublished.append(entry)
                self.faults.append(CheckpointFault(f"{self._shown(entry)}: {entry.error}"))
            elif entry.kind is EntryKind.DIRECTORY:
                self._collect_folder(entry)
            elif not names.is_log(entry.name) and entry.path not in self.others:
                self._take(entry)

    def _collect_folder(self, entry: ListingEntry) -> None:
        is_state = names.is_training_state_folder(entry.name)
        if entry.path in self.others or entry.target in self.others or names.is_log_folder(entry.name):
            return
        if is_state and not self.rules.training_state:
            self.left_out[self._inner(entry) + "/"] = self._bytes(entry.path)
            self._collect_unpublished(entry.path)
        elif names.is_step(entry.name) and not is_state and not self.location.includes_models_below:
            return  # a step that holds no model yet: an unfinished checkpoint of its own
        elif entry.target is not None and not self.rules.follow_links:
            self._refuse(entry, "is a link to a directory: copy it there, or allow links with --follow-links")
        else:
            self._collect(entry.path)

    def _take(self, entry: ListingEntry) -> None:
        if is_state(entry) and not self.rules.training_state:
            self.left_out[self._inner(entry)] = entry.size
            self.unpublished.append(entry)
            return
        self.files.append(entry)
        if entry.kind is not EntryKind.FILE:
            self._refuse(entry, "is neither a file nor a directory: move it away, or pass it over with --ignore")
            return
        try:
            check_file_name(self._inner(entry))
        except FormatError as error:
            self.faults.append(
                CheckpointFault(f"{printable(str(error))}; or pass it over with --ignore", passing=False)
            )
        self._check_links(entry)

    def _check_links(self, entry: ListingEntry) -> None:
        """Refuse a file that may lie outside the watched directory, so that no private files are published."""
        if entry.identity in self.rules.secrets:
            self._refuse(entry, "is a key or token of this trainer: it is never published, remove it there")
        elif self.rules.follow_links:
            return
        elif entry.target is not None and leads_outside(entry.target):
            self._refuse(
                entry,
                f"is a link out of the watched directory, to {printable(entry.target)}: allow it with --follow-links",
            )
        elif entry.links > 1 and entry.owner != self.listing.owner_of(entry.parent):
            self._refuse(
                entry,
                "has another owner than its directory and other hard links: allow it with --follow-links, or copy it",
            )

    def _collect_unfinished(self, folder: str) -> None:
        for entry in self.listing.children(folder):
            if entry.kind is EntryKind.DIRECTORY:
                self._collect_unfinished(entry.path)
            elif names.is_unfinished(entry.name):
                self._unfinished(entry)

    def _collect_unpublished(self, folder: str) -> None:
        for entry in self.listing.children(folder):
            if entry.kind is EntryKind.DIRECTORY:
                self._collect_unpublished(entry.path)
            elif names.is_unfinished(entry.name):
                self._unfinished(entry)
            else:
                self.unpublished.append(entry)

    # ---- whether it is whole ---------------------------------------------------------------------------------------

    def _check_siblings(self) -> None:
        """Downloaders of whole directories keep `NAME.aria2` beside `NAME`."""
        path = self.location.path
        for entry in self.listing.children(path.rpartition("/")[0]) if path and not self.location.lone else []:
            if entry.kind is EntryKind.FILE and entry.path.startswith(path + ".") and names.is_unfinished(entry.name):
                self._unfinished(entry)
        if self.unfinished:
            listed = ", ".join(sorted(map(printable, self.unfinished))[:3])
            self.faults.append(
                CheckpointFault(f"{listed} is unfinished: remove it if nothing writes it any more", UNFINISHED_SECONDS)
            )
        if not names.is_text(path):
            self.faults.insert(0, CheckpointFault("its name is not UTF-8: rename it", passing=False))

    def _incomplete(self, weights: list[ListingEntry]) -> CheckpointFault | None:
        if self.location.competing_models:
            listed = ", ".join(self.location.competing_models[:4])
            return CheckpointFault(
                f"it holds several models ({listed}): choose one with --inside, or all with --inside .", passing=False
            )
        if not any(is_weights(entry.name) for entry in weights):
            return self._no_weights(weights)
        for entry in weights:
            if entry.fault:
                return CheckpointFault(f"{self._shown(entry)}: {entry.fault}")
        return self._missing(weights)

    def _no_weights(self, indices: list[ListingEntry]) -> CheckpointFault:
        if indices:
            return self._missing(indices) or CheckpointFault("no .safetensors file is in it yet")
        pickles = [name for name in [*map(self._inner, self.files), *self.left_out] if _is_pickle(name)]
        if pickles:
            return CheckpointFault(
                f"{printable(pickles[0])} is no safetensors file and cannot be sent as a delta: save the model with "
                "safe_serialization=True, or convert it",
                EMPTY_SECONDS,
                passing=False,
            )
        what = "no .safetensors file is in it" if self.files or self.left_out else "it is empty"
        return CheckpointFault(
            f"{what}: nothing to publish; --ignore passes it over", EMPTY_SECONDS, passing=False, warning=False
        )

    def _missing(self, weights: list[ListingEntry]) -> CheckpointFault | None:
        present = {entry.path for entry in weights}
        named: set[str] = set()
        for index in [entry for entry in weights if names.is_index(entry.name)]:
            if index.fault:
                return CheckpointFault(f"{self._shown(index)}: {index.fault}")
            shards = {f"{index.parent}/{name}" if index.parent else name for name in index.shards or ()}
            if missing := sorted(shards - present):
                return CheckpointFault(f"{printable(self._relative(missing[0]))} of its index is missing")
            named |= shards
        for (folder, stem, count), found in _sharded_sets(weights).items():
            first = 0 if 0 in found else 1
            lacking = sorted(set(range(first, first + count)) - found.keys())
            if lacking:
                return CheckpointFault(f"shard {lacking[0]} of {count} of {printable(stem or folder)} is missing")
            unnamed = [path for path in found.values() if path not in named]
            if unnamed and count > 1:
                return CheckpointFault(
                    f"{printable(self._relative(min(unnamed)))} is named by no index: the index is missing or old"
                )
        return None

    def _is_marked(self, time: int) -> bool:
        if self.rules.marker is None:
            return False
        path = self.location.path
        marker = self.listing.entries.get(f"{path}/{self.rules.marker}" if path else self.rules.marker)
        return marker is not None and not marker.error and marker.mtime >= time

    # ---- small things ----------------------------------------------------------------------------------------------

    def _unfinished(self, entry: ListingEntry) -> None:
        self.unfinished.append(entry.name)
        self.unpublished.append(entry)

    def _refuse(self, entry: ListingEntry, reason: str) -> None:
        self.faults.append(CheckpointFault(f"{self._shown(entry)} {reason}", passing=False))

    def _bytes(self, folder: str) -> int:
        return sum(
            self._bytes(entry.path) if entry.kind is EntryKind.DIRECTORY else entry.size
            for entry in self.listing.children(folder)
        )

    def _relative(self, path: str) -> str:
        return path.removeprefix(f"{self.location.path}/") if not self.location.lone else path.rpartition("/")[2]

    def _inner(self, entry: ListingEntry) -> str:
        return self._relative(entry.path)

    def _shown(self, entry: ListingEntry) -> str:
        return printable(self._inner(entry))


def _sharded_sets(weights: list[ListingEntry]) -> dict[tuple[str, str, int], dict[int, str]]:
    """Returns the paths of the shards of each set (directory, stem, number of shards), by shard number."""
    sets: dict[tuple[str, str, int], dict[int, str]] = {}
    for entry in weights:
        shard: ShardName | None = names.shard_of(entry.name)
        if shard is not None:
            sets.setdefault((entry.parent, shard.stem, shard.total), {})[shard.number] = entry.path
    return sets


def _ancestors(path: str) -> list[str]:
    """Returns a path and every directory above it but the watched one."""
    parts = path.split("/")
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _is_pickle(name: str) -> bool:
    return name.endswith((".bin", ".pt", ".pth", ".ckpt", ".gguf", ".distcp"))
