"""Real ranks over gloo: all write a version in the same pause, or none does."""

from __future__ import annotations

import multiprocessing
import socket
import traceback
from multiprocessing.connection import Connection
from typing import Any

import pytest

SIZE = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_main(rank: int, port: int, pipe: Connection) -> None:
    """Runs one rank: carries out the orders of the test, and answers."""
    import torch
    import torch.distributed as dist
    from fused_parts import Checkpointed, Fused, failing, learned, load, parameters, same_bits
    from module_parts import version_of

    from p2psync.engines.vllm.live_map import check_whole
    from p2psync.engines.vllm.rank_writer import RankWriter
    from p2psync.engines.vllm.ranks import EngineRanks

    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=SIZE)
    trained, model = Checkpointed(), Fused(rank, SIZE)
    load(model, trained)
    version = version_of(trained)
    ranks = EngineRanks(rank, SIZE)
    live = learned(model, version)
    ranks.writer = RankWriter(live, list(parameters(model).values()))
    maps = ranks.gather_maps(live)
    troubles: list[str] = []
    thread = ranks.follow(troubles.append) if rank else None

    def unchanged() -> bool:
        other = Fused(rank, SIZE)
        load(other, trained)
        wanted = parameters(other)
        return all(same_bits(tensor, wanted[name]) for name, tensor in parameters(model).items())

    orders = {
        "dropped": lambda: [spec.name for spec in check_whole(maps)],
        "prepare": lambda: prepare(ranks, version),
        "write": ranks.write,
        "decide": lambda: ranks.broadcast_decision(7 if rank == 0 else 0),
        "old": unchanged,
        "break": lambda: ranks.writer._writes.append(failing(lambda: None)),
        "lose": lambda: setattr(ranks.writer, "write", lambda: 1 / 0),
        "damage": lambda: parameters(model)["norm"].view(torch.int16).bitwise_xor_(1),
        "sound": ranks.is_intact,
        "troubles": lambda: troubles,
        "any": lambda: (ranks.is_true_anywhere(rank == 1), ranks.is_true_anywhere(False)),
        "stop": ranks.stop,
        "join": lambda: thread.join(10) if thread is not None else None,
    }
    while (order := pipe.recv()) != "end":
        try:
            pipe.send(("ok", orders[order]()))
        except Exception as error:
            pipe.send((type(error).__name__, str(error) or traceback.format_exc()))
    pipe.send(("ok", None))


def prepare(ranks: Any, version: Any) -> None:
    """Prepares, at rank 0, a step from the version, at all positions and at some."""
    import numpy as np
    from module_parts import stepped

    from p2psync.engines.vllm.rank_writer import Edit

    after = stepped(version, 5, 0.2)
    edits = []
    for number, spec in enumerate(ranks.writer.tensors):
        old, new = version[spec], after[spec]
        if number % 3:
            where = np.flatnonzero(old != new).astype(np.uint32)
            edits.append(Edit(number, 0, spec.count, where, old[where], new[where]))
        else:
            edits.append(Edit(number, 0, spec.count, None, old, new))
    ranks.prepare(edits)


class Group:
    """The ranks as processes."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(SIZE):
            mine, theirs = context.Pipe()
            process = context.Process(target=rank_main, args=(rank, port, theirs), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)

    def all(self, order: str) -> list[tuple[str, Any]]:
        """Sends an order to every rank; returns their answers."""
        for pipe in self.pipes:
            pipe.send(order)
        return [self.answer(pipe) for pipe in self.pipes]

    def one(self, rank: int, order: str) -> tuple[str, Any]:
        self.pipes[rank].send(order)
        return self.answer(self.pipes[rank])

    @staticmethod
    def answer(pipe: Connection) -> tuple[str, Any]:
        assert pipe.poll(60), "a rank does not answer"
        found: tuple[str, Any] = pipe.recv()
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture
def group() -> Any:
    made = Group()
    yield made
    made.close()


def test_all_ranks_write_or_none(group: Group) -> None:
    ok = ("ok", None)
    assert group.all("dropped") == [("ok", ["head"])] * 2
    assert group.one(0, "prepare") == ok
    assert group.all("old") == [("ok", True)] * 2, "nothing is written during generation"
    assert group.all("decide") == [("ok", 7)] * 2
    assert group.all("any") == [("ok", (True, False))] * 2, "what is so at one rank all know"
    # One rank cannot write: neither does.
    assert group.one(1, "break") == ok
    failed = group.all("write")
    assert [kind for kind, _ in failed] == ["EngineError"] * 2
    assert "another rank" in failed[0][1] and "fell off" in failed[1][1]
    assert group.all("old") == [("ok", True)] * 2
    assert group.one(0, "sound") == ("ok", True)
    assert group.one(0, "prepare") == ok
    assert group.all("write") == [ok] * 2
    assert group.all("old") == [("ok", False)] * 2
    assert group.one(0, "sound") == ("ok", True)
    # A version is only prepared where every rank holds the old bits.
    assert group.one(0, "prepare")[0] == "EngineError"
    assert group.one(0, "stop") == ok
    assert group.all("join") == [ok] * 2


def test_damage_on_one_rank_is_seen_by_rank_0_and_a_lost_rank_loses_all(group: Group) -> None:
    assert group.one(0, "prepare") == ("ok", None)
    assert group.one(1, "lose") == ("ok", None)
    assert [kind for kind, _ in group.all("write")] == ["UnvouchedError"] * 2
    assert group.one(1, "damage")[0] == "ok"
    assert group.one(0, "sound") == ("ok", False)
