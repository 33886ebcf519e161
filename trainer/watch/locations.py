"""Finds the locations of checkpoints in a listing: the directories (or lone files) that hold a policy, one per step.

It knows the layouts that frameworks write (docs/guides/checkpoints.md names them). A directory that holds safetensors
files of a model is a checkpoint; a checkpoint within it is another one and never a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import p2psync.engines.checkpoint.framework_names as names
from p2psync.engines.checkpoint.file_names import is_weights
from p2psync.trainer.watch.listing import EntryKind, Listing, ListingEntry


@dataclass(frozen=True, kw_only=True)
class CheckpointRules:
    """The user's rules for finding and publishing checkpoints.

    marker: the file that makes a checkpoint complete. inside: a glob of the directories below each checkpoint that hold
    the policy ("." is the checkpoint itself, with all in it). ignore: globs of paths and names to ignore.
    training_state: publish it too. follow_links: publish the targets of links that lead outside the watched directory.
    secrets: identities (device, inode) of files that are never published.
    """

    marker: str | None = None
    inside: str | None = None
    ignore: tuple[str, ...] = ()
    training_state: bool = False
    follow_links: bool = False
    secrets: frozenset[tuple[int, int]] = frozenset()

    def ignores(self, path: str) -> bool:
        """Returns whether the rules ignore a path, by the path or by its last part."""
        name = path.rpartition("/")[2]
        return any(fnmatchcase(path, glob) or fnmatchcase(name, glob) for glob in self.ignore)


@dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """The location of one checkpoint.

    path: the directory, "" for the watched one, or a lone file. has_weights: whether a model's weights are in it. lone:
    whether it is a lone file. includes_models_below: whether models in directories below it are its components.
    competing_models: models in it among which none can be chosen.
    """

    path: str
    has_weights: bool = True
    lone: bool = False
    includes_models_below: bool = False
    competing_models: tuple[str, ...] = ()


@dataclass
class FoundLocations:
    """locations: of all checkpoints. excluded: directories and files of models that are no checkpoint, and why not."""

    locations: list[CheckpointLocation]
    excluded: dict[str, str] = field(default_factory=dict)


def find_locations(listing: Listing, rules: CheckpointRules) -> FoundLocations:
    """Returns the location of every checkpoint of a listing, complete or not."""
    search = _LocationSearch(listing, rules)
    locations = search.matching() if rules.inside not in (None, ".") else search.below("")
    return FoundLocations(locations, search.excluded)


class _LocationSearch:
    def __init__(self, listing: Listing, rules: CheckpointRules) -> None:
        self.listing = listing
        self.rules = rules
        self.excluded: dict[str, str] = {}

    def matching(self) -> list[CheckpointLocation]:
        """Returns the directories that match `rules.inside`."""
        wanted = (self.rules.inside or "").strip("/").split("/")
        found = []
        for folder in self._all_folders(""):
            parts = folder.split("/")
            ending = parts[-len(wanted) :]
            if len(parts) >= len(wanted) and all(map(fnmatchcase, ending, wanted)):
                found.append(CheckpointLocation(folder, self._has_weights(folder), includes_models_below=True))
        return found

    def below(self, folder: str) -> list[CheckpointLocation]:
        """Returns the checkpoints at and below a directory."""
        inner = [location for sub in self._folders(folder) for location in self.below(sub.path)]
        steps = [location for location in inner if any(map(names.is_step, _parts(location.path, folder)))]
        others = [location for location in inner if location not in steps]
        is_step = bool(folder) and names.is_step(_name(folder))
        lone = [] if is_step else self._lone_steps(folder)
        own = self._has_weights(folder, without={location.path for location in lone})
        if is_step:  # state that DeepSpeed keeps in a step is no step of its own
            steps = [location for location in steps if location.has_weights]
        if own and not self._is_stray(folder, [*steps, *others, *lone]):
            pipeline = self._is_pipeline(folder)
            if is_step:
                others, steps = [*others, *steps], []
            if not pipeline:
                self._exclude((p for p in others if p.has_weights), "lies within another checkpoint")
            return [CheckpointLocation(folder, includes_models_below=pipeline), *steps, *lone]
        if is_step:
            models = [location for location in others if location.has_weights]
            return [*(self._one_of(folder, models) if models or not steps else []), *steps]
        found = self._policies([*others, *steps])
        if found or lone or not folder or "/" in folder:
            return [*found, *lone]
        return [CheckpointLocation(folder, has_weights=False)]

    def _one_of(self, step: str, models: list[CheckpointLocation]) -> list[CheckpointLocation]:
        """Returns the policy of a step that keeps its models in directories of their own."""
        if self.rules.inside == ".":
            return [CheckpointLocation(step, bool(models), includes_models_below=True)]
        models = self._policies(models)
        if len(models) == 1:
            return models
        for location in names.POLICY_FOLDERS:
            preferred = [model for model in models if model.path == _join(step, location)]
            if preferred:
                self._exclude((m for m in models if m not in preferred), f"stands beside {location}: --inside chooses")
                return preferred
        if self._is_pipeline(step):
            return [CheckpointLocation(step, includes_models_below=True)]
        return [
            CheckpointLocation(step, has_weights=bool(models), competing_models=tuple(model.path for model in models))
        ]

    def _is_pipeline(self, folder: str) -> bool:
        return any(_join(folder, name) in self.listing.entries for name in names.PIPELINE_FILES)

    def _is_stray(self, folder: str, others: list[CheckpointLocation]) -> bool:
        """Returns whether the weights in a directory of checkpoints are no model: no (adapter_)config.json is there."""
        config = any(_join(folder, name) in self.listing.entries for name in ("config.json", "adapter_config.json"))
        if folder and names.is_step(_name(folder)):
            return False
        stray = not config and any(location.has_weights or names.is_step(_name(location.path)) for location in others)
        if stray:
            files = (entry.path for entry in self._weights(folder))
            self._exclude(map(CheckpointLocation, files), "stands beside checkpoints, without a config.json")
        return stray

    def _policies(self, models: list[CheckpointLocation]) -> list[CheckpointLocation]:
        """Returns the models without those that only train beside the policy, or are kept for their quality."""
        for is_other, why in (
            (names.is_not_policy, "trains beside the policy: --inside chooses it"),
            (names.is_best, "is chosen by quality, not by time: --inside chooses it"),
        ):
            rest = [m for m in models if not any(map(is_other, m.path.split("/")))]
            if any(model.has_weights for model in rest):
                self._exclude((m for m in models if m not in rest and m.has_weights), why)
                models = rest
        return models

    def _exclude(self, locations: Iterable[CheckpointLocation], why: str) -> None:
        for location in locations:
            self.excluded[location.path] = why

    def _lone_steps(self, folder: str) -> list[CheckpointLocation]:
        """Returns the files that are a checkpoint each, by their names: `policy-20.safetensors`."""
        named = frozenset[str]().union(*(entry.shards or () for entry in self.listing.children(folder)))
        return [
            CheckpointLocation(entry.path, lone=True)
            for entry in self._weights(folder)
            if names.is_single_file_step(entry.name) and entry.name not in named
        ]

    def _has_weights(self, folder: str, without: Iterable[str] = ()) -> bool:
        entries = [*self._weights(folder), *(e for e in self._files(folder) if names.is_index(e.name))]
        return any(entry.path not in without for entry in entries)

    def _weights(self, folder: str) -> list[ListingEntry]:
        """Returns the weights files of a model directly in a directory."""
        return [entry for entry in self._files(folder) if is_weights(entry.name) and not is_state(entry)]

    def _files(self, folder: str) -> list[ListingEntry]:
        return [entry for entry in self._visible(folder) if entry.kind is EntryKind.FILE]

    def _folders(self, folder: str) -> list[ListingEntry]:
        return [
            entry
            for entry in self._visible(folder)
            if entry.kind is EntryKind.DIRECTORY
            and not is_alias(entry, self.listing)
            and not names.is_unfinished(entry.name)
            and not names.is_log_folder(entry.name)
        ]

    def _visible(self, folder: str) -> list[ListingEntry]:
        return [
            entry
            for entry in self.listing.children(folder)
            if not names.is_hidden(entry.name) and not self.rules.ignores(entry.path)
        ]

    def _all_folders(self, folder: str) -> list[str]:
        found = []
        for sub in self._folders(folder):
            found += [sub.path, *self._all_folders(sub.path)]
        return found


def is_state(entry: ListingEntry) -> bool:
    """Returns whether a file is training state, by its name or by the tensors that its header names."""
    return names.is_training_state(entry.name) or (entry.tensors is not None and entry.tensors.optimizer)


def is_alias(entry: ListingEntry, listing: Listing) -> bool:
    """Returns whether an entry is a link to a directory that is watched itself, such as `latest`."""
    return entry.target is not None and not leads_outside(entry.target) and entry.kind is EntryKind.DIRECTORY


def leads_outside(target: str) -> bool:
    """Returns whether a link leads out of the watched directory, or to something hidden in it, such as the store."""
    return target.startswith("/") or any(map(names.is_hidden, target.split("/")))


def _parts(path: str, folder: str) -> list[str]:
    return (path.removeprefix(f"{folder}/") if folder else path).split("/")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
