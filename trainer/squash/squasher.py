"""Makes squashes: from the trainer's own deltas to one signed, durable pack, while publishing goes on.

In profile `fast` it reads only the store and the delta records, no weights, so that versions may be published
meanwhile. When it is done the head may have moved on; the squash then leads to an earlier version, like any delta.

In profile `tight` it needs the old weights too: the head's, minus the chain's steps, tensor by tensor. The head must
not move meanwhile; a publish that waits for that preempts the squash, which is given up at the next block.

Each chunk is decoded again and compared with the sum of the chain before the manifest is signed.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.algebra import apply_block, invert
from p2psync.delta.block import Block
from p2psync.delta.container import decode_chunk
from p2psync.delta.digest import MODULUS, digest_from_bytes
from p2psync.delta.tensors import TableRow, TensorSpec, Units
from p2psync.engines.compose import DeltaReader, compose_chain
from p2psync.errors import DigestMismatchError, StoreError
from p2psync.protocol.manifest import sign
from p2psync.store.draft import Draft
from p2psync.store.encoding import DELTA_BLOCK_UNITS, Encoding
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.squash.planner import SquashPlan, SquashPlanner
from p2psync.trainer.versions.delta_records import DeltaRecords

#: Returns the head's bits of one tensor.
HeadUnits: TypeAlias = Callable[[TensorSpec], Units]


class SquashPreempted(StoreError):
    """A squash was given up because a version is to be published."""


@dataclass(frozen=True, slots=True)
class BuiltSquash:
    """A squash that is durable and not yet announced.

    steps, chain_bytes: deltas that it replaces, and their payload bytes. seconds: to make it.
    """

    pack: Pack
    steps: int
    chain_bytes: int
    seconds: float


class Squasher:
    """Makes squashes of one run. Blocking: call it from a worker thread, one squash at a time."""

    def __init__(self, store: Store, steps: DeltaRecords, key: Ed25519PrivateKey, planner: SquashPlanner) -> None:
        self._store = store
        self._steps = steps
        self._key = key
        self._planner = planner
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make a squash in progress fail soon, with `StoreError`. May be called from any thread."""
        self._stopped.set()

    def make(
        self, plan: SquashPlan, head: HeadUnits | None = None, preempted: Callable[[], bool] = lambda: False
    ) -> BuiltSquash | None:
        """Carry out a plan; returns None if it is not worth it after all, or if a delta cannot be read without weights.

        head: returns the bits that the chain ends at, to make it in profile `tight`; they must not change until it
        returns. overtaken: asked now and then; True ends it with `SquashPreempted`. Raises `P2PSyncError`; then nothing
        was made.
        """
        began = time.monotonic()
        packs = [self._store.get(bytes.fromhex(a.id)) for a in plan.chain]
        with ExitStack() as stack:
            chain: list[DeltaReader] = []
            for pack in packs:
                delta = self._steps.open(pack) if pack is not None else None
                if delta is None:
                    return None
                chain.append(stack.enter_context(closing(delta)))
            pack = self._make(plan, chain, head, preempted)
        if pack is None:
            return None
        return BuiltSquash(pack, len(chain), plan.chain_bytes, time.monotonic() - began)

    def _make(
        self, plan: SquashPlan, chain: Sequence[DeltaReader], head: HeadUnits | None, preempted: Callable[[], bool]
    ) -> Pack | None:
        first, last = chain[0].manifest, chain[-1].manifest
        rows, blocks = compose_chain(chain)
        draft = self._store.draft()
        try:
            sink = _VerifyingSink(draft, rows)
            with Encoding(sink, rows, profile="fast" if head is None else "tight") as encoding:
                coming = self._until_stopped(blocks, preempted)
                if head is None:
                    _compose(encoding, sink, coming)
                else:
                    _reconstruct(encoding, sink, coming, head)
                encoding.finish()
            sink.finish()
            change = digest_from_bytes(last.digest) - digest_from_bytes(first.base_digest)
            if head is not None and (encoding.digest_change - change) % MODULUS:
                raise DigestMismatchError("a squash does not lead back to the bits that it starts from: not announced")
            manifest = encoding.manifest(
                run=last.run,
                epoch=last.epoch,
                version=last.version,
                base=first.base,
                digest=last.digest,
                base_digest=first.base_digest,
                created=time.time(),
            )
            self._planner.made(len(chain), sum(d.manifest.changed for d in chain), manifest.changed)
            if self._planner.is_worth(plan, manifest.payload_bytes):
                return draft.seal(sign(manifest, self._key), manifest)
            draft.abandon()
            return None
        except BaseException:
            draft.abandon()
            raise

    def _until_stopped(self, blocks: Iterator[Block], preempted: Callable[[], bool]) -> Iterator[Block]:
        for block in blocks:
            if self._stopped.is_set():
                raise StoreError("stopped while deltas were being squashed")
            if preempted():
                raise SquashPreempted("a new version was to be published while deltas were being squashed")
            yield block


def _compose(encoding: Encoding, sink: _VerifyingSink, blocks: Iterator[Block]) -> None:
    for block in blocks:
        sink.expect(block)
        encoding.take_block(block)


def _reconstruct(encoding: Encoding, sink: _VerifyingSink, blocks: Iterator[Block], head: HeadUnits) -> None:
    """Encode from the head's bits and the old bits, which are the head's minus the blocks."""
    grouped = itertools.groupby(blocks, key=lambda block: block.row)
    ahead = next(grouped, None)
    for index, row in enumerate(list(encoding.rows)):
        found: list[Block] = []
        if ahead is not None and ahead[0] == index:
            found = list(ahead[1])
            ahead = next(grouped, None)
        elif row.before and row.after:
            continue
        new = head(row.spec) if row.after else np.zeros(row.spec.count, row.spec.unit)
        old = new.copy()
        for block in found:
            apply_block(old, invert(block))
            sink.expect(block)
        sink.olds[index] = old
        encoding.take(index, old if row.before else None, new if row.after else None)


class _VerifyingSink:
    """A sink that decodes each chunk again, and passes it on only if it holds exactly the blocks to be encoded."""

    def __init__(self, draft: Draft, rows: Sequence[TableRow]) -> None:
        self._draft, self._rows = draft, rows
        self._expected: deque[Block] = deque()
        #: The old bits of rows, for profiles that need them; dropped once all blocks of a row have come.
        self.olds: dict[int, Units] = {}

    def expect(self, block: Block) -> None:
        """Take in a block that goes to the encoder next."""
        self._expected.append(block)

    def append(self, data: bytes) -> None:
        """See `Sink`. Raises `DigestMismatchError`."""
        blocks = decode_chunk(data, self._rows, DELTA_BLOCK_UNITS, lambda row: self.olds[row])
        for block in blocks:
            if not self._expected or not _same(block, self._expected.popleft()):
                raise DigestMismatchError("a squash decodes to other steps than were squashed: not announced")
        for row in [row for row in self.olds if row < blocks[-1].row]:
            del self.olds[row]
        self._draft.append(data)

    def finish(self) -> None:
        """Raise `DigestMismatchError` unless every expected block has come."""
        if self._expected:
            raise DigestMismatchError("a squash lacks steps of its chain: not announced")


def _same(a: Block, b: Block) -> bool:
    if (a.row, a.start, a.count) != (b.row, b.start, b.count) or not np.array_equal(a.steps, b.steps):
        return False
    if a.positions is None or b.positions is None:
        return a.positions is b.positions
    return np.array_equal(a.positions, b.positions)
