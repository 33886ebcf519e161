"""Shared parts of the hub's tests: a manual clock, nodes, signed manifests, and waiting for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.tensors import TensorSpec
from p2psync.membership.records import NodeInfo
from p2psync.protocol.manifest import Manifest, TableRow, pack_table, sign

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
UNTRUSTED_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
TRUSTED = frozenset({KEY.public_key().public_bytes_raw()})
RUN = "0" * 11 + "1" + "a" * 20
TRAINER = "f" * 32


class Clock:
    """A manual clock, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def node(number: int, **fields: object) -> NodeInfo:
    """A node with a port of its own."""
    return NodeInfo(**{"node": f"{number:032x}", "role": "actor", "host": "10.0.0.1", "port": 7000 + number} | fields)


def manifest(version: int, base: int | None = None, *, epoch: int = 1, tensors: int = 0) -> bytes:
    """A signed manifest; each tensor makes it larger by some 50 bytes."""
    names = [KEY.sign(str(number).encode()).hex()[:64] for number in range(tensors)]
    rows = [TableRow(TensorSpec(2, name, "BF16", (1,)), True, True) for name in sorted(names)]
    made = Manifest(
        run=RUN,
        epoch=epoch,
        version=version,
        base=base,
        digest=version.to_bytes(16, "little"),
        base_digest=(base or 0).to_bytes(16, "little"),
        profile="fast",
        block_units=1 << 16,
        table=pack_table(rows),
        sizes=[],
        hashes=b"",
        first_rows=[],
        changed=0,
        total=tensors,
        created=0.0,
    )
    return sign(made, KEY).to_bytes()


async def until(condition: Callable[[], object]) -> None:
    """Runs the loop until `condition` holds; fails after 10 s."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the condition changes in the server, without an event to wait for)
            await asyncio.sleep(0)
