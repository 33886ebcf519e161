"""An OpenAI-compatible vLLM server follows the trainer, conducted from outside over its own routes, or by itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from vllm_parts import ENVIRONMENT, KEY, TIMEOUT, Server, free_port, model_of, save, stepped, trainer

from p2psync.protocol.keys import private_text

pytestmark = pytest.mark.vllm


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save("qwen3", tmp_path / "model")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Servers that a test starts."""
    made: list[Server] = []
    yield made
    for server in made:
        server.close()


def served(servers: list[Server], model: Path, *, forked: bool = True, **environment: str) -> Server:
    servers.append(Server(model, model.parent / f"server-{len(servers)}.log", forked=forked, **environment))
    return servers[-1]


def checksums(server: Server) -> Any:
    return server.ask("weight_checker", {"action": "checksum"})["checksums"]


def test_a_trainer_with_vllms_interface_sends_weights_to_a_server(
    tmp_path: Path, model: Path, servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    import torch
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from p2psync.trainer.vllm_engine import P2PSyncTrainerInitInfo

    server = served(servers, model)
    fresh = served(servers, model)
    server.ready()
    policy = model_of("qwen3")
    key = tmp_path / "key"
    key.write_text(private_text(KEY))
    info = P2PSyncTrainerInitInfo(
        rank=0,
        store=str(tmp_path / "run"),
        key=str(key),
        host="127.0.0.1",
        hub_port=free_port(),
        port=0,
        files=str(model),
        servers=[server.url],
        wait=TIMEOUT,
        worker={"host": "127.0.0.1", "store": str(tmp_path / "store")},
    )
    engine: Any = WeightTransferTrainerFactory.trainer_init(
        info, client=HTTPVLLMWeightSyncClient(server.url), source=ModuleSource(policy)
    )
    try:
        first = engine.send_weights()
        assert first.version == 0
        fetched = server.ask("collective_rpc", {"method": "p2psync_status"})["results"][0]["fetched_bytes"]
        assert fetched == 0, "the engine holds the base model already"
        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(server.complete, 200) for _ in range(2)]
            for number in (1, 2):
                with torch.no_grad():
                    for parameter in policy.parameters():
                        bits = parameter.data.view(torch.int16)
                        bits ^= (torch.rand(bits.shape) < 0.01).to(torch.int16)
                assert engine.send_weights().version == number
                assert server.ask("weight_info") == {"weight_version": str(number)}
            for one in running:
                assert len(one.result()[1]) == 200, "a request in flight was lost"
        fresh.ready()
        policy.save_pretrained(tmp_path / "after")
        fresh.ask("collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "after")}})
        assert checksums(server) == checksums(fresh)
        assert server.complete() == fresh.complete()
    finally:
        engine.shutdown()


def test_a_server_joins_and_conducts_by_itself_and_stops_when_its_weights_are_unknown(
    tmp_path: Path, model: Path, servers: list[Server]
) -> None:
    with trainer(tmp_path / "run") as source:
        source.publish(model)
        join = source.join()
        server = served(
            servers,
            model,
            forked=False,
            VLLM_PLUGINS="p2psync",
            P2PSYNC_VLLM_JOIN=join["hub_url"],
            P2PSYNC_VLLM_TRUST=",".join(join["trust"]),
            P2PSYNC_VLLM_STORE=str(tmp_path / "store"),
            P2PSYNC_VLLM_HOST="127.0.0.1",
            P2PSYNC_VLLM_HOLD="1",
        )
        server.ready()
        reached(server, 0)
        before = server.complete()
        source.publish(stepped(model, tmp_path / "1", 1, 0.3))
        reached(server, 1)
        assert server.ask("weight_info") == {"weight_version": "1"}
        assert server.complete() != before
        assert server.healthy()
        # Somebody else writes the weights: the next version does not fit, and nothing is served any more.
        server.ask("weight_checker", {"action": "reset"})
        source.publish(stepped(tmp_path / "1", tmp_path / "2", 2))
        deadline = time.monotonic() + TIMEOUT
        while server.healthy():
            assert time.monotonic() < deadline, json.dumps(server.ask("p2psync/status"))
            time.sleep(0.2)


def reached(server: Server, version: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while server.ask("p2psync/status")[0]["version"] != version:
        assert time.monotonic() < deadline, json.dumps(server.ask("p2psync/status"))
        time.sleep(0.1)
