"""Requests to a real vLLM server get the version that they ask for, or a 409, and answers carry their versions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from vllm_parts import TIMEOUT, Server, Trainer, save, stepped, trainer

from p2psync.actor.commit_lock import CommitLock
from p2psync.actor.live_version import LiveVersion
from p2psync.actor.rollout_proxy import ProxyEngine
from p2psync.actor.rollout_server import RolloutServer
from p2psync.actor.stream_trailer import read_trailer
from p2psync.engines.vllm.conductor import Conductor, HTTPControls

pytestmark = pytest.mark.vllm
START, END, COMMITS = "P2PSync-Start-Version", "P2PSync-End-Version", "P2PSync-Commits"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save("qwen3", tmp_path / "model")


@pytest.fixture
def source(tmp_path: Path, model: Path) -> Iterator[Trainer]:
    with trainer(tmp_path / "run") as made:
        made.publish(model)
        yield made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as opened:
        yield opened


async def complete(session: aiohttp.ClientSession, url: str, tokens: int = 8, **demand: str) -> tuple[int, Any, Any]:
    """Status, headers and JSON of a completion; demand: Min or Exact."""
    body = {"model": "policy", "prompt": "t1 t2 t3", "max_tokens": tokens, "temperature": 0.0, "logprobs": 1}
    body["ignore_eos"] = True
    headers = {f"P2PSync-{kind}-Version": version for kind, version in demand.items()}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
        return answer.status, answer.headers, await answer.json()


async def test_a_rollout_server_before_a_server_that_is_conducted_over_its_routes(
    tmp_path: Path, model: Path, source: Trainer, session: aiohttp.ClientSession
) -> None:
    server = Server(model, tmp_path / "server.log")
    try:
        await asyncio.to_thread(server.ready)
        await asyncio.to_thread(server.ask, "init_weight_transfer_engine", {"init_info": source.join()})
        commit_lock, controls = CommitLock(), HTTPControls(server.url)
        conductor = Conductor(controls, exclusive=commit_lock.write_lock_async)
        async with ProxyEngine(server.url) as engine, asyncio.timeout(TIMEOUT):
            rollout_server = RolloutServer(LiveVersion(commit_lock, lambda: conductor.position), engine)
            url = f"http://127.0.0.1:{await rollout_server.start('127.0.0.1', 0)}"
            assert (await complete(session, url))[0] == 409, "no version is live yet"
            await conductor.reach(0, TIMEOUT)
            await conductor.step()
            await _commit_between(session, url, conductor, controls, source, model)
            await rollout_server.stop()
    finally:
        server.close()


async def _commit_between(
    session: aiohttp.ClientSession, url: str, conductor: Conductor, controls: HTTPControls, source: Trainer, model: Path
) -> None:
    status, headers, first = await complete(session, url, Exact="0")
    assert (status, headers[START], headers[END], headers[COMMITS]) == (200, "0", "0", "0")
    source.publish(stepped(model, model.parent / "1", 1, 0.3))
    while (await controls.status())[0]["staged"] != 1:  # noqa: ASYNC110 - a server is asked
        await asyncio.sleep(0.02)
    assert (await complete(session, url, Exact="0"))[2]["choices"] == first["choices"], "it is staged, and not live"
    status, headers, refused = await complete(session, url, Min="1")
    assert (status, headers["Retry-After"], refused["reason"], refused["live"]) == (409, "1", "not_yet", 0)

    exact = asyncio.create_task(complete(session, url, 480, Exact="0"))
    body = {"model": "policy", "prompt": "t4 t5", "max_tokens": 480, "temperature": 0.0, "ignore_eos": True}
    async with session.post(f"{url}/v1/completions", json={**body, "stream": True}) as stream:
        assert stream.headers[START] == "0"
        begun = await stream.content.readany()  # requests that came before are in the engine, too
        assert await conductor.step() is not None
        mark = read_trailer(begun + await stream.content.read())
    assert mark is not None
    assert (mark.start_version, mark.end_version, mark.commits) == (0, 1, 1)
    status, _, refused = await exact
    assert (status, refused["reason"]) == (409, "passed")
    status, headers, second = await complete(session, url, Min="1")
    assert (status, headers[START], headers[END]) == (200, "1", "1")
    assert second["choices"] != first["choices"]


async def test_a_server_that_conducts_itself_reports_its_versions(
    tmp_path: Path, model: Path, source: Trainer, session: aiohttp.ClientSession
) -> None:
    join = source.join()
    server = Server(
        model,
        tmp_path / "server.log",
        VLLM_PLUGINS="p2psync",
        P2PSYNC_VLLM_JOIN=join["hub_url"],
        P2PSYNC_VLLM_TRUST=",".join(join["trust"]),
        P2PSYNC_VLLM_HOST="127.0.0.1",
    )
    try:
        await asyncio.to_thread(server.ready)
        assert (await complete(session, server.url))[0] == 200, "the base model is served until there is a version"
        first = await _once(session, server.url, Min="0")
        status, headers, refused = await complete(session, server.url, Min="1")
        assert (status, headers["Retry-After"], refused["reason"]) == (409, "1", "not_yet")
        source.publish(stepped(model, tmp_path / "1", 1, 0.3))
        second = await _once(session, server.url, Exact="1")
        assert second["choices"] != first["choices"]
        status, headers, refused = await complete(session, server.url, Exact="0")
        assert (status, refused["reason"], "Retry-After" in headers) == (409, "passed", False)
        body = {"model": "policy", "prompt": "t1 t2 t3", "max_tokens": 8, "stream": True}
        async with session.post(f"{server.url}/v1/completions", json=body) as stream:
            mark = read_trailer(await stream.content.read())
        assert mark is not None
        assert (mark.start_version, mark.end_version, mark.commits) == (1, 1, 0)
        assert (await complete(session, server.url, Min="many"))[0] == 400
    finally:
        server.close()


async def _once(session: aiohttp.ClientSession, url: str, **demand: str) -> Any:
    """Ask until it is met."""
    deadline = time.monotonic() + TIMEOUT
    while (found := await complete(session, url, **demand))[0] == 409:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)
    (version,) = demand.values()
    assert (found[0], found[1][START], found[1][END]) == (200, version, version)
    return found[2]
