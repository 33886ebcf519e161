"""Finding the checkpoints that a framework writes, and telling whole ones from those still being written.

Two habits are covered: a directory of checkpoints (`DIR/step-10`, `DIR/step-20`, …), and one checkpoint that is
replaced in place (`DIR/model.safetensors`). A checkpoint counts once it is complete:

- with a marker: once the marker file exists in it;
- else: once it opens as a sound checkpoint, every shard that its index names is there, and nothing in it has changed
  for the settling time. A checkpoint that appears by an atomic rename is complete from the first look, and may be
  taken at once with a settling time of 0.

Names that begin with a dot or end like something unfinished are never looked at. Pure but for reading the directory;
time is an argument.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from p2psync.engines.checkpoint import Checkpoint, signature
from p2psync.errors import FormatError
from trainer.source import Signature

_UNFINISHED = re.compile(r"\.(tmp|temp|part|partial|incomplete|writing)$|^tmp-", re.IGNORECASE)
_INDEX = ".safetensors.index.json"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that is complete, in the state that this signature names."""

    path: Path
    signature: Signature


@dataclass(slots=True)
class _Seen:
    signature: Signature
    since: float


@dataclass(slots=True)
class Watcher:
    """Looks at one directory. settle: seconds without a change, where there is no marker.

    done: the signatures of checkpoints already dealt with, by path; give it back after a restart.
    """

    root: Path
    marker: str | None = None
    settle: float = 1.0
    done: dict[str, Signature] = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)
    _seen: dict[Path, _Seen] = field(default_factory=dict)

    def scan(self, now: float) -> list[Found]:
        """Checkpoints that are complete and not dealt with, oldest first. Raises OSError if `root` cannot be read."""
        ready = []
        present = self._candidates()
        for path in present:
            current = signature(path)
            if self.done.get(str(path)) == current or not self._is_settled(path, current, now):
                continue
            if self._is_whole(path):
                ready.append(Found(path, current))
        self._forget_all_but({str(path) for path in present})
        return sorted(ready, key=lambda found: (_age(found.signature), _natural(found.path.name), found.path))

    def deal_with(self, found: Found) -> None:
        """This state of the checkpoint was published, or refused: it is not to be offered again. A later one is."""
        self.done[str(found.path)] = found.signature

    def _forget_all_but(self, present: set[str]) -> None:
        self.done = {name: value for name, value in self.done.items() if name in present}
        self.complaints = {name: value for name, value in self.complaints.items() if name in present}
        self._seen = {path: seen for path, seen in self._seen.items() if str(path) in present}

    def _candidates(self) -> list[Path]:
        entries = sorted(path for path in self.root.iterdir() if not path.name.startswith("."))
        if any(path.suffix == ".safetensors" and path.is_file() for path in entries):
            return [self.root]
        entries = [path for path in entries if path.is_dir() and not _UNFINISHED.search(path.name)]
        # A link beside its target, such as `latest`, is not another checkpoint.
        targets = {path.resolve() for path in entries if not path.is_symlink()}
        return [path for path in entries if not (path.is_symlink() and path.resolve() in targets)]

    def _is_settled(self, path: Path, current: Signature, now: float) -> bool:
        if self.marker is not None:
            return any(name == self.marker for name, *_ in current)
        seen = self._seen.get(path)
        if seen is None or seen.signature != current:
            self._seen[path] = seen = _Seen(current, now)
        return now - seen.since >= self.settle

    def _is_whole(self, path: Path) -> bool:
        """Whether it opens, with every shard of its index. A complaint is kept until it does, for people to see."""
        try:
            with Checkpoint.open(path) as checkpoint:
                names = {spec.name for spec in checkpoint.specs}
            if not any(name.endswith(".safetensors") for name in names):
                return False
            for index in [name for name in names if name.endswith(_INDEX)]:
                shards = set(msgspec.json.decode((path / index).read_bytes(), type=_Index).weight_map.values())
                missing = sorted(shard for shard in shards if str(Path(index).parent / shard) not in names)
                if missing:
                    raise FormatError(f"{path}: {missing[0]} of its index is missing")
        except (FormatError, OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.complaints[str(path)] = str(error)
            return False
        self.complaints.pop(str(path), None)
        return True


def _age(current: Signature) -> int:
    return max((mtime for _, _, _, mtime in current), default=0)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A key by which step-9 comes before step-10."""
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]
