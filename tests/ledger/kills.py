"""A trainer with its ledger, killed (SIGKILL) at random moments while actors work over HTTP, and restarted each time.

    python tests/ledger/kills.py --kills 200

Everything is real: processes, sockets, the journal. At the end each prompt of each step must have been trained on
exactly once, with the result that its actor was told counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from p2psync.actor import work_client
from p2psync.actor.work_client import WorkClient
from p2psync.errors import HubError, LeaseError, StoreError
from p2psync.membership.hub import HubConfig
from p2psync.membership.records import NodeInfo
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.store.disk import write_durably
from p2psync.trainer.ledger.core import LedgerConfig
from p2psync.trainer.ledger.journal import Journal
from p2psync.trainer.ledger.service import LedgerService, mount

ITEMS, ACTORS = 12, 4
TTL = 1.0


def digest_of(version: int) -> str:
    return f"{version:032x}"


# ---- the trainer -----------------------------------------------------------------------------------------------------


async def train(place: Path, port: int, steps: int) -> None:
    """Train until `steps` steps are saved. Its own state is `trained.json`, written at the end of each step."""
    saved = place / "trained.json"
    trained: list[dict[str, str]] = json.loads(saved.read_bytes()) if saved.exists() else []
    hub = HubService(HubConfig(trusted=frozenset(), ttl=TTL))
    config = LedgerConfig(claim_ttl=2.0, max_hold=10.0, first_items=2)
    service = mount(hub.build_app(), hub, config, journal=Journal(place / "ledger.db"))
    service.ledger.resume(len(trained) - 1 if trained else None)
    service.admit(len(trained), digest_of(len(trained)))
    await hub.start("127.0.0.1", port)
    await put(service, len(trained), steps)
    while len(trained) < steps:
        step = len(trained)
        results: dict[str, str] = {}
        while len(results) < ITEMS:
            for done in await service.take(5, step):
                assert done.item.item not in results, "given out twice"
                results[done.item.item] = done.result.decode()
        await put(service, step + 1, steps)
        trained.append(results)
        write_durably(saved, json.dumps(trained).encode())
        service.admit(step + 1, digest_of(step + 1))
        await service.commit_step(step)
    await hub.stop()


async def put(service: LedgerService, step: int, steps: int) -> None:
    if step < steps:
        await service.put(step, [(f"{step}/{index}", b"prompt") for index in range(ITEMS)], skip_known=True)


# ---- the actors ------------------------------------------------------------------------------------------------------


async def act(place: Path, port: int, seed: int) -> None:
    """Actors that work for ever; they write a line to `acknowledged` for each acknowledged result."""
    work_client.RETRY_MIN_SECONDS = work_client.RETRY_MAX_SECONDS = 0.05  # it is up again soon
    with (place / "acknowledged").open("a") as told:
        await asyncio.gather(
            *(one(f"{index:032x}", port, random.Random(seed + index), told) for index in range(ACTORS))
        )


async def one(node: str, port: int, rng: random.Random, told: object) -> None:
    async with HubClient(f"http://127.0.0.1:{port}") as hub:
        work = WorkClient(hub)
        renewing: asyncio.Task[None] | None = None
        while True:
            try:
                lease = (await hub.join(NodeInfo(node=node, role="actor"))).lease
                renewing = asyncio.create_task(renew(hub, lease))
                while True:
                    grant = await work.lease(lease, rng.randint(1, 4), 2.0)
                    for item in grant.items:
                        await answer(work, grant.work, item.item, grant.head or 0, rng, told)
            except (HubError, LeaseError):
                await asyncio.sleep(0.02)
            finally:
                if renewing is not None:
                    renewing.cancel()


async def renew(hub: HubClient, lease: str) -> None:
    while True:
        await asyncio.sleep(TTL / 3)
        try:
            await hub.renew(lease)
        except LeaseError:
            return
        except HubError:
            pass


async def answer(work: WorkClient, lease: str, item: str, version: int, rng: random.Random, told: object) -> None:
    await asyncio.sleep(rng.uniform(0, 0.02))
    result = f"{item} {rng.getrandbits(64):x} " + "x" * rng.choice([0, 0, 20_000])
    receipt = await work.deliver(
        lease, item, result.encode(), version=version, digest=digest_of(version), tokens=10, timeout_seconds=5.0
    )
    if receipt.verdict == "accepted":
        print(json.dumps([item, result]), file=told, flush=True)  # type: ignore[call-overload]


# ---- the killing process ---------------------------------------------------------------------------------------------


def fork(main: Callable[[], Coroutine[object, object, None]]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(main())
            code = 0
        except StoreError as error:
            print(error, file=sys.stderr)
        finally:
            os._exit(code)
    return child


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trained_steps(place: Path) -> list[dict[str, str]]:
    return json.loads((place / "trained.json").read_bytes()) if (place / "trained.json").exists() else []


def run(place: Path, kills: int, seed: int) -> str:
    """Returns the figures of the run; asserts that no result was lost or doubled."""
    rng, port = random.Random(seed), free_port()
    steps = 2
    actors = fork(lambda: act(place, port, seed))
    try:
        for _ in range(kills):
            steps = len(trained_steps(place)) + 50  # never through before it is killed
            trainer = fork(lambda steps=steps: train(place, port, steps))
            time.sleep(rng.uniform(0.0, 0.5))  # the moment at which to kill
            os.kill(trainer, signal.SIGKILL)
            assert os.WTERMSIG(os.waitpid(trainer, 0)[1]) == signal.SIGKILL, "it ended by itself"
        steps = len(trained_steps(place)) + 3
        trainer = fork(lambda: train(place, port, steps))
        assert os.waitpid(trainer, 0)[1] == 0
    finally:
        os.kill(actors, signal.SIGKILL)
        os.waitpid(actors, 0)
    return check(place, steps, kills)


def check(place: Path, steps: int, kills: int) -> str:
    trained = trained_steps(place)
    assert len(trained) == steps
    for step, results in enumerate(trained):
        assert sorted(results) == sorted(f"{step}/{index}" for index in range(ITEMS))
    acknowledged: dict[str, str] = {}
    for line in (place / "acknowledged").read_text().splitlines():
        item, result = json.loads(line)
        assert item not in acknowledged, f"{item} was acknowledged twice"
        acknowledged[item] = result
    used = {item: result for results in trained for item, result in results.items()}
    wrong = [item for item, result in acknowledged.items() if used.get(item, result) != result]
    assert not wrong, f"acknowledged, and trained on something else: {wrong}"
    left = Journal(place / "ledger.db")
    saved = left.read()
    left.close()
    assert (saved.step, saved.taken) == (steps, [])
    return f"{kills} kills, {steps} steps, {len(used)} prompts, {len(acknowledged)} acknowledged"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(run(Path(place), args.kills, args.seed))


if __name__ == "__main__":
    main()
