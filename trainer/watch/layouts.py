"""Finds where the checkpoints are in a listing: which directories (or lone files) hold a policy, one for each step.

The rules are those of the layouts that frameworks write (docs/guides/checkpoints.md names them). A directory that holds
safetensors files of a model is a checkpoint; a checkpoint within it is another one and never a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import p2psync.engines.checkpoint.framework_names as names
from p2psync.engines.checkpoint.file_names import is_weights
from p2psync.trainer.watch.listing import Entry, Kind, Listing


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the user says about checkpoints.

    marker: the file that makes one complete. inside: the policy is in the directories that this glob matches, below
    each checkpoint ("." is the checkpoint itself, with all in it). ignore: globs of paths and names to pass over.
    training_state: publish it too. follow_links: publish what links outside the watched directory lead to.
    secrets: identities (device, inode) of files that are never published.
    """

    marker: str | None = None
    inside: str | None = None
    ignore: tuple[str, ...] = ()
    training_state: bool = False
    follow_links: bool = False
    secrets: frozenset[tuple[int, int]] = frozenset()

    def ignores(self, path: str) -> bool:
        """Whether a path, or a name anywhere, is to be passed over."""
        name = path.rpartition("/")[2]
        return any(fnmatchcase(path, glob) or fnmatchcase(name, glob) for glob in self.ignore)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one checkpoint is.

    path: the directory, "" for the watched one, or a lone file. weighted: whether a model's weights were seen in it.
    whole: models in directories below it are its components. rivals: models in it among which none can be chosen.
    """

    path: str
    weighted: bool = True
    lone: bool = False
    whole: bool = False
    rivals: tuple[str, ...] = ()


@dataclass
class Layout:
    """places: all checkpoints. beside: directories and files of models that are no checkpoint, and why not."""

    places: list[Place]
    beside: dict[str, str] = field(default_factory=dict)


def find_places(listing: Listing, rules: Rules) -> Layout:
    """Every checkpoint of a listing, complete or not."""
    search = _Search(listing, rules)
    places = search.matching() if rules.inside not in (None, ".") else search.below("")
    return Layout(places, search.beside)


class _Search:
    def __init__(self, listing: Listing, rules: Rules) -> None:
        self.listing = listing
        self.rules = rules
        self.beside: dict[str, str] = {}

    def matching(self) -> list[Place]:
        """The directories that `--inside` names."""
        wanted = (self.rules.inside or "").strip("/").split("/")
        found = []
        for folder in self._all_folders(""):
            parts = folder.split("/")
            ending = parts[-len(wanted) :]
            if len(parts) >= len(wanted) and all(map(fnmatchcase, ending, wanted)):
                found.append(Place(folder, self._has_weights(folder), whole=True))
        return found

    def below(self, folder: str) -> list[Place]:
        """The checkpoints at and below a directory."""
        inner = [place for sub in self._folders(folder) for place in self.below(sub.path)]
        steps = [place for place in inner if any(map(names.is_step, _parts(place.path, folder)))]
        others = [place for place in inner if place not in steps]
        is_step = bool(folder) and names.is_step(_name(folder))
        lone = [] if is_step else self._lone_steps(folder)
        own = self._has_weights(folder, without={place.path for place in lone})
        if is_step:  # state that DeepSpeed keeps in a step is no step of its own
            steps = [place for place in steps if place.weighted]
        if own and not self._is_stray(folder, [*steps, *others, *lone]):
            pipeline = self._is_pipeline(folder)
            if is_step:
                others, steps = [*others, *steps], []
            if not pipeline:
                self._drop((p for p in others if p.weighted), "lies within another checkpoint")
            return [Place(folder, whole=pipeline), *steps, *lone]
        if is_step:
            models = [place for place in others if place.weighted]
            return [*(self._one_of(folder, models) if models or not steps else []), *steps]
        found = self._policies([*others, *steps])
        if found or lone or not folder or "/" in folder:
            return [*found, *lone]
        return [Place(folder, weighted=False)]

    def _one_of(self, step: str, models: list[Place]) -> list[Place]:
        """The policy of a step that keeps its models in directories of their own."""
        if self.rules.inside == ".":
            return [Place(step, bool(models), whole=True)]
        models = self._policies(models)
        if len(models) == 1:
            return models
        for place in names.POLICY_PLACES:
            preferred = [model for model in models if model.path == _join(step, place)]
            if preferred:
                self._drop((m for m in models if m not in preferred), f"stands beside {place}: --inside chooses")
                return preferred
        if self._is_pipeline(step):
            return [Place(step, whole=True)]
        return [Place(step, weighted=bool(models), rivals=tuple(model.path for model in models))]

    def _is_pipeline(self, folder: str) -> bool:
        return any(_join(folder, name) in self.listing.entries for name in names.PIPELINE_FILES)

    def _is_stray(self, folder: str, others: list[Place]) -> bool:
        """Whether weights beside checkpoints are no model themselves: one has a config.json, or adapter_config.json."""
        config = any(_join(folder, name) in self.listing.entries for name in ("config.json", "adapter_config.json"))
        if folder and names.is_step(_name(folder)):
            return False
        stray = not config and any(place.weighted or names.is_step(_name(place.path)) for place in others)
        if stray:
            files = (entry.path for entry in self._weights(folder))
            self._drop(map(Place, files), "stands beside checkpoints, without a config.json")
        return stray

    def _policies(self, models: list[Place]) -> list[Place]:
        """Models without those that only train beside the policy, or are chosen for another reason than being new."""
        for is_other, why in (
            (names.is_not_policy, "trains beside the policy: --inside chooses it"),
            (names.is_best, "is chosen by quality, not by time: --inside chooses it"),
        ):
            rest = [m for m in models if not any(map(is_other, m.path.split("/")))]
            if any(model.weighted for model in rest):
                self._drop((m for m in models if m not in rest and m.weighted), why)
                models = rest
        return models

    def _drop(self, places: Iterable[Place], why: str) -> None:
        for place in places:
            self.beside[place.path] = why

    def _lone_steps(self, folder: str) -> list[Place]:
        """Files that are a checkpoint each, by their names: `policy-20.safetensors`."""
        named = frozenset[str]().union(*(entry.shards or () for entry in self.listing.children(folder)))
        return [
            Place(entry.path, lone=True)
            for entry in self._weights(folder)
            if names.is_lone_step(entry.name) and entry.name not in named
        ]

    def _has_weights(self, folder: str, without: Iterable[str] = ()) -> bool:
        entries = [*self._weights(folder), *(e for e in self._files(folder) if names.is_index(e.name))]
        return any(entry.path not in without for entry in entries)

    def _weights(self, folder: str) -> list[Entry]:
        """Files of a model directly in a directory."""
        return [entry for entry in self._files(folder) if is_weights(entry.name) and not is_state(entry)]

    def _files(self, folder: str) -> list[Entry]:
        return [entry for entry in self._visible(folder) if entry.kind is Kind.FILE]

    def _folders(self, folder: str) -> list[Entry]:
        return [
            entry
            for entry in self._visible(folder)
            if entry.kind is Kind.DIRECTORY
            and not is_alias(entry, self.listing)
            and not names.is_unfinished(entry.name)
            and not names.is_log_folder(entry.name)
        ]

    def _visible(self, folder: str) -> list[Entry]:
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


def is_state(entry: Entry) -> bool:
    """Whether a file is training state, by its name or by the tensors that its header names."""
    return names.is_training_state(entry.name) or (entry.tensors is not None and entry.tensors.optimizer)


def is_alias(entry: Entry, listing: Listing) -> bool:
    """Whether an entry is a link to a directory that is watched itself, such as `latest`."""
    return entry.target is not None and not leads_outside(entry.target) and entry.kind is Kind.DIRECTORY


def leads_outside(target: str) -> bool:
    """Whether a link leads out of the watched directory, or to something hidden in it, such as the store."""
    return target.startswith("/") or any(map(names.is_hidden, target.split("/")))


def _parts(path: str, folder: str) -> list[str]:
    return (path.removeprefix(f"{folder}/") if folder else path).split("/")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
