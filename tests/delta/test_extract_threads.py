"""Extraction in several threads at the same time, also at the first call."""

from __future__ import annotations

import os
import subprocess
import sys

_FIRST_OF_ALL = """
import threading
import numpy as np
from p2psync.delta.extract import extract_block

bits = np.arange(1 << 16, dtype=np.uint16)
barrier = threading.Barrier(8)

def extract():
    barrier.wait()
    for _ in range(50):
        assert extract_block(0, None, bits, 0, bits.size) is not None
        assert extract_block(0, bits.view(np.uint8), None, 0, bits.size) is not None

threads = [threading.Thread(target=extract) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""

_TIGHT = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from p2psync.delta.container import ChunkEncoder, decode_chunk
from p2psync.delta.tensors import TensorKind, TableRow, TensorSpec

rng = np.random.default_rng(8)
old = rng.integers(0, 1 << 14, 20_000).astype(np.uint16)
new = old + (rng.random(old.size) < 0.05).astype(np.uint16)
rows = [TableRow(TensorSpec(TensorKind.TENSOR, "w", "BF16", (old.size,)), True, True)]

def once(_):
    encoder = ChunkEncoder(rows, block_units=1 << 16, chunk_bytes=1 << 16, profile="tight")
    chunks = [*encoder.add(0, old, new), *encoder.finish()]
    made = old.copy()
    for chunk in chunks:
        for block in decode_chunk(chunk.data, rows, 1 << 16, lambda row: old):
            made[block.positions] += block.steps
            [np.full(size, 0xFF, np.uint8) for size in (6656, 7168, 14000, 20000, 24000)]
    assert np.array_equal(made, new)
    return chunks[0].data

with ThreadPoolExecutor(8) as pool:
    assert len(set(pool.map(once, range(2000)))) == 1
"""


def test_extract_is_thread_safe_at_its_first_calls() -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST_OF_ALL], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_compiled_loops_share_no_memory_between_threads() -> None:
    # With one arena for all threads, memory freed by one thread is given to another one next.
    alone = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run([sys.executable, "-c", _TIGHT], capture_output=True, text=True, check=False, env=alone)
    assert done.returncode == 0, done.stderr
