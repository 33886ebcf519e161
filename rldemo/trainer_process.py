"""The demonstration's trainer: GRPO on rollouts that come from the actors, one version after each batch.

    python -m p2psync.rldemo.trainer_process --store DIR --key FILE --versions 20

The work of a batch is put into the ledger one batch ahead of learning, so that actors generate while this process
learns; a result is at most one version old when it is admitted. Ends when told so (a line on stdin).
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from p2psync.cli.keys import read_key
from p2psync.errors import HubError
from p2psync.net.hub import HubService
from p2psync.observe.events import Event, Published
from p2psync.rldemo.config import DemoConfig
from p2psync.rldemo.grpo import Learner
from p2psync.rldemo.lines import Final, Learned, Ready, peak_memory, tell, weights_sha256
from p2psync.rldemo.model import load_warm_start
from p2psync.rldemo.rollout import RolloutResult, make_tasks, show
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.ledger.core import Ledger, LedgerConfig, LedgerResult
from p2psync.trainer.ledger.service import LedgerService, mount
from p2psync.trainer.publisher import Publisher


class TrainerLoop:
    """Puts work in, takes results out, learns, publishes."""

    def __init__(self, config: DemoConfig, args: argparse.Namespace) -> None:
        self.config = config
        self.policy = load_warm_start()
        self.learner = Learner(self.policy, config)
        self.ledger = Ledger(LedgerConfig())
        self.service: LedgerService | None = None
        trainer = TrainerConfig(
            store=args.store,
            key=read_key(args.key),
            host="127.0.0.1",
            hub_port=args.hub_port,
            port=0,
            region=args.region,
            ttl=args.ttl,
        )
        self.publisher = Publisher(self.policy, trainer, on_event=_pass_on, on_hub=self._mount)
        self._asked: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self) -> None:
        """All versions."""
        with self.publisher:
            # At once: actors load torch and join while the codec is compiled for the first version.
            tell(Ready(self.publisher.hub_url, self.publisher.node.config.key.public_key().public_bytes_raw().hex()))
            self._publish()
            self._put(1)
            for version in range(1, self.config.versions + 1):
                if version < self.config.versions:
                    self._put(version + 1)
                self._learn(version)
            self._asked.get()
            position = self.publisher.position
            assert position is not None
            tell(Final(position.version, weights_sha256(self.policy), peak_memory()))
            self._asked.get()

    def _listen(self) -> None:
        """The parent asks by lines; when it dies, however it dies, so does this process."""
        for line in sys.stdin:
            self._asked.put(line)
        os._exit(1)

    def _learn(self, version: int) -> None:
        results = self._collect(version)
        stats = self.learner.step([group for result in results for group in result.groups])
        counts = self.ledger.counts
        tell(
            Learned(
                version=version,
                reward=stats.reward,
                rollouts=stats.samples,
                oldest=min(result.version for result in results),
                re_leased=counts.re_leased,
                refused=sum(counts.refused.values()),
                sample=show(results[0], 1)[0],
            )
        )
        self._publish()
        assert self.service is not None
        self.publisher.wait(self.service.commit_step(version))

    def _publish(self) -> None:
        self.publisher.publish(announced=True)
        position = self.publisher.position
        assert position is not None
        service = self.service
        assert service is not None
        self.publisher.call(lambda: service.admit(position.version, position.digest.hex()))

    def _mount(self, hub: HubService) -> None:
        self.service = mount(hub.build_app(), hub, self.ledger)

    def _put(self, batch: int) -> None:
        service = self.service
        assert service is not None
        items = make_tasks(self.config, batch)
        payloads = [(f"{batch}/{item.item_id}", msgspec.msgpack.encode(item)) for item in items]
        self.publisher.wait(service.put(batch - 1, payloads))

    def _collect(self, batch: int) -> list[RolloutResult]:
        """All results of a batch; those of the next one that come early wait in the ledger."""
        wanted = self.config.prompts_per_version // self.config.prompts_per_item
        results: list[RolloutResult] = []
        while len(results) < wanted:
            taken = self._take(batch - 1)
            results += [msgspec.msgpack.decode(done.result, type=RolloutResult) for done in taken]
        # In the order of their items, so that the same rollouts give the same step whoever answered first.
        return sorted(results, key=lambda result: result.item_id)

    def _take(self, version: int) -> list[LedgerResult]:
        assert self.service is not None
        taken = self.publisher.wait(self.service.take(64, version, wait=600))
        if not taken:
            raise HubError("no rollouts came for ten minutes")
        return taken


def _pass_on(event: Event) -> None:
    if isinstance(event, Published):
        tell(event)
    elif event.severity == "warning":
        print(f"trainer: {event.line()}", file=sys.stderr, flush=True)


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--versions", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--region", default="")
    parser.add_argument("--hub-port", type=int, default=0)
    parser.add_argument("--ttl", type=float, default=3.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    TrainerLoop(replace(DemoConfig(), versions=args.versions, seed=args.seed), args).run()


if __name__ == "__main__":
    main()
