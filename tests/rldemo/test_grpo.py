"""The learner: advantages, the clipped objective's gradient, exact rounding, repeatability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
import torch

from p2psync.rldemo.config import DemoConfig
from p2psync.rldemo.grpo import Learner, clipped_objective, group_advantages, make_batch, masters_within
from p2psync.rldemo.local import changed_fraction, roll_out_batch, snapshot, train
from p2psync.rldemo.model import Policy, PolicyConfig, completion_logprobs, load_warm_start, working_copy
from p2psync.rldemo.result import RISE_MIN_STANDARD_ERRORS, reward_trend
from p2psync.rldemo.rollout import Group, RolloutResult, RolloutTask, Sample, generator_for, make_tasks, roll_out
from p2psync.rldemo.task import EOS

TINY = PolicyConfig(hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8)
FAST = replace(DemoConfig(), prompts_per_version=8, prompts_per_item=4, group_size=8, minibatches=2)


def tiny() -> Policy:
    policy = Policy(TINY)
    policy.initialize(0)
    return policy


def groups_of(results: Sequence[RolloutResult]) -> list[Group]:
    return [group for result in results for group in result.groups]


def artificial_groups(policy: Policy) -> list[Group]:
    """Real completions of an untrained policy; those that start with an even token are rewarded."""
    groups = groups_of(roll_out_batch(policy, FAST, 0, 0))
    paid = [[replace_reward(sample, float(sample.tokens[0] % 2 == 0)) for sample in g.samples] for g in groups]
    return [Group(group.prompt, samples) for group, samples in zip(groups, paid, strict=True)]


def replace_reward(sample: Sample, reward: float) -> Sample:
    return Sample(sample.tokens, sample.logprobs, reward)


def test_advantages_are_centred_and_scaled() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 1.0], 0.0) == [1.0, -1.0, -1.0, 1.0]
    assert group_advantages([1.0, 1.0, 1.0], 1e-4) == [0.0, 0.0, 0.0]
    assert group_advantages([0.0, 0.0, 0.0, 1.0], 0.0) == pytest.approx([-(3**-0.5)] * 3 + [3**0.5])


def test_groups_without_contrast_are_left_out() -> None:
    same = Group([3, 4], [Sample([5, EOS], [-1.0, -2.0], 1.0)] * 2)
    mixed = Group([3, 4], [Sample([5, EOS], [-1.0, -2.0], 1.0), Sample([6], [-3.0], 0.0)])
    assert make_batch([same], 1e-4) is None
    batch = make_batch([same, mixed], 1e-4)
    assert batch is not None and len(batch) == 2
    assert batch.mask.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert batch.behaviour.tolist() == [[-1.0, -2.0], [-3.0, 0.0]]


def test_objective_is_clipped_on_the_side_that_gains() -> None:
    ratio = torch.tensor([[0.5, 1.0, 2.0]])
    gain, seen = clipped_objective(ratio.log(), torch.zeros(1, 3), torch.tensor([1.0]), 0.2, 0.3)
    torch.testing.assert_close(gain, torch.tensor([[0.5, 1.0, 1.3]]))
    torch.testing.assert_close(seen, ratio)
    gain, _ = clipped_objective(ratio.log(), torch.zeros(1, 3), torch.tensor([-1.0]), 0.2, 0.3)
    torch.testing.assert_close(gain, torch.tensor([[-0.8, -1.0, -2.0]]))


def test_steps_make_paid_samples_likelier_than_unpaid() -> None:
    policy = tiny()
    groups = artificial_groups(policy)
    batch = make_batch(groups, 1e-4)
    assert batch is not None

    def advantage_weighted() -> float:
        with torch.no_grad():
            scores = completion_logprobs(working_copy(policy), batch.prompts, batch.completions, 1.0)
        return float(((scores * batch.mask).sum(1) * batch.advantages).mean())

    before = advantage_weighted()
    Learner(policy, replace(FAST, learning_rate=1e-4)).step(groups)
    assert advantage_weighted() > before


def test_published_weights_are_the_rounded_masters() -> None:
    policy = tiny()
    learner, old = Learner(policy, replace(FAST, learning_rate=1e-5)), snapshot(policy)
    stats = learner.step(artificial_groups(policy))
    assert stats.optimizer_steps == 2 and stats.ratio_mean == pytest.approx(1.0, abs=1e-2)
    assert 0 < changed_fraction(old, snapshot(policy)) < 0.5
    beyond = 0
    for name, weight in policy.named_parameters():
        master = learner.masters[name]
        assert master.dtype == torch.float32
        assert torch.equal(master.bfloat16().view(torch.int16), weight.view(torch.int16))
        beyond += int((master != weight.float()).sum())
    assert beyond > 0  # the masters remember changes that bf16 cannot show


def test_first_masters_round_to_the_weights_from_all_over_their_range() -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    masters = masters_within(every, torch.Generator().manual_seed(0))
    same = masters.bfloat16().view(torch.int16) == every.view(torch.int16)
    assert bool(same[~every.isnan()].all()) and bool(masters[every.isnan()].isnan().all())
    ordinary = (every.abs() > 1e-30) & (every.abs() < 1e30)
    places = (masters.view(torch.int32) - every.float().view(torch.int32))[ordinary].double() / 0x8000
    assert abs(float(places.mean())) < 0.02 and 0.55 < float(places.std()) < 0.6


def test_no_contrast_no_change() -> None:
    policy = tiny()
    old = snapshot(policy)
    stats = Learner(policy, FAST).step([Group([3, 4], [Sample([EOS], [-1.0], 0.0)] * 4)])
    assert stats.used_samples == stats.optimizer_steps == 0 and stats.reward == 0.0
    assert changed_fraction(old, snapshot(policy)) == 0.0


def test_same_seed_same_bits() -> None:
    ends = []
    for _ in range(2):
        policy = load_warm_start()
        rewards = [report.stats.reward for report in train(replace(FAST, versions=2), policy)]
        ends.append((rewards, snapshot(policy)))
    assert ends[0][0] == ends[1][0]
    assert changed_fraction(ends[0][1], ends[1][1]) == 0.0


def test_a_restored_learner_goes_on_bit_for_bit() -> None:
    first, groups = tiny(), artificial_groups(tiny())
    learner = Learner(first, FAST)
    learner.step(groups)
    state = learner.state_dict()
    second = tiny()
    restored = Learner(second, FAST)
    restored.load_state_dict(state)
    assert changed_fraction(snapshot(first), snapshot(second)) == 0.0
    learner.step(groups)
    restored.step(groups)
    assert changed_fraction(snapshot(first), snapshot(second)) == 0.0


def test_tasks_and_results_survive_encoding_and_are_repeatable() -> None:
    policy = load_warm_start()
    item = msgspec.msgpack.decode(msgspec.msgpack.encode(make_tasks(FAST, 3)[1]), type=RolloutTask)
    assert item == make_tasks(FAST, 3)[1]
    first = roll_out(policy, item, generator_for(item), 7)
    again = roll_out(working_copy(policy).bfloat16(), item, generator_for(item), 7)
    assert first == again and first.version == 7 and first.item_id == item.item_id
    assert msgspec.json.decode(msgspec.json.encode(first), type=RolloutResult) == first
    assert [len(group.samples) for group in first.groups] == [8] * 4
    assert 0.0 < first.mean_reward() < 1.0


def test_rewards_rise_by_several_standard_errors() -> None:
    """Six versions at ten times the demonstration's rate, on small batches."""
    config = replace(FAST, versions=6, learning_rate=1e-5)
    rewards = [report.stats.reward for report in train(config, load_warm_start())]
    assert reward_trend(rewards) >= RISE_MIN_STANDARD_ERRORS
