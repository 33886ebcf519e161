"""Rollout work from a training loop: the ledger of a publisher, or that of a trainer daemon over HTTP.

from p2psync import Publisher, Rollouts, TrainerConfig

rollouts = Rollouts(journal="run/ledger.db")
with Publisher(policy, config, rollouts=rollouts) as publisher:
    rollouts.resume(committed=last_saved_step)
    rollouts.put(0, prompts(0))
    for step in range(steps):
        rollouts.put(step + 1, prompts(step + 1))     # actors go on while this process learns
        results = rollouts.collect(step, count)
        learn(results)
        publisher.publish()                           # results made under this version or the one before count
        save(step)                                    # the loop's own checkpoint
        rollouts.commit_step(step)                    # these results will never come again
"""

from __future__ import annotations

import math
import time
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec

from p2psync.arguments import as_file
from p2psync.errors import HubError, UsageError, WaitTimeoutError
from p2psync.membership.work import (
    MAX_PAYLOAD_BYTES,
    MAX_WORK_WAIT_SECONDS,
    CommitReply,
    CommitStep,
    PutReply,
    PutWork,
    Taken,
    TakeReply,
    TakeWork,
    WorkItem,
)
from p2psync.net.background import BackgroundLoop
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.net.hub_wire import decode_error
from p2psync.observe.events import Published
from p2psync.protocol.versions import Position
from p2psync.protocol.wire import decode_msgpack, encode_msgpack
from p2psync.trainer.ledger.core import LedgerConfig, LedgerResult
from p2psync.trainer.ledger.journal import Journal
from p2psync.trainer.ledger.routes import MAX_PUT_BODY, MAX_TAKE_BYTES, MEDIA_TYPE, TOKEN_HEADER
from p2psync.trainer.ledger.service import LedgerService, mount

__all__ = ["RemoteRollouts", "Rollouts"]

T = TypeVar("T")


class _ResultSource(Protocol):
    def take(self, max_items: int, version: int | None = None, timeout: float = math.inf) -> list[LedgerResult]: ...


def _collect(source: _ResultSource, version: int, count: int, timeout: float) -> list[LedgerResult]:
    deadline = time.monotonic() + timeout
    results: list[LedgerResult] = []
    while len(results) < count:
        taken = source.take(count - len(results), version, max(0.0, deadline - time.monotonic()))
        if not taken:
            raise WaitTimeoutError(f"{len(results)} of {count} results for version {version} after {timeout:.0f} s")
        results += taken
    return sorted(results, key=lambda done: done.item.item)


class Rollouts:
    """The ledger of a publisher, for the training thread. Give it to `Publisher(rollouts=…)`."""

    def __init__(
        self, *, journal: Path | str | None = None, max_staleness: int = 1, config: LedgerConfig | None = None
    ) -> None:
        """journal: the file where it is kept, a path or text; None: in memory, gone with the process. max_staleness:
        versions that a result may lie behind the newest; 1: one step off policy, so that actors generate while the
        trainer learns. config: of the rest."""
        self._journal = as_file(journal, "journal") if journal is not None else None
        self._config = replace(config or LedgerConfig(), max_staleness=max_staleness)
        self._service: LedgerService | None = None
        self._loop: BackgroundLoop | None = None

    @property
    def service(self) -> LedgerService:
        """The ledger's service, once the publisher has started; to be used on its loop only."""
        if self._service is None:
            raise UsageError("rollouts belong to a publisher: Publisher(…, rollouts=rollouts), and enter it")
        return self._service

    def resume(self, committed: int | None = None) -> int:
        """Resume at the start of a loop: results taken for steps up to `committed` are gone, the rest comes again.

        committed: the last step that the loop's own saved state holds. Returns how many results come again.
        """

        async def resume() -> int:
            count = self.service.ledger.resume(committed)
            self.service.tick()
            await self.service.settled()
            return count

        return self._call(resume())

    def put(self, version: int, items: Iterable[tuple[str, bytes]]) -> int:
        """Put in work for `version`: ids and payloads. What is known already is passed over, so that a loop that
        starts over may put in the same. Returns how many items were new, once they are durable. Raises `UsageError`,
        `StoreError`."""
        return self._call(self.service.put(version, items, skip_known=True))

    def take(self, max_items: int, version: int | None = None, timeout: float = math.inf) -> list[LedgerResult]:
        """Take up to `max_items` results for the step in hand, of work put in for `version` (None: any).

        Waits for the first, `timeout` seconds at most. Raises `StoreError`.
        """
        return self._call(self.service.take(max_items, version, wait=timeout))

    def collect(self, version: int, count: int, timeout: float = math.inf) -> list[LedgerResult]:
        """Take `count` results of work put in for `version`, sorted by their items.

        Raises `WaitTimeoutError` after `timeout` seconds.
        """
        return _collect(self, version, count, timeout)

    def commit_step(self, step: int | None = None) -> int:
        """The step (None: the one in hand) is durable in the loop's own state: forget the results taken for it.

        Returns how many results. Raises `StoreError`; call it again then.
        """
        return self._call(self.service.commit_step(step))

    # ---- the publisher's side --------------------------------------------------------------------------------------

    def mount(self, hub: HubService, loop: BackgroundLoop) -> None:
        """Serve on the publisher's hub; on its loop, before it serves."""
        journal = None if self._journal is None else Journal(self._journal, self._config.remembered)
        self._loop = loop
        self._service = mount(hub.build_app(), hub, self._config, journal=journal)

    def published(self, event: Published) -> None:
        """A version was made; on the publisher's loop, before it is announced."""
        self.service.admit(event.version, event.digest)

    def admit(self, position: Position) -> None:
        """The publisher has started with this version."""

        async def admit() -> None:
            self.service.admit(position.version, position.digest.hex())

        self._call(admit())

    async def abandon(self) -> None:
        """The publisher did not start."""
        if self._service is not None:
            await self._service.close()

    def _call(self, coroutine: Coroutine[object, object, T]) -> T:
        assert self._loop is not None
        return self._loop.call(coroutine)


class RemoteRollouts:
    """The ledger of `p2psync trainer --rollouts`, for a framework in another process. A context manager."""

    def __init__(self, url: str, token: str, *, join_token: str | None = None) -> None:
        """url: the trainer's hub. token: what STORE/rollouts.token holds."""
        self._loop = BackgroundLoop("p2psync-rollouts")
        self._client = HubClient(url, join_token, timeout=30.0)
        self._headers = {TOKEN_HEADER: token, "Content-Type": MEDIA_TYPE}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._loop.call(self._client.close())
        self._loop.close()

    def resume(self, committed: int | None = None) -> None:
        """See `Rollouts.resume`."""
        if committed is not None:
            self.commit_step(committed)
        self._post("take", TakeWork(max_items=1, again=True, version=-1), TakeReply)  # nothing is put in for that

    def put(self, version: int, items: Iterable[tuple[str, bytes]]) -> int:
        """See `Rollouts.put`. Many items go in several requests."""
        new = 0
        batch: list[tuple[str, bytes]] = []
        size = 0
        for item, payload in items:
            if (batch and size + len(payload) > MAX_PUT_BODY - 4 * MAX_PAYLOAD_BYTES) or len(batch) >= 8192:
                new += self._put(version, batch)
                batch, size = [], 0
            batch.append((item, payload))
            size += len(payload)
        return new + self._put(version, batch)

    def take(self, max_items: int, version: int | None = None, timeout: float = math.inf) -> list[LedgerResult]:
        """See `Rollouts.take`. Raises `HubError`; results of a lost answer come again after `resume`."""
        deadline = time.monotonic() + timeout
        while True:
            wait = min(max(0.0, deadline - time.monotonic()), MAX_WORK_WAIT_SECONDS)
            reply = self._post("take", TakeWork(max_items=max_items, version=version, wait=wait), TakeReply, wait)
            if reply.results or time.monotonic() >= deadline:
                return [_from_wire(result) for result in reply.results]

    def collect(self, version: int, count: int, timeout: float = math.inf) -> list[LedgerResult]:
        """See `Rollouts.collect`."""
        return _collect(self, version, count, timeout)

    def commit_step(self, step: int | None = None) -> int:
        """See `Rollouts.commit_step`. Without a number it must not be asked again when an answer was lost."""
        return self._post("commit", CommitStep(step=step), CommitReply).gone

    def _put(self, version: int, items: list[tuple[str, bytes]]) -> int:
        return self._post("put", PutWork(version=version, items=items), PutReply).new if items else 0

    def _post(self, path: str, message: object, kind: type[T], wait: float = 0.0) -> T:
        body = encode_msgpack(message)

        async def post() -> T:
            answer = await self._client.exchange(
                *("POST", f"/v1/work/{path}", body),
                headers=self._headers,
                limit=MAX_TAKE_BYTES + (1 << 20),
                wait=wait,
            )
            if answer.status != 200:
                raise decode_error(answer.body, answer.status, str(self._client.url))
            try:
                return decode_msgpack(answer.body, kind)
            except msgspec.MsgspecError as error:
                raise HubError(f"the answer of {self._client.url} is not a {kind.__name__}: {error}") from None

        return self._loop.call(post())


def _from_wire(taken: Taken) -> LedgerResult:
    item = WorkItem(item=taken.item, version=taken.put_for, payload=taken.payload)
    return LedgerResult(item=item, node=taken.node, version=taken.version, result=taken.result, tokens=taken.tokens)
