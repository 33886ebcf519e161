"""The task: coding of text, prompts, and the reward on hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest

from p2psync.rldemo.task import (
    ALPHABET,
    EOS,
    MAX_COMPLETION_LEN,
    PAD,
    PROMPT_LEN,
    VOCAB_SIZE,
    answer,
    decode,
    encode,
    reward,
    sample_prompts,
    work,
)
from p2psync.rldemo.warmstart import SLOPPY, make_batch, slip


def test_alphabet_fits() -> None:
    assert len(set(ALPHABET)) == len(ALPHABET) <= VOCAB_SIZE
    assert ALPHABET[PAD] == "\x00" and ALPHABET[EOS] == "\n"


def test_decode_undoes_encode_and_stops_at_the_end() -> None:
    assert decode(encode("47+38=(15)85")) == "47+38=(15)85"
    assert decode([*encode("85"), EOS, *encode("12")]) == "85"
    assert decode([31]) == "?"
    with pytest.raises(KeyError):
        encode("x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("85\n", 1.0),
        ("(15)85\n", 1.0),
        ("(99)85\n", 1.0),  # work is the policy's own affair
        ("()85\n", 1.0),
        ("85", 0.0),  # not ended
        ("84\n", 0.0),
        ("085\n", 0.0),
        ("185\n", 0.0),
        ("8(1)5\n", 0.0),
        ("(15)(15)85\n", 0.0),
        ("(1585\n", 0.0),
        ("\n", 0.0),
        ("84\n85\n", 0.0),
    ],
)
def test_reward(text: str, expected: float) -> None:
    assert reward("47+38=", encode(text)) == expected


def test_prompts_have_one_width_and_repeat_with_their_seed() -> None:
    prompts = sample_prompts(np.random.default_rng(3), 200)
    assert {len(prompt) for prompt in prompts} == {PROMPT_LEN}
    assert prompts == sample_prompts(np.random.default_rng(3), 200)
    assert all(reward(p, [*encode(work(p) + answer(p)), EOS]) == 1.0 for p in prompts)


def test_slips_are_wrong_and_lessons_fit() -> None:
    rng = np.random.default_rng(0)
    for prompt in sample_prompts(rng, 100):
        assert reward(prompt, [*encode(slip(prompt, rng)), EOS]) == 0.0
    inputs, targets = make_batch(rng, 16, SLOPPY)
    assert inputs.shape == targets.shape == (16, PROMPT_LEN + MAX_COMPLETION_LEN - 1)
    assert bool((targets[:, : PROMPT_LEN - 1] < 0).all()) and bool((targets == EOS).sum(1).eq(1).all())
