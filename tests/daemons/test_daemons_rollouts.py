"""`p2psync trainer --rollouts`: a framework in another process puts work in and takes results out, and kills change
nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from checkpoint_parts import Model
from daemon_parts import Swarm

from p2psync.actor.work_client import WorkClient
from p2psync.errors import TrustError
from p2psync.membership.records import NodeInfo
from p2psync.net.hub_client import HubClient
from p2psync.trainer.rollouts import RemoteRollouts

LIMIT = 30.0


def answer(url: str, count: int, version: int, digest: str) -> list[str]:
    """Leases so many items as an actor and answers them under a version; returns the verdict on each."""

    async def work() -> list[str]:
        async with HubClient(url) as hub:
            client = WorkClient(hub)
            lease = (await hub.join(NodeInfo(node="1" * 32, role="actor"))).lease
            verdicts = []
            while len(verdicts) < count:
                grant = await client.lease(lease, count - len(verdicts), 5.0)
                assert grant.items
                for item in grant.items:
                    receipt = await client.deliver(
                        *(grant.work, item.item, b"answer to " + item.payload),
                        version=version,
                        digest=digest,
                        tokens=5,
                        timeout_seconds=LIMIT,
                    )
                    verdicts.append(receipt.verdict)
            return verdicts

    return asyncio.run(work())


def remote(swarm: Swarm) -> RemoteRollouts:
    return RemoteRollouts(swarm.url, (swarm.place / "store" / "rollouts.token").read_text())


def test_a_framework_uses_the_ledger_of_a_daemon_that_is_killed(swarm: Swarm) -> None:
    trainer = swarm.trainer("--rollouts", "--max-staleness", 0)
    model = Model(rows=64)
    swarm.publish(model, trainer)
    first = trainer.published()
    with remote(swarm) as rollouts:
        assert rollouts.put(0, [(f"0/{index}", b"%d" % index) for index in range(4)]) == 4
        assert answer(swarm.url, 2, 0, first["digest"]) == ["accepted", "accepted"]
        assert len(rollouts.take(1, 0, LIMIT)) == 1
    trainer.kill()

    trainer = swarm.trainer("--rollouts", "--max-staleness", 0)
    with remote(swarm) as rollouts:
        assert rollouts.put(0, [(f"0/{index}", b"%d" % index) for index in range(4)]) == 0
        assert answer(swarm.url, 2, 0, first["digest"]) == ["accepted", "accepted"]
        # The daemon was killed, the framework was not: it has the first result, and gets the others.
        assert [done.item.item for done in rollouts.collect(0, 3, LIMIT)] == ["0/1", "0/2", "0/3"]
    with remote(swarm) as rollouts:
        rollouts.resume()  # a framework that was killed itself
        results = rollouts.collect(0, 4, LIMIT)
        assert [(done.item.item, done.result) for done in results] == [
            (f"0/{index}", b"answer to %d" % index) for index in range(4)
        ]
        assert rollouts.commit_step(0) == 4
        rollouts.resume(committed=0)
        assert rollouts.take(1, timeout=0.01) == []
        rollouts.put(1, [("1/0", b"")])
        swarm.publish(model.step(), trainer)
        assert answer(swarm.url, 1, 0, first["digest"]) == ["stale"]  # as --max-staleness says
    assert trainer.stop() == 0


def test_work_is_put_in_only_with_the_token(swarm: Swarm) -> None:
    swarm.trainer("--rollouts")
    token: Path = swarm.place / "store" / "rollouts.token"
    assert token.stat().st_mode & 0o777 == 0o600
    with RemoteRollouts(swarm.url, "guessed") as rollouts, pytest.raises(TrustError, match="token"):
        rollouts.put(0, [("a", b"")])


def test_the_ledger_is_not_served_on_somebody_elses_hub(swarm: Swarm) -> None:
    swarm.hub()
    trainer = swarm.trainer("--rollouts", hub=False)
    assert trainer.exit_code() == 2
    assert "--rollouts" in trainer.stderr
