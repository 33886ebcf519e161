"""Peers that lie, babble or flood: they cost little, harm nobody, and the swarm converges."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import psutil
import pytest
from checkpoint_parts import Model
from daemon_parts import Process, Swarm
from hostile_parts import Caller, Liar, hello

from p2psync.protocol.messages import FRAME_HEADER, Ping, Request, encode_control


@pytest.fixture(scope="module")
def trainer(shared: Swarm) -> Process:
    """A trainer at version 0, of several chunks."""
    shared.hub()
    trainer = shared.trainer(hub=False)
    shared.publish(Model(rows=2048), trainer)
    return trainer


def swarm_port(swarm: Swarm) -> int:
    """Returns where the trainer's peers connect."""
    place = swarm.place / "status.json"
    assert swarm.run("status", swarm.url, "--json", place).exit_code() == 0
    members = json.loads(place.read_text())["view"]["members"]
    place.unlink()
    return next(member["info"]["port"] for member in members if member["info"]["role"] == "trainer")


async def test_a_peer_that_sends_flipped_bytes_is_banned(shared: Swarm, trainer: Process) -> None:
    liar, ready = Liar(shared.url), asyncio.Event()
    async with asyncio.timeout(60):
        lying = asyncio.create_task(liar.run(ready))
        await ready.wait()
        trainer.process.send_signal(signal.SIGSTOP)  # so that nobody else can be asked
        try:
            actor = shared.actor("victim", until=0)
            banned = await asyncio.to_thread(actor.wait_for, "PeerBanned", limit=20.0)
        finally:
            trainer.process.send_signal(signal.SIGCONT)
        code = await asyncio.to_thread(actor.exit_code)
        lying.cancel()
        await asyncio.gather(lying, return_exceptions=True)
    assert code == 0
    assert shared.current("victim") == shared.sums[0]
    assert banned["peer"] == liar.node
    assert liar.asked and len(actor.find("PeerBanned")) == 1
    assert trainer.process.poll() is None


async def test_babble_and_floods_are_bounded(shared: Swarm, trainer: Process) -> None:
    port = await asyncio.to_thread(swarm_port, shared)
    before = psutil.Process(trainer.process.pid).memory_info().rss
    greeting = encode_control(hello())
    for babble in (
        os.urandom(4096),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        FRAME_HEADER.pack(0xFFFFFFFF, 0),
        greeting + FRAME_HEADER.pack((4 << 20) + (1 << 17), 0),
        greeting + FRAME_HEADER.pack(1 << 20, 5),
        greeting + greeting,
        encode_control(Ping(1)),
    ):
        caller = await Caller.dial(port)
        caller.send(babble)
        assert await caller.hung_up()
    deaf = await Caller.dial(port)
    deaf.send(hello("d" * 32))
    ask = encode_control(Request(b"nosuchid", list(range(1024)))) * 200
    async with asyncio.timeout(60):
        for _ in range(100):  # 20 000 requests, 20 million chunks, and nothing is read
            await deaf.flood(ask)
            if deaf._writer.is_closing():
                break
    deaf.close()
    model = Model(seed=9, rows=2048)
    version = await asyncio.to_thread(shared.publish, model, trainer)
    actor = shared.actor("after", until=version)
    assert await asyncio.to_thread(actor.exit_code) == 0
    assert shared.current("after") == shared.sums[version]
    assert psutil.Process(trainer.process.pid).memory_info().rss - before < 128 << 20
    assert "Traceback" not in trainer.stderr
