"""The trainer: GRPO on answers that vLLM actors give, one version after each step.

    p2psync keys new trainer.key                                        # prints the key that actors trust
    python train.py --model MODEL --key trainer.key --store run --actors 2

Work for a step is put into the ledger one step ahead, so actors generate while this process learns: it
learns from rollouts of the version before, unless --max-staleness 0 says otherwise. Where the lines of p2psync are, the
comments begin with "p2psync:".
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import fmean

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import msgspec
import torch
from learner import Group, Learner
from task import Sums
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging
from wire import Prompt, Rollout

from p2psync.cli.keys import read_key
from p2psync.observe.events import Published
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.ledger.core import LedgerResult
from p2psync.trainer.publisher import Publisher
from p2psync.trainer.rollouts import Rollouts

HEAD = "step  reward  version  behind    pause  delta of whole              tokens/s  seconds"


class TrainingLoop:
    """The training loop."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        logging.disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).to(args.device)
        self.task = Sums(AutoTokenizer.from_pretrained(args.model), args.seed, args.prompts, args.samples)
        self.learner = Learner(model, args.rate)
        # p2psync: the ledger of prompts and answers, and the trainer's node with the hub.
        self.rollouts = Rollouts(max_staleness=args.max_staleness)
        config = TrainerConfig(
            store=args.store, key=read_key(args.key), host=args.host, hub_port=args.hub_port, port=args.port
        )
        self.publisher = Publisher(
            model, config, files=args.model, masters=self.learner.masters, resident=True, rollouts=self.rollouts
        )

    def run(self) -> None:
        """All steps."""
        args = self.args
        with self.publisher as publisher:
            publisher.publish()  # p2psync: version 0, which actors that have the base model need not fetch
            print(f"the hub is at {publisher.hub_url}\n{HEAD}", flush=True)
            ahead = min(1, args.max_staleness)
            for step in range(min(ahead, args.steps)):
                self.put(step)
            for step in range(args.steps):
                began = time.monotonic()
                if step + ahead < args.steps:
                    self.put(step + ahead)  # p2psync: actors go on with it while this process learns
                done = self.collect(step)
                live = publisher.position.version
                groups = [self.group(one) for one in done]
                self.learner.step(groups)
                event = publisher.publish()  # p2psync: rounds the masters to bf16, and sends the changed bits
                self.rollouts.commit_step(step)
                self.tell(step, live, done, groups, event, time.monotonic() - began)
            publisher.wait_for_actors(args.actors, args.answer_timeout)
            print(
                f"{args.steps * args.prompts} prompts, each answered once; {args.actors} actors run version "
                f"{publisher.position.version}, digest {publisher.position.digest.hex()}",
                flush=True,
            )
            if args.save is not None:
                self.learner.model.save_pretrained(args.save)

    def put(self, step: int) -> None:
        """Offer a step's prompts."""
        prompts = self.task.prompts(step).items()
        self.rollouts.put(step, [(item, msgspec.msgpack.encode(prompt)) for item, prompt in prompts])

    def collect(self, step: int) -> list[LedgerResult]:
        """A step's answers, sorted by their ids."""
        wanted = sorted(self.task.prompts(step))
        done = self.rollouts.collect(step, len(wanted), self.args.answer_timeout)
        if [one.item.item for one in done] != wanted:
            raise SystemExit(f"step {step}: not every prompt was answered once")
        return done

    def group(self, done: LedgerResult) -> Group:
        """An answered prompt with its rewards."""
        rollout = msgspec.msgpack.decode(done.result, type=Rollout)
        rewards = [self.task.reward(done.item.item, sample.tokens) for sample in rollout.samples]
        return Group(msgspec.msgpack.decode(done.item.payload, type=Prompt).tokens, rollout.samples, rewards)

    def tell(
        self,
        step: int,
        live: int,
        done: list[LedgerResult],
        groups: list[Group],
        event: Published | None,
        seconds: float,
    ) -> None:
        """A line of the table."""
        rollouts = [msgspec.msgpack.decode(one.result, type=Rollout) for one in done]
        reward = fmean(reward for group in groups for reward in group.rewards)
        behind = fmean(live - one.version for one in done)
        pauses = {(one.actor, one.start): one.pause for one in rollouts if one.pause}
        pause = f"{1e3 * max(pauses.values()):6.1f} ms" if pauses else "        -"
        sent = "nothing changed"
        if event is not None:
            part = event.full_bytes / event.payload_bytes
            sent = f"{event.payload_bytes / 1e6:5.2f} of {event.full_bytes / 1e6:.0f} MB (1:{part:.0f})"
        rate = sum(one.tokens for one in done) / seconds
        made = live if event is None else event.version
        print(
            f"{step:4d}  {reward:6.3f}  {made:7d}  {behind:6.2f} {pause}  {sent:26s} {rate:9.1f}  {seconds:7.1f}",
            flush=True,
        )


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="directory of the base model, bf16 safetensors")
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--hub-port", type=int, default=7070)
    parser.add_argument("--port", type=int, default=7071)
    parser.add_argument("--actors", type=int, default=1, help="how many must run the last version before this ends")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=8, help="of a step")
    parser.add_argument("--samples", type=int, default=8, help="answers to a prompt")
    parser.add_argument("--rate", type=float, default=1e-5, help="AdamW's")
    parser.add_argument("--max-staleness", type=int, default=1)
    parser.add_argument("--answer-timeout", type=float, default=600.0, help="seconds that a step's answers may take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save", type=Path, help="write the last policy here")
    TrainingLoop(parser.parse_args()).run()


if __name__ == "__main__":
    main()
