"""Making a squash: from the trainer's own deltas to one signed, durable pack, beside publishing.

It reads the store and the records of `steps` alone, no weights, so that versions may be published meanwhile; when it is
done the head may have moved on, and the squash leads to the version before, as good as any delta. Each chunk is decoded
again and compared with what the chain adds up to, before anything is signed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.block import Block
from p2psync.delta.container import decode_chunk
from p2psync.delta.tensors import Row
from p2psync.engines.chains import Delta, squashed
from p2psync.errors import DigestMismatchError, StoreError
from p2psync.protocol.manifest import sign
from p2psync.store.encoding import DELTA_BLOCK, Encoding
from p2psync.store.packs import Draft, Pack, Store
from trainer.squashing import Plan, SquashPlanner
from trainer.steps import Steps


@dataclass(frozen=True, slots=True)
class MadeSquash:
    """A squash that is durable and not yet announced. steps, chain_bytes: deltas it takes the place of, their payload.

    seconds: of making it.
    """

    pack: Pack
    steps: int
    chain_bytes: int
    seconds: float


class Squasher:
    """Makes squashes of one run. Blocking: to be called from a worker thread, one at a time."""

    def __init__(self, store: Store, steps: Steps, key: Ed25519PrivateKey, planner: SquashPlanner) -> None:
        self._store = store
        self._steps = steps
        self._key = key
        self._planner = planner
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Have what is being made given up soon, with `StoreError`; for any thread."""
        self._stopped.set()

    def make(self, plan: Plan) -> MadeSquash | None:
        """Carry out a plan; None if it turned out not to be worth it, or if some delta cannot be read without weights.

        Raises `P2PSyncError`; then nothing was made.
        """
        began = time.monotonic()
        packs = [self._store.get(bytes.fromhex(a.id)) for a in plan.chain]
        with ExitStack() as stack:
            chain: list[Delta] = []
            for pack in packs:
                delta = self._steps.open(pack) if pack is not None else None
                if delta is None:
                    return None
                chain.append(stack.enter_context(closing(delta)))
            pack = self._make(plan, chain)
        if pack is None:
            return None
        return MadeSquash(pack, len(chain), plan.chain_bytes, time.monotonic() - began)

    def _make(self, plan: Plan, chain: Sequence[Delta]) -> Pack | None:
        first, last = chain[0].manifest, chain[-1].manifest
        rows, blocks = squashed(chain)
        draft = self._store.draft()
        try:
            sink = _Checked(draft, rows)
            encoding = Encoding(sink, rows)
            for block in self._until_stopped(blocks):
                sink.expect(block)
                encoding.take_block(block)
            encoding.finish()
            sink.finish()
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
            if self._planner.worth(plan, manifest.payload_bytes):
                return draft.seal(sign(manifest, self._key), manifest)
            draft.abandon()
            return None
        except BaseException:
            draft.abandon()
            raise

    def _until_stopped(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            if self._stopped.is_set():
                raise StoreError("stopped while deltas were being squashed")
            yield block


class _Checked:
    """A sink that decodes each chunk again, and passes it on only if it holds just the blocks that were to be coded."""

    def __init__(self, draft: Draft, rows: Sequence[Row]) -> None:
        self._draft, self._rows = draft, rows
        self._expected: deque[Block] = deque()

    def expect(self, block: Block) -> None:
        """The next block goes to the encoder."""
        self._expected.append(block)

    def append(self, data: bytes) -> None:
        """See `Sink`. Raises `DigestMismatchError`."""
        for block in decode_chunk(data, self._rows, DELTA_BLOCK):
            if not self._expected or not _same(block, self._expected.popleft()):
                raise DigestMismatchError("a squash decodes to other steps than were squashed: not announced")
        self._draft.append(data)

    def finish(self) -> None:
        """Every block must have come. Raises `DigestMismatchError`."""
        if self._expected:
            raise DigestMismatchError("a squash lacks steps of its chain: not announced")


def _same(a: Block, b: Block) -> bool:
    if (a.row, a.start, a.count) != (b.row, b.start, b.count) or not np.array_equal(a.steps, b.steps):
        return False
    if a.positions is None or b.positions is None:
        return a.positions is b.positions
    return np.array_equal(a.positions, b.positions)
