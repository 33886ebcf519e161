"""The hub's core: bounds on reports, fencing, the lineage, and when the revision rises."""

from __future__ import annotations

import msgspec
import pytest
from membership_parts import (
    KEY,
    LATER_RUN,
    RUN,
    UNTRUSTED_KEY,
    announce,
    claim,
    fresh,
    make_core,
    manifest,
    node,
    signed_claim,
)

from p2psync.errors import (
    BaseMismatchError,
    FencedError,
    FormatError,
    HubError,
    LeaseError,
    P2PSyncError,
    ReplayError,
    TrustError,
    UsageError,
)
from p2psync.membership.hub import HubConfig
from p2psync.membership.records import Announce, Join, Leave, Renew


def ids(*manifests: bytes) -> list[str]:
    core = make_core()
    announce(core, claim(core, epoch=9), *manifests)
    return [a.id for a in core.view().lineage]


# members


def test_an_empty_hub_shows_nothing() -> None:
    view = make_core().view()
    assert (view.instance, view.revision, view.run, view.head) == ("one", 0, "", None)
    assert view.members == [] and view.lineage == []


def test_joins_and_leaves_and_expiries_are_visible() -> None:
    core = make_core()
    first = core.join(Join(info=node(1)), lease=fresh(), now=0)
    second = core.join(Join(info=node(2)), lease=fresh(), now=4)
    assert (first.ttl, first.revision, second.revision) == (10, 1, 2)
    core.leave(Leave(lease=second.lease), now=5)
    assert core.revision == 3
    assert [(e.lease, e.reason) for e in core.expire(10)] == [(second.lease, "left"), (first.lease, "expired")]
    assert (core.revision, core.view().members, core.next_expiry()) == (4, [], None)
    assert core.expire(10) == []


def test_acknowledging_a_version_is_shown_but_wakes_no_reader() -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=0).lease
    granted = core.renew(Renew(lease=lease, version=7, digest="ab" * 16), now=3)
    assert granted.revision == 1
    assert core.acknowledgements == 1
    assert core.view().members[0].version == 7
    core.renew(Renew(lease=lease, version=7, digest="ab" * 16), now=6)
    assert core.acknowledgements == 1


def test_joining_again_ends_the_earlier_lease_and_shows_only_what_differs() -> None:
    core = make_core()
    core.join(Join(info=node(1)), lease="a", now=0)
    core.join(Join(info=node(1)), lease="b", now=1)
    assert core.revision == 1
    core.join(Join(info=node(1, port=9)), lease="c", now=1)
    assert core.revision == 2
    assert [(e.lease, e.reason) for e in core.expire(1)] == [("a", "replaced"), ("b", "replaced")]


def test_a_node_without_a_host_is_at_the_address_it_came_from() -> None:
    core = make_core()
    core.join(Join(info=node(1, host="")), lease=fresh(), now=0, seen_host="192.0.2.7")
    assert core.view().members[0].info.host == "192.0.2.7"


@pytest.mark.parametrize(
    "join",
    [
        Join(info=node(1, node="xyz")),
        Join(info=node(1, node="A" * 32)),
        Join(info=node(1, region="r" * 65)),
        Join(info=node(1, region="two\nlines")),
        Join(info=node(1, host="h" * 256)),
        Join(info=node(1, host="a host")),
        Join(info=node(1, host="line\n")),
        Join(info=node(1, port=-1)),
        Join(info=node(1, port=65536)),
        Join(info=node(1), version=-1),
        Join(info=node(1), version=1 << 60),
        Join(info=node(1), digest="12"),
    ],
)
def test_a_nodes_description_is_bounded(join: Join) -> None:
    core = make_core()
    with pytest.raises(FormatError) as caught:
        core.join(join, lease=fresh(), now=0)
    assert "\n" not in str(caught.value)
    assert core.revision == 0


def test_an_ended_lease_admits_another_member() -> None:
    core = make_core(max_members=1)
    core.join(Join(info=node(1)), lease=fresh(), now=0)
    with pytest.raises(HubError, match="full"):
        core.join(Join(info=node(2)), lease=fresh(), now=9)
    core.join(Join(info=node(2)), lease=fresh(), now=10)
    assert [m.info.node for m in core.view().members] == [node(2).node]


def test_the_status_shows_ages_and_no_inlined_manifests() -> None:
    core = make_core()
    lease = core.join(Join(info=node(1)), lease=fresh(), now=2).lease
    core.renew(Renew(lease=lease), now=5)
    announce(core, claim(core), manifest(0))
    status = core.status(now=6, started=1)
    assert (status.uptime, status.ages[0].joined, status.ages[0].heard) == (5, 4, 1)
    assert status.view.lineage[0].inline is None


# claims


def test_a_claim_is_visible_and_lets_announce() -> None:
    core = make_core()
    token = claim(core, epoch=3)
    assert (core.view().run, core.view().epoch, core.revision) == (RUN, 3, 1)
    assert announce(core, token, manifest(0, epoch=3)) == 2


@pytest.mark.parametrize(
    "fields", [{"epoch": 2, "claimant": 2}, {"run": LATER_RUN, "epoch": 0, "claimant": 2, "take_over": True}]
)
def test_a_later_claim_fences_the_earlier(fields: dict[str, object]) -> None:
    core = make_core()
    earlier = claim(core)
    later = claim(core, **fields)
    with pytest.raises(FencedError, match="stop publishing"):
        announce(core, earlier, manifest(0))
    announce(core, later)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epoch": 4}, "claim epoch 6 or above"),
        ({"epoch": 5, "claimant": 2}, "claim epoch 6 or above"),
        ({"run": "0" * 32, "epoch": 99}, "start with --supersede 000000000001"),
    ],
)
def test_an_outranked_claim_is_refused_with_a_remedy(fields: dict[str, object], message: str) -> None:
    core = make_core()
    token = claim(core, epoch=5)
    with pytest.raises(FencedError, match=message):
        claim(core, **fields)
    announce(core, token, manifest(0, epoch=5))


def test_the_same_node_may_claim_its_epoch_again_and_gets_the_only_token() -> None:
    core = make_core()
    earlier = claim(core)
    revision = core.revision
    again = claim(core)
    assert core.revision == revision
    announce(core, again)
    with pytest.raises(FencedError):
        announce(core, earlier)


def test_an_unknown_token_is_told_to_claim() -> None:
    core = make_core()
    for _ in range(2):
        with pytest.raises(LeaseError, match="claim the run again"):
            announce(core, "made up")
        claim(core)


def test_a_nonce_is_valid_once_within_its_ttl_and_only_if_issued() -> None:
    core = make_core(nonce_ttl=60)
    nonce = core.challenge(nonce=fresh(), now=0).nonce
    core.claim(signed_claim(nonce), token=fresh(), now=59)
    with pytest.raises(TrustError, match="nonce"):
        core.claim(signed_claim(nonce, epoch=2), token=fresh(), now=59)
    with pytest.raises(TrustError, match="nonce"):
        core.claim(signed_claim("made up"), token=fresh(), now=59)
    late = core.challenge(nonce=fresh(), now=100).nonce
    with pytest.raises(TrustError, match="nonce"):
        core.claim(signed_claim(late), token=fresh(), now=160)


def test_a_refused_claim_spends_its_nonce() -> None:
    core = make_core()
    nonce = core.challenge(nonce=fresh(), now=0).nonce
    with pytest.raises(TrustError, match="not trust"):
        core.claim(signed_claim(nonce, key=UNTRUSTED_KEY), token=fresh(), now=0)
    with pytest.raises(TrustError, match="nonce"):
        core.claim(signed_claim(nonce), token=fresh(), now=0)


def test_outstanding_nonces_are_bounded_and_the_newest_stay_valid() -> None:
    core = make_core(max_nonces=3)
    nonces = [core.challenge(nonce=fresh(), now=0).nonce for _ in range(10)]
    assert core._fence.outstanding == 3
    with pytest.raises(TrustError):
        core.claim(signed_claim(nonces[6]), token=fresh(), now=0)
    core.claim(signed_claim(nonces[7]), token=fresh(), now=0)


def test_a_forged_claim_changes_nothing() -> None:
    core = make_core()
    token = claim(core)
    nonce = core.challenge(nonce=fresh(), now=0).nonce
    forged = msgspec.structs.replace(signed_claim(nonce), epoch=9)
    with pytest.raises(TrustError, match="signature is wrong"):
        core.claim(forged, token=fresh(), now=0)
    announce(core, token)


@pytest.mark.parametrize(
    "fields",
    [{"node": "1"}, {"run": "z" * 32}, {"key": "ab"}, {"signature": ""}, {"epoch": -1}, {"epoch": 1 << 60}],
)
def test_a_malformed_claim_is_refused(fields: dict[str, object]) -> None:
    core = make_core()
    nonce = core.challenge(nonce=fresh(), now=0).nonce
    with pytest.raises(FormatError):
        core.claim(msgspec.structs.replace(signed_claim(nonce), **fields), token=fresh(), now=0)


# the lineage


def test_announcements_are_shown_in_order_with_small_manifests_inlined() -> None:
    core = make_core()
    token = claim(core)
    first, second = manifest(0), manifest(1, 0)
    announce(core, token, first)
    announce(core, token, second)
    view = core.view()
    assert [(a.base, a.version, a.epoch) for a in view.lineage] == [(None, 0, 1), (0, 1, 1)]
    assert [a.inline for a in view.lineage] == [first, second]
    assert view.head == 1
    assert core.manifest(view.lineage[0].id) == first
    assert view.lineage[1].base_digest == view.lineage[0].digest == "00" * 16


def test_only_small_and_only_the_newest_manifests_are_inlined() -> None:
    size = len(manifest(0))
    core = make_core(inline_bytes=size, inline_total=2 * size)
    announce(core, claim(core), manifest(0), manifest(1), manifest(2))
    assert [a.inline is not None for a in core.view().lineage] == [False, True, True]
    core = make_core(inline_bytes=size - 1)
    announce(core, claim(core), manifest(0))
    assert core.view().lineage[0].inline is None


def test_announcing_again_changes_nothing() -> None:
    core = make_core()
    token = claim(core)
    revision = announce(core, token, manifest(0), manifest(1, 0))
    assert announce(core, token, manifest(1, 0), manifest(0)) == revision
    assert announce(core, token, manifest(1, 0), manifest(1, 0)) == revision
    assert announce(core, token, retire=("ab" * 32,)) == revision


def test_retired_manifests_are_removed_and_may_be_announced_again() -> None:
    core = make_core()
    token = claim(core)
    announce(core, token, manifest(0), manifest(1, 0))
    gone = core.view().lineage[0].id
    revision = announce(core, token, retire=(gone,))
    assert core.manifest(gone) is None
    assert [a.version for a in core.view().lineage] == [1]
    assert announce(core, token, manifest(0)) == revision + 1


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (manifest(1, 0, created=5.0), BaseMismatchError),
        (manifest(1, None, branch=1), BaseMismatchError),
        (manifest(2, 1, branch=1), BaseMismatchError),
        (manifest(0, run=LATER_RUN), ReplayError),
        (manifest(2, epoch=2), UsageError),
        (manifest(2, key=UNTRUSTED_KEY), TrustError),
        (manifest(2)[:-1] + b"\0", TrustError),
        (b"garbage", FormatError),
    ],
)
def test_a_refused_manifest_leaves_the_lineage_as_it_was(other: bytes, kind: type[P2PSyncError]) -> None:
    core = make_core()
    token = claim(core)
    announce(core, token, manifest(0), manifest(1, 0))
    before = core.view()
    with pytest.raises(kind) as caught:
        announce(core, token, manifest(3), other, retire=(before.lineage[0].id,))
    assert type(caught.value) is kind and "\n" not in str(caught.value)
    assert core.view() == before


def test_a_higher_epoch_may_fork_and_its_head_counts() -> None:
    core = make_core()
    announce(core, claim(core), manifest(0), manifest(1, 0), manifest(2, 1))
    token = claim(core, epoch=2)
    announce(core, token, manifest(1, None, epoch=2, branch=1))
    assert core.view().head == 1
    assert len(core.view().lineage) == 4


def test_another_run_begins_another_lineage() -> None:
    core = make_core()
    announce(core, claim(core), manifest(0))
    claim(core, run=LATER_RUN)
    assert core.view().lineage == [] and core.view().head is None


def test_the_lineage_is_bounded_in_number_and_bytes() -> None:
    core = make_core(max_manifests=2)
    token = claim(core)
    announce(core, token, manifest(0), manifest(1))
    with pytest.raises(HubError, match="retire"):
        announce(core, token, manifest(2))
    with pytest.raises(HubError, match="fewer"):
        announce(core, token, manifest(2), manifest(3), manifest(4))
    announce(core, token, manifest(2), retire=(core.view().lineage[0].id,))
    tight = make_core(max_manifest_bytes=len(manifest(0)))
    token = claim(tight)
    announce(tight, token, manifest(0))
    with pytest.raises(HubError, match="retire"):
        announce(tight, token, manifest(1))


def test_ids_to_retire_must_be_ids() -> None:
    core = make_core()
    with pytest.raises(FormatError, match="64"):
        core.announce(Announce(token=claim(core), retire=["x"]), now=0.0)


def test_the_urgent_revision_follows_claims_and_announcements_but_not_members() -> None:
    core = make_core()
    core.join(Join(info=node(1)), lease=fresh(), now=0)
    assert (core.urgent_revision, core.revision) == (0, 1)
    token = claim(core)
    assert core.urgent_revision == 2
    announce(core, token, manifest(0))
    assert core.urgent_revision == core.revision == 3


def test_an_inconsistent_hub_config_is_refused() -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        HubConfig(trusted=frozenset({b"short"}))
    with pytest.raises(UsageError, match="above 0"):
        make_core(max_manifests=0)


def test_ids_are_hashes_of_bodies() -> None:
    assert len(set(ids(manifest(0), manifest(1)))) == 2
    assert KEY.public_key().public_bytes_raw().hex() not in ids(manifest(0))
