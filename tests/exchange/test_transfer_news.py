"""What peers say to hold: alike for a few chunks at a time and for many."""

from __future__ import annotations

import random

import numpy as np
import pytest

from p2psync.swarm.exchange.transfer import Transfer
from tests.swarm.swarm_parts import id_of, manifest_of

CHUNKS = 200
#: Fewer chunks are counted one by one.
FEW = 24


def begun() -> Transfer:
    manifest = manifest_of(CHUNKS)
    none = np.zeros(CHUNKS, np.bool_)
    return Transfer.begin(id_of(manifest), manifest, none, ~none, random.Random(0))


@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 3 * FEW])
def test_transfer_counts_new_chunks_once_and_impossible_ones_never(count: int) -> None:
    transfer, theirs = begun(), np.zeros(CHUNKS, np.bool_)
    theirs[0] = True
    told = list(range(count))
    assert sorted(transfer.add_holder(theirs, [*told, *told[:3], CHUNKS, CHUNKS + 7], 0.0)) == told[1:]
    assert theirs[:count].all() and not theirs[count:].any()
    assert transfer.rarity.tolist() == [0] + [1] * (count - 1) + [0] * (CHUNKS - count)


@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 3 * FEW])
def test_the_earliest_word_on_a_chunk_counts(count: int) -> None:
    transfer, told = begun(), list(range(count))
    for chunks, now in ((told, 2.0), (told, 3.0), (told[:1], 1.0)):
        transfer.add_holder(np.zeros(CHUNKS, np.bool_), chunks, now)
    assert transfer.available_since[:count].tolist() == [1.0] + [2.0] * (count - 1)
    assert np.isinf(transfer.available_since[count:]).all()
