"""TRL's GRPOTrainer with rollouts by vLLM servers over p2psync.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "p2psync"}' \\
        --logprobs-mode processed_logprobs                           # on each actor's machine
    p2psync keys new trainer.key
    python examples/trl_grpo.py --model MODEL --key trainer.key --store run --servers http://ACTOR:8000 …

What a user adds to a program with TRL is the class `P2PSyncClient`, and the line that puts it in the place of TRL's
own client, which sends whole tensors over NCCL. TRL's loop goes step by step: it waits for the version it just made.
Written for TRL 1.16.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

from p2psync.trainer.vllm_engine import P2PSyncTrainerEngine, P2PSyncTrainerInitInfo


class Given(WeightSource):
    """The tensors that TRL gathered (through PEFT, FSDP or DeepSpeed), rounded to the dtypes that the servers run."""

    def __init__(self) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []

    def metadata(self) -> list[ParamMeta]:
        """See `WeightSource`."""
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.tensors]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.tensors)


class AllServers:
    """The clients of all servers, behind the interface of one."""

    def __init__(self, urls: list[str]) -> None:
        self._clients = [HTTPVLLMWeightSyncClient(url) for url in urls]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """See vLLM's `VLLMWeightSyncClient`."""
        for client in self._clients:
            client.init_weight_transfer_engine(init_info)


class P2PSyncClient(VLLMClient):
    """TRL's client; prompts go to all servers, weights to the swarm."""

    def __init__(self, info: P2PSyncTrainerInitInfo, **options: Any) -> None:
        super().__init__(**options)
        self._info, self._source = info, Given()
        self._sides = [VLLMClient(base_url=url, connection_timeout=600) for url in info.servers]

    def init_communicator(self, device: object = 0) -> None:
        """Start the trainer's node."""
        servers: Any = AllServers(self._info.servers)
        self.communicator = P2PSyncTrainerEngine.trainer_init(self._info, client=servers, source=self._source)

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Publish, and wait until all servers run it."""
        self._source.tensors = [(name, tensor.detach().to(torch.bfloat16)) for name, tensor in named_params]
        published = self.communicator.send_weights()
        print(published.line() if published is not None else "nothing changed", flush=True)

    def reset_prefix_cache(self) -> None:
        """The commit did."""

    def close_communicator(self) -> None:
        """Leave the swarm."""
        if self.communicator is not None:
            self.communicator.shutdown()
            self.communicator = None

    def generate(self, prompts: list[Any], features: list[dict[str, Any] | None] | None = None, **options: Any) -> Any:
        """Generates answers: each server takes a part of the prompts."""
        count = min(len(self._sides), len(prompts))
        cuts = [len(prompts) * number // count for number in range(count + 1)]
        parts = [slice(begin, end) for begin, end in pairwise(cuts)]
        with ThreadPoolExecutor(count) as pool:
            answers = [
                pool.submit(side.generate, prompts[part], features and features[part], **options)
                for side, part in zip(self._sides, parts, strict=False)
            ]
            found = [answer.result() for answer in answers]
        return {key: [row for one in found for row in one[key]] for key in found[0]}


def sums(count: int) -> Dataset:
    """The task: sums of two digits."""
    dice = random.Random(1)
    pairs = [(dice.randint(1, 9), dice.randint(1, 9)) for _ in range(count)]
    shown = "2 + 3 = 5\n4 + 7 = 11\n6 + 2 = 8\n9 + 8 = 17\n"
    return Dataset.from_list([{"prompt": f"{shown}{a} + {b} =", "total": a + b} for a, b in pairs])


def reward(completions: list[str], total: list[int], **_: Any) -> list[float]:
    """1 for just the sum; a little for numbers, so that any policy has something to learn."""
    return [
        1.0 if text == f" {right}\n" else 0.1 * sum(c.isdigit() for c in text) / max(1, len(text))
        for text, right in zip(completions, total, strict=True)
    ]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="directory of the base model, bf16 safetensors")
    parser.add_argument("--servers", nargs="+", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--hub-port", type=int, default=7070)
    parser.add_argument("--port", type=int, default=7071)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--save", type=Path, help="write the last policy here, in bf16")
    args = parser.parse_args()
    info = P2PSyncTrainerInitInfo(
        rank=0,
        store=args.store,
        key=args.key,
        host=args.host,
        hub_port=args.hub_port,
        port=args.port,
        files=str(args.model),
        servers=args.servers,
        engines=len(args.servers),
    )
    vllm_generation.VLLMClient = partial(P2PSyncClient, info)  # p2psync needs this line, and the class
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=sums(64),
        args=GRPOConfig(
            output_dir=args.store,
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=args.servers[0],
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=4,
            generation_kwargs={"stop_token_ids": tokenizer("\n")["input_ids"][-1:]},
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            max_steps=args.steps,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    client = trainer.vllm_generation.vllm_client
    try:
        trainer.train()
        trainer.vllm_generation.sync_weights()  # what the last step made
        if args.save is not None:
            trainer.model.to(torch.bfloat16).save_pretrained(args.save)
    finally:
        client.close_communicator()


if __name__ == "__main__":
    main()
