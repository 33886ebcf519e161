"""Decides who may publish: one claimant at a time, with every earlier one fenced off.

Within a run claims are ordered by epoch, so a restarted trainer takes its own run back. Another run gets the hub only
if it is newer and nobody holds the hub, because the claimant's lease has expired; otherwise its trainer must take over
on purpose (`RunClaim.take_over`). A hub embedded in a trainer takes no other trainer at all, since it ends together
with the trainer that it serves.

Each claim is signed over a nonce that this hub issued and that is used once, so an overheard claim is worthless. The
claimant gets a secret token, and only the newest token may announce.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from p2psync.errors import FencedError, LeaseError, TrustError
from p2psync.membership.checks import check_claim
from p2psync.membership.records import RunClaim, claim_bytes
from p2psync.membership.runs import run_name, short_run

#: Tokens that are remembered as fenced. An older token is merely unknown, and its owner's next claim is refused.
_FENCED_KEPT = 64


@dataclass(frozen=True)
class Claimant:
    """The trainer that holds the run. host: the address it claimed from, "" if unknown. at: when it claimed (seconds).
    how: how it got the run, for people."""

    run: str
    epoch: int
    node: str
    token: str
    host: str = ""
    at: float = 0.0
    how: str = ""

    def line(self) -> str:
        """One line for people: who holds the run, and how it got it."""
        where = f" at {self.host}" if self.host else ""
        return f"trainer {self.node[:8]}{where} claimed {run_name(self.run)} at epoch {self.epoch}, {self.how}"


class Fence:
    """Issues nonces, grants claims and checks tokens. At most `max_nonces` nonces are outstanding, each valid for
    `nonce_ttl` seconds."""

    def __init__(self, trusted: frozenset[bytes], max_nonces: int, nonce_ttl: float, *, embedded: bool = False) -> None:
        """embedded: the hub is part of a trainer; only claims over its own nonces are granted."""
        self.claimant: Claimant | None = None
        self._embedded = embedded
        self._own_nonces: set[str] = set()
        self.nonce_ttl = nonce_ttl
        self._trusted = trusted
        self._max_nonces = max_nonces
        self._nonces: OrderedDict[str, float] = OrderedDict()
        self._fenced: OrderedDict[str, None] = OrderedDict()

    @property
    def outstanding(self) -> int:
        """Number of nonces that were issued and not used."""
        return len(self._nonces)

    def challenge(self, nonce: str, now: float, *, own: bool = False) -> None:
        """Records `nonce` as issued. own: it goes to the trainer that embeds this hub, within its process.

        When too many nonces are outstanding the oldest becomes void, so that requests for nonces lock nobody out.
        """
        if own:
            self._own_nonces.add(nonce)
            return
        self._forget_nonces(now)
        if len(self._nonces) >= self._max_nonces:
            self._nonces.popitem(last=False)
        self._nonces[nonce] = now + self.nonce_ttl

    def claim(self, request: RunClaim, token: str, now: float, *, held: str = "", host: str = "") -> bool:
        """Grants the run to `request` under `token`. Returns whether run or epoch changed. Uses the nonce up either
        way.

        held: who holds this hub, in words, "" if nobody does. host: the address that the claim came from, "" if
        unknown.

        Raises `FormatError` for a malformed claim, `TrustError` for an unknown nonce, an untrusted key or a wrong
        signature, `FencedError` for a claim that another one outranks.
        """
        check_claim(request)
        own = self._spend(request.nonce, now)
        self._authenticate(request)
        earlier = self.claimant
        if self._embedded and not own:
            raise FencedError(_embedded_refusal(earlier))
        _check_order(request, earlier, held)
        how = _how(request, earlier, held)
        again = earlier is not None and (earlier.run, earlier.epoch) == (request.run, request.epoch)
        if earlier is not None:
            self._remember_fenced(earlier.token)
            how = earlier.how if again else how
        self.claimant = Claimant(request.run, request.epoch, request.node, token, host, now, how)
        return not again

    def check(self, token: str) -> Claimant:
        """Returns the claimant, if `token` is its token.

        Raises `FencedError` for the token of an earlier claimant, `LeaseError` for an unknown one.
        """
        holder = self.claimant
        if holder is not None and self.is_current(token):
            return holder
        if holder is not None and token in self._fenced:
            raise FencedError(f"{holder.line()}: stop publishing, or take the hub back on purpose (--take-over)")
        raise LeaseError("this hub knows no such claim, it may have been restarted; claim the run again")

    def is_current(self, token: str) -> bool:
        """Returns whether `token` is the claimant's. Takes constant time for every wrong token of the same length."""
        return self.claimant is not None and hmac.compare_digest(
            self.claimant.token.encode(), token.encode("utf-8", "surrogatepass")
        )

    def _forget_nonces(self, now: float) -> None:
        while self._nonces and next(iter(self._nonces.values())) <= now:
            self._nonces.popitem(last=False)

    def _spend(self, nonce: str, now: float) -> bool:
        """Uses a nonce up. Returns whether it was issued to the trainer that embeds this hub. Raises `TrustError` for
        an unknown one."""
        if nonce in self._own_nonces:
            self._own_nonces.discard(nonce)
            return True
        self._forget_nonces(now)
        if self._nonces.pop(nonce, None) is None:
            raise TrustError("this claim's nonce is unknown: used before, expired or never issued; ask for another")
        return False

    def _authenticate(self, request: RunClaim) -> None:
        key = bytes.fromhex(request.key)
        if key not in self._trusted:
            raise TrustError(
                f"claim signed by {request.key[:16]}…, a key this hub does not trust; see the hub's --trust"
            )
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(request.signature), claim_bytes(request))
        except (InvalidSignature, ValueError):
            raise TrustError("the claim's signature is wrong: it was forged or damaged in transit") from None

    def _remember_fenced(self, token: str) -> None:
        self._fenced[token] = None
        if len(self._fenced) > _FENCED_KEPT:
            self._fenced.popitem(last=False)


def _check_order(request: RunClaim, earlier: Claimant | None, held: str) -> None:
    if earlier is None or request.run != earlier.run:
        _check_other_run(request, earlier, held)
    elif request.epoch < earlier.epoch or (request.epoch == earlier.epoch and request.node != earlier.node):
        raise FencedError(
            f"run {earlier.run} is at epoch {earlier.epoch} here, held by node {earlier.node[:8]}…;"
            f" to take it over, claim epoch {earlier.epoch + 1} or above"
        )


def _check_other_run(request: RunClaim, earlier: Claimant | None, held: str) -> None:
    """Raises `FencedError` unless the other run may have the hub: on purpose, or because the run here is older and
    over."""
    if request.take_over:
        return
    if held:
        raise FencedError(
            f"{held}; this would end it: start this trainer with the --store of that run to go on with it, give it a"
            " hub of its own (leave --hub out), or take over on purpose with --take-over"
        )
    if earlier is not None and request.run < earlier.run:
        raise FencedError(
            f"{run_name(earlier.run)} was published here, which is newer than {run_name(request.run)} of this store: to"
            f" go back on purpose, start with --supersede {short_run(earlier.run)}, which every actor will follow"
            " (or with --take-over, for those that were told to --follow-run)"
        )


def _embedded_refusal(holder: Claimant | None) -> str:
    held = f", which holds {run_name(holder.run)}" if holder is not None else ""
    return (
        f"this hub is part of a trainer{held}, and would end with it, so it takes no other, not even with --take-over:"
        " leave --hub out for a hub of your own, or stop that trainer first; trainers that come and go share one"
        " `p2psync hub`"
    )


def _how(request: RunClaim, earlier: Claimant | None, held: str) -> str:
    if earlier is None:
        return "the first since this hub was started" if not held else "with --take-over"
    if earlier.run == request.run:
        return "as its trainer was started again"
    if held:
        return f"with --take-over, from {run_name(earlier.run)}"
    return f"after {run_name(earlier.run)}, whose trainer was gone"
