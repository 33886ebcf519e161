"""Scans a watched directory on a real file system: it lists it, takes fingerprints of weights, and opens checkpoints.

A scan lists names and reads headers; it reads a header again only when its file has changed. It follows no link out of
the directory unless that is allowed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import blake3
import msgspec

import p2psync.engines.checkpoint.framework_names as names
from p2psync.engines.checkpoint.file_names import is_weights
from p2psync.engines.checkpoint.files import Checkpoint, read_header
from p2psync.engines.checkpoint.header import parse_header
from p2psync.errors import FormatError
from p2psync.trainer.watch.candidates import Candidate, FileStates, find_candidates
from p2psync.trainer.watch.listing import EntryKind, Listing, ListingEntry, TensorHeader
from p2psync.trainer.watch.locations import CheckpointRules, leads_outside

#: The sample of a fingerprint: so many pages of so many bytes, evenly spread over the weights, which are read whole if
#: they are no larger, and the first page of so many tensors. A step of training changes elements everywhere: where it
#: changes 1 in 100,000, a sample of 1 million bf16 elements misses it once in 20,000 times. A missed change only keeps
#: an older checkpoint out.
FINGERPRINT_PAGES, PAGE_BYTES, FINGERPRINT_TENSORS = 512, 4096, 4096
#: An index of 100,000 tensors takes 10 MB; a larger file than this is taken for no index.
MAX_INDEX_BYTES = 64 << 20
#: Depth to which directories are listed; no framework nests deeper, and a scan must end.
MAX_DEPTH = 32
#: Name of a lone file within its checkpoint, so that actors keep one file whatever the step.
LONE_NAME = "model.safetensors"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class DirectoryScanner:
    """Scans one directory. skip: directories that are not listed, such as the trainer's store."""

    def __init__(self, root: Path, rules: CheckpointRules, skip: Iterable[Path] = ()) -> None:
        self.root = root.resolve()
        self.rules = rules
        self._skip = {str(path.resolve()) for path in skip}
        self._known: dict[str, tuple[os.stat_result, ListingEntry]] = {}

    def listing(self) -> Listing:
        """Returns a listing of the directory now. Raises OSError only if the directory itself cannot be read."""
        wall = time.time_ns()
        owner = self.root.stat().st_uid
        found: list[ListingEntry] = []
        self._walk("", str(self.root), found, (str(self.root),))
        present = {entry.path for entry in found}
        self._known = {path: known for path, known in self._known.items() if path in present}
        return Listing.of(found, wall, owner)

    def state_of(self, path: str) -> FileStates | None:
        """The state of the files of one checkpoint, as `Candidate.file_states`; None if it is not whole."""
        candidates = find_candidates(self.listing(), self.rules).candidates
        found = next((candidate for candidate in candidates if candidate.path == path), None)
        return found.file_states if found is not None and found.fault is None else None

    def fingerprint_of(self, candidate: Candidate) -> str:
        """Returns a hash over a sample of a checkpoint's weights (32 hex digits). Raises OSError."""
        files = sorted(path for path in candidate.files if is_weights(path))
        sizes = {name: size for name, size, _ in candidate.weights}
        total = sum(sizes[self._inner(candidate, path)] for path in files)
        page = PAGE_BYTES if total > FINGERPRINT_PAGES * PAGE_BYTES else max(total, 1)
        stride = max(page, total // FINGERPRINT_PAGES)
        hashed = blake3.blake3()
        for path in files:
            name = self._inner(candidate, path)
            size = sizes[name]
            hashed.update(f"{'' if candidate.lone else name}\0{size}\0".encode())
            offsets = list(range(0, size, stride))
            if stride > page:
                offsets += _tensor_offsets(self.root / path, name, FINGERPRINT_TENSORS // len(files))
            descriptor = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead of each page
                for offset in offsets:
                    hashed.update(os.pread(descriptor, page, offset))
            finally:
                os.close(descriptor)
        return hashed.hexdigest()[:32]

    def open(self, candidate: Candidate) -> Checkpoint:
        """Opens a checkpoint, to publish from. Raises `FormatError`, and OSError where reading failed."""
        root = self.root / candidate.path
        files = {self._inner(candidate, path): self.root / path for path in candidate.files}
        if candidate.lone:
            files = {LONE_NAME: root}
        return Checkpoint.of_files(root, files)

    def _inner(self, candidate: Candidate, path: str) -> str:
        if candidate.lone:
            return path.rpartition("/")[2]
        return path.removeprefix(f"{candidate.path}/") if candidate.path else path

    # ---- listing ---------------------------------------------------------------------------------------------------

    def _walk(self, prefix: str, folder: str, found: list[ListingEntry], above: tuple[str, ...]) -> None:
        """List a directory and those below it. above: real paths of it and its parents, to end at loops."""
        with os.scandir(folder) as listed:
            items = list(listed)
        for item in items:
            path, full_path = prefix + item.name, item.path
            if full_path in self._skip or (self.rules.ignore and self.rules.ignores(path)):
                continue
            entry = self._entry(path, item)
            if entry is None:
                continue
            if entry.kind is EntryKind.DIRECTORY and not entry.error and self._enters(entry):
                real = os.path.realpath(full_path)
                if real in above:
                    entry = replace(entry, kind=EntryKind.OTHER, error="a link to a directory that it lies in")
                elif len(above) > MAX_DEPTH:
                    entry = replace(entry, error=f"it lies more than {MAX_DEPTH} directories deep")
                else:
                    entry = self._entered(entry, full_path, found, (*above, real))
            found.append(entry)

    def _entered(
        self, entry: ListingEntry, full_path: str, found: list[ListingEntry], above: tuple[str, ...]
    ) -> ListingEntry:
        inner: list[ListingEntry] = []
        try:
            self._walk(entry.path + "/", full_path, inner, above)
        except FileNotFoundError:
            return replace(entry, error="it vanished while it was listed")
        except OSError as error:
            return replace(entry, error=f"{error.strerror or error}: trying again")
        found += inner
        return entry

    def _enters(self, entry: ListingEntry) -> bool:
        if entry.target is not None:
            return self.rules.follow_links and (leads_outside(entry.target) or "/" in entry.path)
        return not names.is_hidden(entry.name) or entry.name == ".cache"

    def _entry(self, path: str, item: os.DirEntry[str]) -> ListingEntry | None:
        """Returns one entry; None if it has vanished. For an unchanged file it is the same object as before."""
        try:
            own = status = item.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            return ListingEntry(path, EntryKind.OTHER, error=f"{error.strerror or error}: trying again")
        known = self._known.get(path)
        if known is not None and _unchanged(known[0], own):
            return known[1]
        target = None
        if stat.S_ISLNK(status.st_mode):
            try:
                target = self._target(item.path)
                status = item.stat()
            except OSError as error:
                what = "a link that leads nowhere" if isinstance(error, FileNotFoundError) else error.strerror
                return ListingEntry(path, EntryKind.OTHER, target="", error=f"{what or error}: mend or remove it")
        kind = EntryKind.FILE if stat.S_ISREG(status.st_mode) else EntryKind.OTHER
        kind = EntryKind.DIRECTORY if stat.S_ISDIR(status.st_mode) else kind
        entry = ListingEntry(
            path,
            kind,
            size=status.st_size if kind is EntryKind.FILE else 0,
            mtime=status.st_mtime_ns,
            ctime=status.st_ctime_ns,
            target=target,
            identity=(status.st_dev, status.st_ino),
            owner=status.st_uid,
            links=status.st_nlink,
        )
        entry = self._with_content(entry, item.path)
        if target is None and not entry.error:
            self._known[path] = (own, entry)
        return entry

    def _target(self, full_path: str) -> str:
        real = os.path.realpath(full_path, strict=True)
        root = str(self.root)
        return real if not real.startswith(root + "/") else real[len(root) + 1 :]

    def _with_content(self, entry: ListingEntry, full_path: str) -> ListingEntry:
        """Returns the entry with its header or index, if it has one that may be read."""
        name = entry.name
        if entry.kind is not EntryKind.FILE or names.is_hidden(name) or not (is_weights(name) or names.is_index(name)):
            return entry
        if entry.target is not None and leads_outside(entry.target) and not self.rules.follow_links:
            return entry
        try:
            return (_with_tensors if is_weights(name) else _with_shards)(entry, Path(full_path))
        except FormatError as error:
            return replace(entry, fault=str(error).removeprefix(f"{name}: "))
        except FileNotFoundError:
            return replace(entry, error="it vanished while it was read")
        except OSError as error:
            return replace(entry, error=f"{error.strerror or error}: trying again")


def _tensor_offsets(full_path: Path, name: str, most: int) -> list[int]:
    """Returns the offsets of a file's tensors: all of them, or about `most`, evenly chosen. Raises OSError."""
    try:
        entries, _ = parse_header(read_header(full_path, name), name)
    except FormatError:
        return []  # it changed after it was inspected, and its stamps did too
    return [entry.offset for entry in entries][:: 1 + len(entries) // max(1, most)]


def _unchanged(before: os.stat_result, now: os.stat_result) -> bool:
    """Returns whether the status of a file, as far as an entry holds it, is as it was."""
    same = before[:6] == now[:6] and before.st_size == now.st_size  # mode, inode, device, links, owner, group
    return same and (before.st_mtime_ns, before.st_ctime_ns) == (now.st_mtime_ns, now.st_ctime_ns)


def _with_tensors(entry: ListingEntry, full_path: Path) -> ListingEntry:
    entries, size = parse_header(read_header(full_path, entry.name), entry.name)
    fault = "" if size == entry.size else f"{entry.size} bytes, its header describes {size}"
    tensors = TensorHeader(size, names.is_optimizer([tensor.spec.name for tensor in entries]))
    return replace(entry, tensors=tensors, fault=fault)


def _with_shards(entry: ListingEntry, full_path: Path) -> ListingEntry:
    if entry.size > MAX_INDEX_BYTES:
        raise FormatError(f"{entry.size} bytes are too many for an index")
    try:
        shards = frozenset(msgspec.json.decode(full_path.read_bytes(), type=_Index).weight_map.values())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"it is no index of shards: {error}") from None
    return replace(entry, shards=shards)
