"""The demonstration's actor: rolls out the version it has committed, as long as there is work.

    python -m p2psync.rldemo.actor_process --join URL --trust KEY --store DIR --region eu

Ends when told so: SIGTERM, or the end of stdin.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import torch

from p2psync.actor.node import ActorConfig
from p2psync.actor.subscriber import Subscriber
from p2psync.errors import P2PSyncError
from p2psync.membership.work import WorkGrant
from p2psync.observe.events import Committed, Event
from p2psync.protocol.keys import parse_public
from p2psync.rldemo.lines import Answered, Final, Leased, peak_memory, tell, weights_sha256
from p2psync.rldemo.model import Policy
from p2psync.rldemo.rollout import RolloutTask, generator_for, roll_out

#: Seconds between tries while the hub is away.
PAUSE = 0.3


class Worker:
    """Leases work, answers it, hands it in."""

    def __init__(self, policy: Policy, subscriber: Subscriber) -> None:
        self.policy = policy
        self.subscriber = subscriber
        self.stop = threading.Event()

    def run(self) -> None:
        """Works until `stop` is set."""
        with self.subscriber.serving():
            pass  # the first version has come
        while not self.stop.is_set():
            try:
                grant = self.subscriber.lease_work(max_items=1, wait=1.0)
                if grant.items:
                    self._answer(grant)
            except P2PSyncError as error:
                print(f"actor: {error}", file=sys.stderr, flush=True)
                self.stop.wait(PAUSE)

    def _answer(self, grant: WorkGrant) -> None:
        tell(Leased(len(grant.items)))
        for leased in grant.items:
            item = msgspec.msgpack.decode(leased.payload, type=RolloutTask)
            begun = time.monotonic()
            with self.subscriber.serving() as position:
                result = roll_out(self.policy, item, generator_for(item), position.version)
            seconds = time.monotonic() - begun
            body = msgspec.msgpack.encode(result)
            tokens = sum(len(sample.tokens) for group in result.groups for sample in group.samples)
            verdict = self.subscriber.complete_work(grant.work, leased.item, body, position, tokens)
            tell(Answered(position.version, verdict, tokens, seconds))


def _pass_on(event: Event) -> None:
    if isinstance(event, Committed):
        tell(event)
    elif event.severity == "warning":
        print(f"actor: {event.line()}", file=sys.stderr, flush=True)


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--join", required=True)
    parser.add_argument("--trust", required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--region", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy = Policy()
    config = ActorConfig(
        hub_url=args.join,
        trusted=frozenset({parse_public(args.trust)}),
        store=args.store,
        host="127.0.0.1",
        region=args.region,
    )
    with Subscriber(policy, config, on_event=_pass_on) as subscriber:
        worker = Worker(policy, subscriber)
        signal.signal(signal.SIGTERM, lambda number, frame: worker.stop.set())
        threading.Thread(target=_await_parent, args=(worker.stop,), daemon=True).start()
        worker.run()
        with subscriber.serving() as position:
            tell(Final(position.version, weights_sha256(policy), peak_memory()))


def _await_parent(stop: threading.Event) -> None:
    """The parent holds stdin open; when it dies, however it dies, so do its actors."""
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    main()
