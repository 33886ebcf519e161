"""The task: additions of two-digit numbers, one character a token, with room for written work, checked exactly.

A prompt is "47+38=", always six characters, so a batch needs no padding on its left. A completion is the sum and the
end token, "85", or the same after some work in brackets, "(15)85", the work being the sum of the unit digits. The
reward looks at the final answer only: whether to work things out first is for the policy to find.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ALPHABET = "\x00\n0123456789+=()"
PAD = 0
EOS = 1
VOCAB_SIZE = 32  # room to spare, so that other symbolic tasks can be put in without a new shape
PROMPT_LEN = 6
MAX_COMPLETION_LEN = 8  # work in brackets (4), up to three digits (99+99=198), the end token

_INDEX = {char: token for token, char in enumerate(ALPHABET)}


def encode(text: str) -> list[int]:
    """Token ids of a text; a character outside the alphabet is a KeyError."""
    return [_INDEX[char] for char in text]


def decode(tokens: Sequence[int]) -> str:
    """The text of token ids, up to and without the end token; ids without a character show as '?'."""
    chars: list[str] = []
    for token in tokens:
        if token == EOS:
            break
        if token != PAD:
            chars.append(ALPHABET[token] if 0 <= token < len(ALPHABET) else "?")
    return "".join(chars)


def sample_prompts(rng: np.random.Generator, n: int) -> list[str]:
    """n prompts, uniform over the sums of two numbers of 10 to 99."""
    return [f"{a}+{b}=" for a, b in rng.integers(10, 100, size=(n, 2)).tolist()]


def operands(prompt: str) -> tuple[int, int]:
    """The two numbers of a prompt."""
    return int(prompt[:2]), int(prompt[3:5])


def answer(prompt: str) -> str:
    """The right sum."""
    return str(sum(operands(prompt)))


def work(prompt: str) -> str:
    """The written work that helps: the sum of the unit digits, two characters wide, in brackets."""
    a, b = operands(prompt)
    return f"({a % 10 + b % 10:02d})"


def final_answer(text: str) -> str:
    """Returns a completion's answer: the text after the first closing bracket if it opens with one, else all of it."""
    return text.partition(")")[2] if text.startswith("(") else text


def reward(prompt: str, completion: Sequence[int]) -> float:
    """1.0 if the completion ends, and its final answer is exactly the sum, digit for digit; else 0.0."""
    return float(EOS in completion and final_answer(decode(completion)) == answer(prompt))
