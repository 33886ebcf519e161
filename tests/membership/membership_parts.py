"""Shared parts of the membership tests: nodes, keys, signed manifests and claims."""

from __future__ import annotations

import itertools

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.membership.hub import HubConfig, HubCore
from p2psync.membership.records import Announce, NodeInfo, RunClaim, claim_bytes
from p2psync.protocol.manifest import Manifest, pack_table, sign

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
UNTRUSTED_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
RUN = "0" * 11 + "1" + "a" * 20
LATER_RUN = "0" * 11 + "2" + "a" * 20

_serial = itertools.count()


def fresh() -> str:
    """Returns a fresh secret."""
    return f"secret-{next(_serial)}"


def node(number: int, **fields: object) -> NodeInfo:
    """A node with a port of its own."""
    return NodeInfo(**{"node": f"{number:032x}", "role": "actor", "host": "10.0.0.1", "port": 7000 + number} | fields)


def manifest(
    version: int,
    base: int | None = None,
    *,
    run: str = RUN,
    epoch: int = 1,
    branch: int = 0,
    created: float = 0.0,
    key: Ed25519PrivateKey = KEY,
) -> bytes:
    """A signed manifest of an empty model. branch varies the digest, created the body."""
    made = Manifest(
        run=run,
        epoch=epoch,
        version=version,
        base=base,
        digest=bytes([version, branch]) + bytes(14),
        base_digest=bytes(16) if base is None else bytes([base, branch]) + bytes(14),
        profile="fast",
        block_units=1 << 16,
        table=pack_table([]),
        sizes=[],
        hashes=b"",
        first_rows=[],
        changed=0,
        total=0,
        created=created,
    )
    return sign(made, key).to_bytes()


def make_core(**settings: object) -> HubCore:
    """A hub that trusts KEY, with leases of 10 s."""
    config = HubConfig(**{"trusted": frozenset({KEY.public_key().public_bytes_raw()}), "ttl": 10.0} | settings)
    return HubCore(config, instance="one")


def signed_claim(
    nonce: str,
    *,
    run: str = RUN,
    epoch: int = 1,
    claimant: int = 1,
    take_over: bool = False,
    key: Ed25519PrivateKey = KEY,
) -> RunClaim:
    """A claim over `nonce` with a valid signature."""
    public = key.public_key().public_bytes_raw().hex()
    claim = RunClaim(node=f"{claimant:032x}", run=run, epoch=epoch, nonce=nonce, key=public, take_over=take_over)
    return msgspec.structs.replace(claim, signature=key.sign(claim_bytes(claim)).hex())


def claim(core: HubCore, now: float = 0.0, **fields: object) -> str:
    """Claim the run; returns the token."""
    nonce = core.challenge(nonce=fresh(), now=now).nonce
    return core.claim(signed_claim(nonce, **fields), token=fresh(), now=now).token


def announce(core: HubCore, token: str, *manifests: bytes, retire: tuple[str, ...] = ()) -> int:
    """Announce; returns the revision."""
    return core.announce(Announce(token=token, manifests=list(manifests), retire=list(retire)), now=0.0).revision
