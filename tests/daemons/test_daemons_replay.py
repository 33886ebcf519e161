"""A hub that tells of the past: rightly signed, and no longer true. Nobody goes back."""

from __future__ import annotations

import msgspec
from checkpoint_parts import Model
from daemon_parts import Swarm

from p2psync.net.hub_client import HubClient
from p2psync.protocol.keys import parse_private
from p2psync.protocol.manifest import SignedManifest, decode_body
from p2psync.trainer.run_state import RunState


async def test_an_actor_does_not_go_back_to_a_version_of_an_old_view(swarm: Swarm) -> None:
    hub = swarm.hub()
    trainer = swarm.trainer(hub=False, anchor_ratio=50)
    model = Model(rows=64)
    swarm.publish(model, trainer)
    actor = swarm.actor("one")
    for _ in range(2):
        model.step()
        swarm.publish(model, trainer)
    swarm.converged(actor, "one", 2)
    old_manifests = sorted(
        (path.read_bytes() for path in (swarm.place / "store").glob("packs/*/manifest")),
        key=lambda data: decode_body(msgspec.msgpack.decode(data, type=SignedManifest).body).version,
    )
    state = msgspec.json.decode((swarm.place / "store" / "run.json").read_bytes(), type=RunState)
    trainer.stop()
    hub.stop()

    # The hub of yesterday: the same run and epoch, but only what there was before version 2.
    swarm.hub(swarm.port)
    seen = len(actor.events)
    async with HubClient(swarm.url) as client:
        claim = await client.claim(
            parse_private(swarm.key_file.read_text()), node="ab" * 16, run=state.run, epoch=state.epoch
        )
        await client.announce(claim.token, old_manifests[:2])
    actor.wait_for("HubJoined", seen)
    fresh = swarm.actor("two")
    fresh.wait_for("HubJoined")
    assert swarm.current("one") == swarm.sums[2]

    trainer = swarm.trainer(hub=False, anchor_ratio=50)
    model.step()
    swarm.sums[3] = model.write(swarm.watch / "step-3")
    swarm.converged(actor, "one", 3)
    swarm.converged(fresh, "two", 3)
    assert [event["version"] for event in actor.find("Committed")][-1] == 3
    versions = [event["version"] for event in actor.find("Committed")]
    assert versions == sorted(set(versions)), "versions only rise"
