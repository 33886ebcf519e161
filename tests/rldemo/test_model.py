"""The policy: cached generation against full forward passes, and its reads of weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from p2psync.rldemo.model import (
    KVCache,
    Policy,
    PolicyConfig,
    completion_logprobs,
    generate,
    load_warm_start,
    save_policy,
    working_copy,
)
from p2psync.rldemo.task import EOS, PAD

TINY = PolicyConfig(hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8)


def tiny(seed: int = 0) -> Policy:
    policy = Policy(TINY)
    policy.initialize(seed)
    return policy


def prompts(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(2, 16, (rows, 6), generator=torch.Generator().manual_seed(seed))


def test_cache_gives_the_logits_of_a_full_forward() -> None:
    net, tokens = working_copy(tiny()), prompts(5)
    with torch.no_grad():
        full = net(tokens)
        cache = KVCache.empty(TINY, 5, 6)
        parts = [net(tokens[:, :3], cache)] + [net(tokens[:, i : i + 1], cache) for i in range(3, 6)]
    torch.testing.assert_close(torch.cat(parts, 1), full, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_logprobs_are_those_of_a_full_forward(temperature: float) -> None:
    policy, rows = tiny(1), prompts(64)
    tokens, logprobs = generate(policy, rows, 8, temperature, torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = completion_logprobs(working_copy(policy), rows, tokens, temperature)
    ended = (tokens == EOS).cumsum(1) - (tokens == EOS).long() > 0
    assert ended.any() and not ended.all()
    assert bool((tokens[ended] == PAD).all()) and bool((logprobs[ended] == 0).all())
    torch.testing.assert_close(logprobs[~ended], expected[~ended], rtol=1e-4, atol=1e-5)


def test_prompts_read_once_give_logprobs_and_gradients_of_whole_rows() -> None:
    policy, rows = tiny(1), prompts(4).repeat_interleave(3, dim=0)
    completions = torch.randint(2, 16, (12, 5), generator=torch.Generator().manual_seed(2))
    nets = [working_copy(policy) for _ in range(2)]
    for net in nets:
        net.requires_grad_(True)
    logits = nets[0](torch.cat((rows, completions[:, :-1]), dim=1))[:, rows.shape[1] - 1 :]
    expected = logits.log_softmax(-1).gather(2, completions[:, :, None])[:, :, 0]
    shared = completion_logprobs(nets[1], rows, completions, 1.0)
    torch.testing.assert_close(shared, expected, rtol=1e-4, atol=1e-5)
    for logprobs in (expected, shared):
        logprobs.square().sum().backward()
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)


def test_same_generator_same_tokens() -> None:
    first, second = (generate(tiny(), prompts(8), 6, 1.0, torch.Generator().manual_seed(9)) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def test_generation_reads_the_live_weights() -> None:
    policy, rows = tiny(), prompts(8)
    before = generate(policy, rows, 6, 1.0, torch.Generator().manual_seed(9))
    state = {name: weight.clone() for name, weight in policy.state_dict().items()}
    policy.lm_head.weight.data.view(torch.int16).flatten()[:64] ^= 0x40
    changed = generate(policy, rows, 6, 1.0, torch.Generator().manual_seed(9))
    assert not torch.equal(before[1], changed[1])
    policy.load_state_dict(state)
    assert torch.equal(before[1], generate(policy, rows, 6, 1.0, torch.Generator().manual_seed(9))[1])


def test_generate_refuses_nonsense() -> None:
    with pytest.raises(ValueError):
        generate(tiny(), prompts(1), 0, 1.0, torch.Generator())
    with pytest.raises(ValueError):
        generate(tiny(), prompts(1), 1, 0.0, torch.Generator())


def test_warm_start_is_bf16_with_the_usual_names() -> None:
    policy = load_warm_start()
    names = {name for name, _ in policy.named_parameters()}
    assert {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"} <= names
    assert all(weight.dtype == torch.bfloat16 for weight in policy.parameters())
    assert 1_500_000 < sum(weight.numel() for weight in policy.parameters()) < 3_000_000


def test_saved_policy_comes_back_bit_for_bit(tmp_path: Path) -> None:
    policy = load_warm_start()
    save_policy(policy, tmp_path / "a" / "model.safetensors")
    again = load_warm_start(tmp_path / "a" / "model.safetensors")
    for ours, theirs in zip(policy.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
