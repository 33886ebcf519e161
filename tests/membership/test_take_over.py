"""A hub changes runs by itself only if nobody holds it and the new run is newer; otherwise only on purpose."""

from __future__ import annotations

import msgspec
import pytest
from membership_parts import KEY, LATER_RUN, RUN, announce, claim, fresh, make_core, manifest, node, signed_claim

from p2psync.errors import FencedError, TrustError
from p2psync.membership.hub import HubCore
from p2psync.membership.records import Join, Leave, Renew, claim_bytes

TTL = 10.0


def join(core: HubCore, number: int, now: float = 0.0, **fields: object) -> str:
    """A node's lease."""
    role = {"role": fields.pop("role")} if "role" in fields else {}
    return core.join(Join(info=node(number, **role), **fields), lease=fresh(), now=now).lease


def test_a_trainer_holds_its_hub_from_its_claim_until_its_lease_ends() -> None:
    core = make_core(ttl=TTL)
    claim(core, claimant=1)
    with pytest.raises(FencedError, match="--take-over"):
        claim(core, TTL - 1, run=LATER_RUN, claimant=2)
    lease = join(core, 1, now=TTL - 1, role="trainer")
    core.renew(Renew(lease=lease), now=2 * TTL - 2)
    with pytest.raises(FencedError, match=r"claimed run 000000000001 .* at epoch 1, .*, 28 s ago, and is at work"):
        claim(core, 3 * TTL - 2.1, run=LATER_RUN, claimant=2)
    claim(core, 3 * TTL - 2, run=LATER_RUN, claimant=2)
    assert "after run 000000000001" in core.view().claim and "whose trainer was gone" in core.view().claim


def test_a_trainer_that_never_joins_holds_it_for_one_lease() -> None:
    core = make_core(ttl=TTL)
    claim(core, claimant=1)
    claim(core, TTL, run=LATER_RUN, claimant=2)


def test_a_trainer_that_leaves_releases_its_hub() -> None:
    core = make_core(ttl=TTL)
    claim(core, claimant=1)
    core.leave(Leave(lease=join(core, 1, role="trainer")), now=1)
    claim(core, 1, run=LATER_RUN, claimant=2)


def test_an_ended_run_is_replaced_by_a_newer_one_and_by_an_older_only_on_purpose() -> None:
    core = make_core(ttl=TTL)
    claim(core, run=LATER_RUN, claimant=2)
    with pytest.raises(FencedError, match=r"000000000002 .* newer .*--supersede 000000000002"):
        claim(core, TTL, run=RUN, claimant=1)
    claim(core, TTL, run=RUN, claimant=1, take_over=True)
    assert core.view().run == RUN


def test_a_take_over_names_the_new_holder_to_the_earlier_trainer() -> None:
    core = make_core(ttl=TTL)
    token = claim(core, claimant=1)
    announce(core, token, manifest(0))
    claim(core, run=LATER_RUN, claimant=2, take_over=True)
    assert core.view().lineage == [] and "with --take-over, from run 000000000001" in core.view().claim
    with pytest.raises(FencedError, match=r"trainer 00000000 .*with --take-over.*: stop publishing"):
        announce(core, token, manifest(1, 0))


def test_the_same_node_needs_no_take_over_for_a_superseding_run() -> None:
    core = make_core(ttl=TTL)
    claim(core, claimant=1)
    join(core, 1, role="trainer")
    claim(core, epoch=2, claimant=1)
    claim(core, run=LATER_RUN, epoch=3, claimant=1)


def test_of_two_simultaneous_claims_the_first_wins() -> None:
    core = make_core(ttl=TTL)
    nonces = [core.challenge(nonce=fresh(), now=0).nonce for _ in range(2)]
    core.claim(signed_claim(nonces[0], run=RUN, claimant=1), token=fresh(), now=0)
    with pytest.raises(FencedError, match="at work"):
        core.claim(signed_claim(nonces[1], run=LATER_RUN, claimant=2), token=fresh(), now=0)


def test_setting_take_over_in_transit_breaks_the_signature() -> None:
    core = make_core()
    nonce = core.challenge(nonce=fresh(), now=0).nonce
    meant = signed_claim(nonce)
    with pytest.raises(TrustError, match="signature is wrong"):
        core.claim(msgspec.structs.replace(meant, take_over=True), token=fresh(), now=0)


def test_a_claim_without_take_over_keeps_its_signed_bytes() -> None:
    made = signed_claim("nonce")
    fields = [made.node, made.run, "1", "nonce", made.key]
    assert claim_bytes(made) == b"p2psync claim v1\0" + "\0".join(fields).encode()
    KEY.public_key().verify(bytes.fromhex(made.signature), claim_bytes(made))


# a restarted hub


def test_a_rejoined_trainer_holds_a_restarted_hub_before_it_claims() -> None:
    core = make_core(ttl=TTL)
    join(core, 1, role="trainer", version=3, digest="ab" * 16, run=RUN, epoch=2)
    with pytest.raises(FencedError, match=r"trainer 00000000 at 10.0.0.1 is at work on run 000000000001"):
        claim(core, run=LATER_RUN, claimant=2)
    claim(core, run=RUN, epoch=2, claimant=1)


def test_actors_alone_do_not_hold_a_hub() -> None:
    core = make_core(ttl=TTL)
    join(core, 7, version=3, digest="ab" * 16, run=RUN, epoch=2)
    claim(core, run=LATER_RUN, claimant=2)


# an embedded hub


def own_claim(core: HubCore, **fields: object) -> None:
    nonce = fresh()
    core.own_challenge(nonce=nonce, now=0)
    core.claim(signed_claim(nonce, **fields), token=fresh(), now=0)


def test_a_hub_inside_a_trainer_is_claimed_by_no_other_trainer() -> None:
    core = make_core(embedded=True)
    for fields in ({}, {"epoch": 9}, {"run": LATER_RUN, "claimant": 2, "take_over": True}):
        with pytest.raises(FencedError, match="this hub is part of a trainer"):
            claim(core, **fields)
    assert core.view().run == ""
    own_claim(core, epoch=2)
    for fields in ({"epoch": 3}, {"run": LATER_RUN, "take_over": True}):
        with pytest.raises(FencedError, match="which holds run 000000000001"):
            claim(core, 100.0, **fields)
    own_claim(core, epoch=2)


def test_an_own_nonce_is_valid_once_and_untrusted_keys_learn_nothing() -> None:
    core = make_core(embedded=True)
    nonce = fresh()
    core.own_challenge(nonce=nonce, now=0)
    core.claim(signed_claim(nonce), token=fresh(), now=0)
    with pytest.raises(TrustError, match="nonce"):
        core.claim(signed_claim(nonce), token=fresh(), now=0)


# members' reports


def test_members_report_their_run_and_why_they_wait() -> None:
    core = make_core()
    lease = join(core, 1, version=1, digest="ab" * 16, run=RUN, epoch=4)
    core.renew(
        Renew(lease=lease, version=1, digest="ab" * 16, run=RUN, epoch=4, waits="busy\x1b[31m\n" + "x" * 999), now=1
    )
    (member,), (age,) = core.view().members, core.status(now=1, started=0).ages
    assert (member.run, member.epoch) == (RUN, 4)
    assert age.waits.startswith("busy [31m x") and age.waits.isprintable() and len(age.waits) == 400


def test_a_member_of_another_run_does_not_run_the_newest_version_though_its_number_is_the_same() -> None:
    core = make_core()
    announce(core, claim(core), manifest(3))
    lease = join(core, 7, version=3, digest="ab" * 16, run=LATER_RUN)
    assert not core._all_run_head(core.view().members)
    core.renew(Renew(lease=lease, version=3, digest="ab" * 16, run=RUN), now=1)
    assert core._all_run_head(core.view().members)
