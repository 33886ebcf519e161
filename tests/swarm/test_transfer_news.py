"""What peers say to hold: alike for a few chunks at a time and for many."""

from __future__ import annotations

import random

import numpy as np
import pytest

from p2psync.swarm.transfer import FEW, Transfer
from tests.swarm.swarm_parts import id_of, manifest_of

CHUNKS = 200


def begun() -> Transfer:
    manifest = manifest_of(CHUNKS)
    none = np.zeros(CHUNKS, np.bool_)
    return Transfer.begin(id_of(manifest), manifest, none, ~none, random.Random(0))


@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 3 * FEW])
def test_transfer_counts_new_chunks_once_and_impossible_ones_never(count: int) -> None:
    transfer, theirs = begun(), np.zeros(CHUNKS, np.bool_)
    theirs[0] = True
    told = list(range(count))
    assert sorted(transfer.learn(theirs, [*told, *told[:3], CHUNKS, CHUNKS + 7])) == told[1:]
    assert theirs[:count].all() and not theirs[count:].any()
    assert transfer.rarity.tolist() == [0] + [1] * (count - 1) + [0] * (CHUNKS - count)


@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 3 * FEW])
def test_the_earliest_word_on_a_chunk_counts(count: int) -> None:
    transfer, told = begun(), list(range(count))
    transfer.hear(told, 2.0)
    transfer.hear(told, 3.0)
    transfer.hear(told[:1], 1.0)
    assert transfer.heard[:count].tolist() == [1.0] + [2.0] * (count - 1)
    assert np.isinf(transfer.heard[count:]).all()


def test_nothing_is_to_be_asked_while_all_that_is_open_is_waited_for() -> None:
    transfer = begun()
    assert transfer.may_ask(0.0)
    transfer.pushed = True
    assert not transfer.may_ask(100.0)
    transfer.hear([3], 5.0)
    assert not transfer.may_ask(4.9) and transfer.may_ask(5.0)
    transfer.ask(3, "a", 5.0, 6.0, 6.0)
    assert transfer.may_ask(0.0)
    transfer.forgo()
    assert not transfer.may_ask(5.0)


def test_rare_chunks_are_picked_first_but_those_heard_of_last_where_they_are_pushed() -> None:
    transfer = begun()
    for index in range(10):
        transfer.hear([index], 2.0 * index)
        transfer.rarity[index] = 1 + index
    known = np.arange(CHUNKS) < 10
    assert transfer.pick(known, 3) == [0, 1, 2]
    transfer.pushed = True
    assert transfer.pick(known, 3) == [9, 8, 7]
