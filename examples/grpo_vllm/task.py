"""The verifiable task: sums of two digits, after four examples. The reward is 1 for just the sum and a newline."""

from __future__ import annotations

import random

from transformers import PreTrainedTokenizerBase
from wire import Prompt

EXAMPLES = "2 + 3 = 5\n4 + 7 = 11\n6 + 2 = 8\n9 + 8 = 17\n"
MAX_TOKENS = 4


class Sums:
    """Prompts and rewards. The same seed and step give the same prompts, in whatever process."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, prompts: int, samples: int) -> None:
        """prompts: of a step; samples: answers to each."""
        self._tokenizer = tokenizer
        self._seed, self._prompts, self._samples = seed, prompts, samples
        self._stop = [tokenizer("\n")["input_ids"][-1]]
        if tokenizer.eos_token_id is not None:
            self._stop.append(tokenizer.eos_token_id)

    def prompts(self, step: int) -> dict[str, Prompt]:
        """The work of a step by its id, which is unique in the run."""
        made = {}
        for number, (left, right) in enumerate(self._sums(step)):
            tokens = self._tokenizer(f"{EXAMPLES}{left} + {right} =")["input_ids"]
            made[f"{step}/{number:04d}"] = Prompt(tokens, self._samples, MAX_TOKENS, self._stop)
        return made

    def reward(self, item: str, tokens: list[int]) -> float:
        """Returns the reward of an answer to the prompt with this id: 1 for the right sum, else 0."""
        step, number = item.split("/")
        left, right = self._sums(int(step))[int(number)]
        return float(self._tokenizer.decode(tokens) == f" {left + right}\n")

    def _sums(self, step: int) -> list[tuple[int, int]]:
        dice = random.Random(f"{self._seed}/{step}")
        return [(dice.randint(1, 9), dice.randint(1, 9)) for _ in range(self._prompts)]
