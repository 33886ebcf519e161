"""The hand-off of a commit to the engine's own thread."""

from __future__ import annotations

import threading

from p2psync.engines.vllm.commit_handoff import CommitHandoff

#: Far above the time of a hand-off; a hang fails the test.
LONG = 60.0


def test_an_offer_right_after_the_last_one_is_taken() -> None:
    """The thread that ran the last offer may not have seen its end yet."""
    handoff = CommitHandoff()
    rounds, done = 300, []

    def take() -> None:
        for _ in range(rounds):
            handoff.wait(LONG)
            handoff.take()

    def offer() -> None:
        for version in range(rounds):
            handoff.offer(version, lambda: None)
            done.append(version)

    threads = [threading.Thread(target=target, daemon=True) for target in (take, offer)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert done == list(range(rounds))
