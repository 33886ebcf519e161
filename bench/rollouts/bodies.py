"""Measures forms of a rollout's result: processor time a megabyte, and bytes on the wire.

    python -m p2psync.bench.rollouts.bodies

The result is `tokens` int32 ids and float32 log-probabilities. Only the form is measured: no socket, no ledger.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np
import zstandard

#: Repetitions, of which the median counts.
ROUNDS = 15


class _Wrapped(msgspec.Struct):
    work: str
    item: str
    version: int
    digest: str
    result: bytes


class _Lists(msgspec.Struct):
    tokens: list[int]
    logprobs: list[float]


def draw(tokens: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Ids as frequent as words are, and log-probabilities most of which are near 0."""
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.zipf(1.2, tokens), 150_000).astype(np.int32)
    return ids, -(rng.exponential(1.0, tokens) ** 2 * 0.3).astype(np.float32)


def measure(tokens: int) -> list[tuple[str, float, float, float]]:
    """(form, ms a MB to encode, to decode, bytes relative to the plain result)."""
    ids, logprobs = draw(tokens)
    plain = ids.tobytes() + logprobs.tobytes()
    wrapped = _Wrapped("a" * 32, "item", 1, "b" * 32, plain)
    lists = _Lists(ids.tolist(), logprobs.astype(float).tolist())
    packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    forms: list[tuple[str, Callable[[], bytes], Callable[[bytes], object]]] = [
        ("lists in JSON", lambda: msgspec.json.encode(lists), lambda data: msgspec.json.decode(data, type=_Lists)),
        (
            "lists in MessagePack",
            lambda: msgspec.msgpack.encode(lists),
            lambda data: msgspec.msgpack.decode(data, type=_Lists),
        ),
        ("base64 in JSON", lambda: msgspec.json.encode(wrapped), lambda data: msgspec.json.decode(data, type=_Wrapped)),
        (
            "bytes in MessagePack",
            lambda: msgspec.msgpack.encode(wrapped),
            lambda data: msgspec.msgpack.decode(data, type=_Wrapped),
        ),
        ("the body itself", lambda: plain, bytes),
        ("the body, zstd -1", lambda: packer.compress(plain), unpacker.decompress),
    ]
    megabytes = len(plain) / 1e6
    rows = []
    for name, encode, decode in forms:
        data = encode()
        size = len(data) / len(plain)
        spent = _cpu(encode), _cpu(lambda data=data, decode=decode: decode(data))  # type: ignore[misc]
        rows.append((name, spent[0] * 1e3 / megabytes, spent[1] * 1e3 / megabytes, size))
    return rows


def _cpu(call: Callable[[], object]) -> float:
    spent = []
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000)
    rows = measure(parser.parse_args().tokens)
    print(f"{'form':22} {'encode':>12} {'decode':>12} {'size':>6}")
    for name, encode, decode, size in rows:
        print(f"{name:22} {encode:7.2f} ms/MB {decode:7.2f} ms/MB {size:6.2f}")


if __name__ == "__main__":
    main()
