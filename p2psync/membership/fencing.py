"""Who may publish: one claimant at a time, and every earlier one fenced off.

Claims are ordered by (run, epoch); run ids sort by time. Each claim is signed over a nonce that was given out here
and is used once, so a claim that was overheard is worth nothing. The claimant gets a secret token, and only the newest
token announces.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from p2psync.errors import FencedError, LeaseError, TrustError
from p2psync.membership.checks import check_claim
from p2psync.membership.records import Claim, claim_bytes

#: Tokens that are remembered as fenced; an older one is merely unknown, and its next claim is refused.
_FENCED_KEPT = 64


@dataclass(frozen=True)
class Claimant:
    """The trainer that holds the run."""

    run: str
    epoch: int
    node: str
    token: str


class Fence:
    """Nonces, claims and tokens. At most `max_nonces` nonces are out at once, each good for `nonce_ttl` seconds."""

    def __init__(self, trusted: frozenset[bytes], max_nonces: int, nonce_ttl: float) -> None:
        self.claimant: Claimant | None = None
        self.nonce_ttl = nonce_ttl
        self._trusted = trusted
        self._max_nonces = max_nonces
        self._nonces: OrderedDict[str, float] = OrderedDict()
        self._fenced: OrderedDict[str, None] = OrderedDict()

    @property
    def outstanding(self) -> int:
        """Nonces that are out."""
        return len(self._nonces)

    def challenge(self, nonce: str, now: float) -> None:
        """Remember `nonce` as given out.

        When too many are out the oldest becomes void, so that asking for nonces locks nobody out.
        """
        self._forget_nonces(now)
        if len(self._nonces) >= self._max_nonces:
            self._nonces.popitem(last=False)
        self._nonces[nonce] = now + self.nonce_ttl

    def claim(self, request: Claim, token: str, now: float) -> bool:
        """Grant the run to `request` under `token`; True when run or epoch changed. The nonce is spent either way.

        Raises `FormatError` for a malformed claim, `TrustError` for a nonce that is not out, an untrusted key or a
        wrong signature, `FencedError` for a claim that another one is ahead of.
        """
        check_claim(request)
        self._spend(request.nonce, now)
        self._authenticate(request)
        earlier = self.claimant
        if earlier is not None:
            _check_order(request, earlier)
            self._remember_fenced(earlier.token)
        self.claimant = Claimant(request.run, request.epoch, request.node, token)
        return earlier is None or (earlier.run, earlier.epoch) != (request.run, request.epoch)

    def check(self, token: str) -> Claimant:
        """The claimant, if `token` is its token.

        Raises `FencedError` for the token of an earlier claimant, `LeaseError` for one that is not known here.
        """
        holder = self.claimant
        if holder is not None and self.is_current(token):
            return holder
        if holder is not None and token in self._fenced:
            raise FencedError(
                f"node {holder.node[:8]}… has claimed run {holder.run} at epoch {holder.epoch};"
                " stop publishing, or claim a higher epoch on purpose"
            )
        raise LeaseError("this hub knows no such claim, it may have been restarted; claim the run again")

    def is_current(self, token: str) -> bool:
        """Whether `token` is the claimant's; takes equally long for every wrong one of its length."""
        return self.claimant is not None and hmac.compare_digest(
            self.claimant.token.encode(), token.encode("utf-8", "surrogatepass")
        )

    def _forget_nonces(self, now: float) -> None:
        while self._nonces and next(iter(self._nonces.values())) <= now:
            self._nonces.popitem(last=False)

    def _spend(self, nonce: str, now: float) -> None:
        self._forget_nonces(now)
        if self._nonces.pop(nonce, None) is None:
            raise TrustError("this claim's nonce is not out: used before, too old or made up; ask for another")

    def _authenticate(self, request: Claim) -> None:
        key = bytes.fromhex(request.key)
        if key not in self._trusted:
            raise TrustError(
                f"claim signed by {request.key[:16]}…, a key this hub does not trust; see the hub's --trust"
            )
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(request.signature), claim_bytes(request))
        except (InvalidSignature, ValueError):
            raise TrustError("the claim's signature is wrong: it was forged or damaged on the way") from None

    def _remember_fenced(self, token: str) -> None:
        self._fenced[token] = None
        if len(self._fenced) > _FENCED_KEPT:
            self._fenced.popitem(last=False)


def _check_order(request: Claim, earlier: Claimant) -> None:
    if request.run < earlier.run:
        raise FencedError(
            f"a later run, {earlier.run}, holds this hub; start a new run, or give this one a hub of its own"
        )
    if request.run > earlier.run or request.epoch > earlier.epoch:
        return
    if request.epoch < earlier.epoch or request.node != earlier.node:
        raise FencedError(
            f"run {earlier.run} is at epoch {earlier.epoch} here, held by node {earlier.node[:8]}…;"
            f" to take it over, claim epoch {earlier.epoch + 1} or above"
        )
