"""What a node asks of whom: rarest first, windows, endgame, late requests, peers that come, go and lie."""

from __future__ import annotations

from dataclasses import replace

import pytest
from swarm_parts import CHUNK, CONFIG, Bench, flags

from p2psync.protocol.messages import Cancel, Chunk, DontHave, Have, Reject, Request
from p2psync.swarm.asking import MATES_AFTER
from p2psync.swarm.core import Ban, Complete, Save


def asked(bench: Bench) -> dict[str, list[int]]:
    """The chunks asked of each peer since the last look."""
    found: dict[str, list[int]] = {}
    for name, request in bench.sent(Request):
        found.setdefault(name, []).extend(request.chunks)
    return found


def test_nothing_is_asked_of_a_peer_that_does_not_hold_it() -> None:
    bench = Bench()
    bench.fetch_all()
    bench.peer("a", 1, 3)
    bench.peer("b")
    found = asked(bench)
    assert sorted(found["a"]) == [1, 3]
    assert "b" not in found


def test_nothing_is_asked_that_is_held_or_not_wanted() -> None:
    bench = Bench()
    bench.swarm.begin(bench.id, bench.manifest, flags(8, 0, 1), flags(8, 0, 1, 2, 3), 0.0)
    bench.peer("a", *range(8))
    assert sorted(asked(bench)["a"]) == [2, 3]


def test_the_rarest_chunks_are_asked_for_first() -> None:
    bench = Bench(config=replace(CONFIG, window_least=2 * CHUNK, window_most=2 * CHUNK))
    for name in "bcd":
        bench.peer(name, *range(6))
    bench.peer("a", *range(8))
    for name in "bcd":
        bench.swarm.receive(name, DontHave(b"x" * 8), 0.0)
    bench.swarm._peers["a"].rate = 1.0  # so that a is asked first
    bench.fetch_all()
    assert sorted(asked(bench)["a"]) == [6, 7]


def test_ties_are_broken_differently_at_different_nodes_and_equally_with_equal_generators() -> None:
    def order(seed: int) -> list[int]:
        bench = Bench(16, seed=seed)
        bench.fetch_all()
        bench.peer("a", *range(16))
        return asked(bench)["a"]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) == 8


def test_near_peers_are_asked_first() -> None:
    bench = Bench()
    bench.peer("far", *range(8))
    bench.peer("near", *range(8), near=True)
    bench.fetch_all()
    found = asked(bench)
    assert sorted(found["near"]) == list(range(8))


def test_no_more_is_asked_of_a_peer_than_its_window() -> None:
    bench = Bench(40)
    bench.fetch_all()
    bench.peer("a", *range(40))
    assert len(asked(bench)["a"]) == CONFIG.window_least // CHUNK


def test_a_chunk_that_comes_makes_room_for_another() -> None:
    bench = Bench(40)
    bench.fetch_all()
    bench.peer("a", *range(40))
    first = asked(bench)["a"]
    bench.chunk("a", first[0], 0.5)
    assert len(asked(bench)["a"]) >= 1


def test_a_fast_peer_gets_a_wider_window_up_to_the_limit() -> None:
    bench = Bench(400)
    bench.fetch_all()
    bench.peer("a", *range(400))
    out = asked(bench)["a"]
    now = 0.0
    while out and now < 0.02:
        now += 0.0001
        bench.chunk("a", out.pop(0), now)
        out += asked(bench).get("a", [])
    assert len(out) == CONFIG.window_most // CHUNK


def test_every_chunk_is_saved_once_and_completion_is_told() -> None:
    bench = Bench(3)
    bench.fetch_all()
    bench.peer("a", 0, 1, 2)
    for index in range(3):
        bench.chunk("a", index, 1.0)
    actions = bench.actions()
    assert [a.index for a in actions if isinstance(a, Save)] == [0, 1, 2]
    assert [a.id for a in actions if isinstance(a, Complete)] == [bench.id]
    assert bench.swarm.progress(bench.id) == (3, 3)


def test_beginning_with_everything_held_completes_at_once() -> None:
    bench = Bench(3)
    bench.seed_all()
    assert bench.done(Complete) == [Complete(bench.id)]


#: By then a first request is overdue, and not yet late (seconds).
OVERDUE = 1.0


# ---- endgame -------------------------------------------------------------------------------------------------------


def test_at_the_end_a_chunk_is_asked_of_a_second_peer_and_the_slower_one_is_cancelled() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    assert sorted(asked(bench)["a"]) == [0, 1]
    bench.peer("b", 0, 1, now=1.0)
    assert sorted(asked(bench)["b"]) == [0, 1]
    bench.peer("c", 0, 1, now=1.0)
    assert asked(bench) == {}
    bench.chunk("b", 0, 2.0)
    assert bench.sent(Cancel) == [("a", Cancel(bench.short, [0]))]


def test_there_is_no_endgame_while_something_nobody_was_asked_for_is_missing() -> None:
    bench = Bench(3)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.actions()
    bench.peer("b", 0, 1)
    assert asked(bench) == {}


def test_the_endgame_waits_until_the_first_one_asked_is_overdue() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    assert asked(bench) == {"a": [0]}
    wake = bench.swarm.next_wake()
    assert CONFIG.endgame_after <= wake < OVERDUE < CONFIG.late_after
    bench.swarm.poll(wake - 0.01)
    assert asked(bench) == {}
    bench.swarm.poll(wake)
    assert asked(bench) == {"b": [0]}


def test_a_second_copy_counts_as_waste_and_is_not_saved_again() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    bench.chunk("a", 0, 1.0)
    bench.actions()
    bench.chunk("b", 0, 1.1)
    assert bench.done(Save) == []
    assert (bench.swarm.received_bytes, bench.swarm.wasted_bytes) == (2 * CHUNK, CHUNK)


# ---- late ----------------------------------------------------------------------------------------------------------


def test_a_late_request_is_cancelled_and_given_to_another_peer() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.actions()
    wake = bench.swarm.next_wake()
    assert wake == pytest.approx(CONFIG.late_after)
    bench.peer("b", 0, now=1.0)
    bench.swarm.poll(1.0)
    bench.actions()
    bench.swarm.poll(CONFIG.late_after)
    actions = bench.actions()
    messages = [(a.peer, a.message) for a in actions if hasattr(a, "message")]
    assert ("a", Cancel(bench.short, [0])) in messages
    assert next(p for p in bench.swarm.peers if p.name == "a").snubbed


def test_a_snubbed_peer_has_a_window_of_one_chunk_and_more_time_until_it_delivers() -> None:
    bench = Bench(8)
    bench.fetch_all()
    bench.peer("a", *range(8))
    assert len(asked(bench)["a"]) == 8
    bench.swarm.poll(CONFIG.late_after)
    (again,) = asked(bench)["a"]
    assert bench.swarm.next_wake() == pytest.approx(3 * CONFIG.late_after)
    bench.chunk("a", again, CONFIG.late_after + 1)
    assert len(asked(bench)["a"]) > 1


def test_a_late_chunk_that_comes_after_all_is_kept_and_its_second_request_cancelled() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.actions()
    bench.swarm.poll(CONFIG.late_after)
    (again,) = asked(bench)["a"]
    bench.chunk("a", again, CONFIG.late_after + 1)
    actions = bench.actions()
    assert any(isinstance(a, Save) and a.index == again for a in actions)
    assert [a.message for a in actions if isinstance(getattr(a, "message", None), Cancel)] == [
        Cancel(bench.short, [again])
    ]


def test_polling_early_finds_nothing_and_sets_no_alarm_in_the_past() -> None:
    bench = Bench(4)
    bench.fetch_all()
    bench.peer("a", *range(4))
    for index in range(4):
        bench.chunk("a", index, 1.0)
    bench.actions()
    bench.swarm.poll(CONFIG.late_after)
    wake = bench.swarm.next_wake()
    assert wake > CONFIG.late_after


# ---- peers come and go ---------------------------------------------------------------------------------------------


def test_what_a_vanished_peer_was_asked_for_is_asked_of_another() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.peer("b", 0)
    bench.peer("c", 0, 1)
    bench.actions()
    bench.swarm.peer_down("a", 1.0)
    bench.swarm.peer_down("b", 1.0)
    total = asked(bench).get("c", [])
    assert sorted({*total, *bench.swarm._transfers[bench.short].asked}) == [0, 1]


def test_one_more_connection_to_a_peer_changes_nothing_but_tells_again_what_is_held() -> None:
    bench = Bench(4)
    bench.swarm.begin(bench.id, bench.manifest, flags(4, 0), flags(4, 1, 2, 3), 0.0)
    bench.peer("a", *range(4))
    bench.actions()
    before = next(iter(bench.swarm.peers))
    asked_bytes = before.asked_bytes
    assert bench.swarm.peer_up("a", False, 1.0)
    (peer,) = bench.swarm.peers
    assert peer is before and peer.asked_bytes == asked_bytes > 0
    assert [type(a.message).__name__ for a in bench.actions() if hasattr(a, "message")] == ["Bitfield"]
    assert list(bench.swarm._transfers[bench.short].rarity) == [1, 1, 1, 1]


def test_a_peer_that_says_gone_is_not_asked_any_more() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.actions()
    bench.say("a", DontHave(bench.short), 1.0)
    bench.peer("b", 0, 1, now=1.0)
    assert sorted(asked(bench)["b"]) == [0, 1]
    assert next(p for p in bench.swarm.peers if p.name == "a").asked_bytes == 0


def test_a_rejected_chunk_is_asked_of_another_peer_and_not_of_this_one_again() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.actions()
    bench.say("a", Reject(bench.short, [0, 7]), 1.0)
    assert asked(bench) == {}
    bench.peer("b", 0, now=1.0)
    assert asked(bench) == {"b": [0]}


def test_ending_a_manifest_cancels_every_request_and_tells_everyone() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.peer("b", 0)
    bench.swarm.poll(OVERDUE)
    bench.actions()
    bench.swarm.end(bench.id)
    sent = [(a.peer, type(a.message).__name__) for a in bench.actions() if hasattr(a, "message")]
    assert sorted(sent) == [("a", "Cancel"), ("a", "DontHave"), ("b", "Cancel"), ("b", "DontHave")]
    assert all(peer.asked_bytes == 0 for peer in bench.swarm.peers)
    bench.swarm.poll(CONFIG.late_after)
    assert bench.swarm.next_wake() == float("inf")
    bench.chunk("a", 0, 1.0)
    assert bench.done(Save) == []


def test_a_manifest_that_is_begun_again_knows_who_holds_it() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("a", 0, 1)
    bench.swarm.end(bench.id)
    bench.actions()
    bench.fetch_all(1.0)
    assert sorted(asked(bench)["a"]) == [0, 1]


def test_beginning_again_takes_the_stores_word_on_what_is_held() -> None:
    bench = Bench(3)
    bench.peer("a", 0, 1, 2)
    bench.seed_all()
    bench.actions()
    bench.swarm.begin(bench.id, bench.manifest, flags(3, 0), flags(3, 1, 2), 1.0)
    assert sorted(asked(bench)["a"]) == [1, 2]
    assert bench.swarm.progress(bench.id) == (1, 3)


def test_a_lost_chunk_is_fetched_again_at_once_then_after_growing_pauses() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("a", 0)
    bench.chunk("a", 0, 0.0)
    bench.actions()
    bench.swarm.lost(bench.id, 0, 0.0)
    assert asked(bench) == {"a": [0]}
    pauses = []
    now = 0.0
    for _ in range(4):
        bench.chunk("a", 0, now)
        bench.swarm.poll(now + 0.02)
        bench.actions()
        began = now
        bench.swarm.lost(bench.id, 0, now)
        while not (found := asked(bench)):
            wake = bench.swarm.next_wake()
            assert now < wake < float("inf")
            now = wake
            bench.swarm.poll(now)
        assert found == {"a": [0]}
        pauses.append(now - began)
    assert pauses == sorted(pauses) and pauses[-1] > 2 * pauses[0] > 0


# ---- trust ---------------------------------------------------------------------------------------------------------


def test_the_liar_alone_is_banned_and_its_chunks_are_asked_of_others() -> None:
    bench = Bench(2)
    bench.fetch_all()
    bench.peer("honest", 0, 1)
    bench.actions()
    bench.peer("liar", 0, 1)
    bench.actions()
    bench.chunk("liar", 0, 1.0, data=b"\1" * CHUNK)
    (ban,) = bench.done(Ban)
    assert ban.peer == "liar" and ban.until == 1.0 + CONFIG.first_ban
    assert [peer.name for peer in bench.swarm.peers] == ["honest"]
    assert bench.swarm.banned("liar", 2.0) and not bench.swarm.banned("honest", 2.0)
    assert not bench.swarm.peer_up("liar", False, 2.0)
    assert bench.swarm.peer_up("liar", False, 1.0 + CONFIG.first_ban)


def test_a_chunk_of_the_wrong_size_is_a_lie() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.peer("liar", 0)
    bench.chunk("liar", 0, 1.0, data=b"")
    assert [ban.peer for ban in bench.done(Ban)] == ["liar"]


def test_a_wrong_chunk_that_nobody_waits_for_is_only_waste() -> None:
    bench = Bench(1)
    bench.seed_all()
    bench.peer("a")
    bench.chunk("a", 0, 1.0, data=b"\1" * CHUNK)
    assert bench.done(Ban) == []
    assert bench.swarm.wasted_bytes == CHUNK


def test_a_peer_that_floods_is_banned_once_it_has_sent_two_windows_for_nothing() -> None:
    bench = Bench(1)
    bench.seed_all()
    bench.peer("flooder")
    bench.actions()
    for _ in range(CONFIG.surplus_most // CHUNK):
        bench.chunk("flooder", 0, 1.0)
    assert bench.done(Ban) == []
    bench.chunk("flooder", 0, 1.0)
    assert [ban.peer for ban in bench.done(Ban)] == ["flooder"]


def test_what_was_asked_for_and_cancelled_does_not_count_as_a_flood() -> None:
    bench = Bench(600)
    bench.fetch_all()
    bench.peer("slow", *range(600))
    requested = asked(bench)["slow"]
    bench.peer("fast", *range(600))
    for index in range(600):
        bench.chunk("fast", index, 1.0)
    for index in requested:
        bench.chunk("slow", index, 2.0)
    assert bench.done(Ban) == []
    assert next(p for p in bench.swarm.peers if p.name == "slow").surplus == 0


def test_a_flooder_that_comes_back_finds_its_account_as_it_was() -> None:
    bench = Bench(1)
    bench.seed_all()
    for visit in range(3):
        bench.peer("flooder", now=float(visit))
        for _ in range(CONFIG.window_most // CHUNK):
            bench.chunk("flooder", 0, float(visit))
        if visit < 2:
            assert bench.done(Ban) == []
            bench.swarm.peer_down("flooder", float(visit))
    assert [ban.peer for ban in bench.done(Ban)] == ["flooder"]


def test_useful_chunks_make_up_for_useless_ones() -> None:
    bench = Bench(200)
    bench.fetch_all()
    bench.peer("a", 0)
    (peer,) = bench.swarm.peers
    peer.surplus = 5 * CHUNK
    bench.chunk("a", 0, 1.0)
    assert peer.surplus == 4 * CHUNK


def test_a_boast_beyond_the_manifests_chunks_is_ignored() -> None:
    bench = Bench(3)
    bench.fetch_all()
    bench.peer("a")
    bench.say("a", Have(bench.short, [0, 2, 3, 1 << 19]), 0.0)
    assert sorted(asked(bench)["a"]) == [0, 2]


def test_chunks_of_unknown_manifests_and_of_strangers_are_ignored() -> None:
    bench = Bench(1)
    bench.fetch_all()
    bench.chunk("stranger", 0, 0.0)
    assert bench.actions() == [] and bench.swarm.received_bytes == 0
    bench.peer("a")
    bench.say("a", Chunk(b"unknown!", 0, b"x"), 0.0)
    bench.say("a", Chunk(bench.short, 99, b"x"), 0.0)
    assert bench.done(Save) == []


# ---- words that come early -----------------------------------------------------------------------------------------


def test_what_peers_say_of_a_manifest_before_it_is_known_is_remembered() -> None:
    bench = Bench(9)
    bench.peer("a", 0, 8)
    bench.peer("b")
    bench.say("b", Have(bench.short, [5]), 0.0)
    bench.say("b", Have(bench.short, [8]), 0.0)
    bench.fetch_all()
    found = asked(bench)
    assert 5 in found["b"] and 0 in found["a"]


def test_the_oldest_manifest_of_a_long_lineage_is_still_known_of() -> None:
    bench = Bench(2)
    bench.peer("a", 0, 1)
    for i in range(1000):
        bench.say("a", Have(i.to_bytes(8, "big"), [0, 30]), 0.0)
    bench.fetch_all()
    assert sorted(asked(bench)["a"]) == [0, 1]


def test_early_words_of_one_peer_are_bounded() -> None:
    bench = Bench(1)
    bench.peer("a")
    (peer,) = bench.swarm.peers
    for i in range(200):
        bench.say("a", Have(i.to_bytes(8, "big"), [(1 << 20) - 1]), 0.0)
    assert len(peer.early) <= 8
    assert sum(len(bitmap) for bitmap in peer.early._bitmaps.values()) <= 1 << 20


def test_a_manifest_that_is_gone_before_it_was_known_is_forgotten() -> None:
    bench = Bench(1)
    bench.peer("a", 0)
    bench.say("a", DontHave(bench.short), 0.0)
    bench.fetch_all()
    assert asked(bench) == {}


def test_a_manifest_that_is_forgone_is_no_longer_asked_for_and_still_offered() -> None:
    bench = Bench()
    bench.fetch_all()
    bench.peer("a", *range(8))
    asked = [index for _, request in bench.sent(Request) for index in request.chunks]
    bench.chunk("a", asked[0])
    bench.swarm.forgo(bench.id)
    assert sorted(i for _, cancel in bench.sent(Cancel) for i in cancel.chunks)
    bench.peer("b", *range(8), now=1.0)
    bench.swarm.poll(60.0)
    assert not bench.sent(Request)
    assert bench.swarm.progress(bench.id) == (1, 8)
    bench.fetch_all(60.0)
    assert bench.sent(Request), "and may be wanted again"


def _in_region(me: str, mates: str, chunks: int = 16) -> Bench:
    """A node whose mates fetch, too, and a peer far away who holds everything."""
    bench = Bench(chunks, node=me)
    bench.fetch_all()
    for mate in mates:
        bench.peer(mate, near=True)
        bench.have(mate)
    bench.peer("far")
    return bench


def _from_mate(bench: Bench, index: int, now: float) -> None:
    """The mate has got a chunk, and it comes from there."""
    bench.say("b", Have(bench.short, [index]), now)
    bench.chunk("b", index, now)


def test_nodes_of_a_region_ask_far_peers_for_a_part_each() -> None:
    parts = []
    for me, mates in (("a", "bc"), ("b", "ac"), ("c", "ab")):
        bench = _in_region(me, mates)
        bench.have("far", *range(16))
        parts.append(set(asked(bench)["far"]))
    assert sorted(index for part in parts for index in part) == list(range(16))
    assert all(4 <= len(part) <= 7 for part in parts)


def test_what_a_mate_got_is_asked_of_the_mate() -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    theirs = next(index for index in range(16) if index not in mine)
    bench.say("b", Have(bench.short, [theirs]), 0.1)
    assert asked(bench) == {"b": [theirs]}


@pytest.mark.parametrize("gets_on", [True, False])
def test_while_its_own_part_gets_on_only_that_of_a_mate_that_does_not_is_taken_from(gets_on: bool) -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    theirs = [index for index in range(16) if index not in mine]
    found: list[int] = []
    for round, (my_next, their_next) in enumerate(zip(mine[:3], theirs, strict=False), start=1):
        now = 0.7 * MATES_AFTER * round
        if gets_on:
            _from_mate(bench, their_next, now)
        bench.chunk("far", my_next, now)
        bench.swarm.poll(now)
        found += asked(bench).get("far", [])
    assert bool(found) is not gets_on
    assert set(found) <= set(theirs)


def test_what_a_mate_does_not_fetch_is_asked_of_far_peers_after_all_though_nobody_says_a_word() -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    for index in mine:
        bench.chunk("far", index, 0.1)
    now, found = 0.1, []
    while not found:
        due = bench.swarm.next_wake()
        assert due < float("inf"), "it sleeps, and the mate does, too"
        assert due > now, "it wakes again and again at the same time"
        now = due
        bench.swarm.poll(now)
        found = asked(bench).get("far", [])
    assert now <= 0.1 + MATES_AFTER + 1e-9
    assert not set(found) & set(mine)


def test_what_is_late_of_its_own_part_is_asked_of_a_second_far_peer_though_mates_still_lack_theirs() -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    theirs = [index for index in range(16) if index not in mine]
    bench.peer("other", *range(16))
    again: list[int] = []
    now = 0.0
    while not again:
        now += MATES_AFTER / 2
        bench.chunk("far", mine.pop(0), now)
        _from_mate(bench, theirs.pop(0), now)
        bench.swarm.poll(now)
        again = asked(bench).get("other", [])
    assert set(again) <= set(mine)
    assert now >= MATES_AFTER, "that soon would be for those who have no mates"
    assert theirs, "it waited until nothing was open any more"


def test_who_has_its_own_part_helps_a_mate_that_is_slow() -> None:
    bench = _in_region("a", "b")
    bench.have("far", *range(16))
    mine = asked(bench)["far"]
    for index in mine:
        bench.chunk("far", index, 0.1)
    found: dict[str, list[int]] = {}
    now, theirs = 0.1, [index for index in range(16) if index not in mine]
    while "far" not in found:
        now += MATES_AFTER / 3
        _from_mate(bench, theirs.pop(0), now)
        bench.swarm.poll(now)
        found = asked(bench)
    assert MATES_AFTER <= now - 0.1 <= 1.5 * MATES_AFTER


def test_what_is_overdue_is_asked_of_a_peer_as_soon_as_it_has_got_it() -> None:
    bench = Bench()
    bench.fetch_all()
    bench.peer("slow", *range(8))
    bench.peer("b")
    bench.actions()
    bench.swarm.poll(1.0)
    bench.say("b", Have(bench.short, [3]), 1.0)
    assert asked(bench) == {"b": [3]}
