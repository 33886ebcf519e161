"""A recorded run comes back step by step, bit for bit, with the history of each; one that broke off does not count."""

import numpy as np
import pytest

from p2psync.bench.trajectories import InitialPolicy, StepNote, make_missing, read_about, record, replay
from p2psync.errors import UsageError

SHAPES = {"b": (40, 50), "a": (30,)}


def silent(line: str) -> None:
    """Progress that nobody watches."""


class FakeRun:
    """Units that change at random; `versions` keeps the published ones."""

    def __init__(self, seed=0, fail_at=99):
        self.rng = np.random.default_rng(seed)
        self.fail_at = fail_at
        self.units = {n: self.rng.integers(0, 1 << 16, int(np.prod(s)), np.uint16) for n, s in SHAPES.items()}
        self.versions = [self.copy()]

    def copy(self):
        return {name: units.copy() for name, units in self.units.items()}

    def start(self):
        return InitialPolicy("made up", self.units, SHAPES)

    def step(self):
        if len(self.versions) == self.fail_at:
            raise RuntimeError("broke off")
        for units in self.units.values():
            units[self.rng.random(units.size) < 0.05] += self.rng.integers(1, 1 << 16, dtype=np.uint16)
        self.versions.append(self.copy())
        return StepNote(reward=0.5, samples=8, used_samples=4, seconds=0.1, units=self.units)


def recorded(folder, run, steps=6):
    record(folder, "fake", run, rate=1e-6, seed=0, steps=steps, progress=silent)
    return run


def test_every_step_comes_back_bit_for_bit(tmp_path):
    run = recorded(tmp_path / "fake", FakeRun())
    seen = []
    for delta in replay(tmp_path / "fake", [1, 4, 6]):
        before, after = run.versions[delta.step - 1], run.versions[delta.step]
        for row, old, new in zip(delta.rows, delta.old_bits, delta.new_bits, strict=True):
            assert row.spec.shape == SHAPES[row.spec.name]
            assert np.array_equal(old, before[row.spec.name]) and np.array_equal(new, after[row.spec.name])
        seen.append(delta.step)
    assert seen == [1, 4, 6]
    assert read_about(tmp_path / "fake").steps[3].changed == sum(
        np.count_nonzero(run.versions[3][n] != run.versions[4][n]) for n in SHAPES
    )


def test_history_holds_the_last_change_of_each_unit_and_its_direction(tmp_path):
    run = recorded(tmp_path / "fake", FakeRun(1))
    flat = [np.concatenate([version[name] for name in sorted(SHAPES)]) for version in run.versions]
    last, rose = np.zeros(flat[0].size, int), np.zeros(flat[0].size, bool)
    for number in range(1, 6):
        moved = flat[number] != flat[number - 1]
        last[moved] = number
        rose[moved] = ((flat[number] - flat[number - 1]).view(np.int16) > 0)[moved]
    (delta,) = replay(tmp_path / "fake", [6])
    assert delta.history.last.tolist() == last.tolist()
    assert delta.history.rose.tolist() == rose.tolist()


def test_a_run_that_broke_off_leaves_no_trajectory(tmp_path):
    with pytest.raises(RuntimeError):
        recorded(tmp_path / "fake", FakeRun(fail_at=3))
    with pytest.raises(UsageError, match="holds no trajectory"):
        read_about(tmp_path / "fake")
    recorded(tmp_path / "fake", FakeRun())
    assert len(read_about(tmp_path / "fake").steps) == 6


def test_existing_trajectories_are_not_made_again(tmp_path):
    recorded(tmp_path / "qwen3-lr1e-06-seed1", FakeRun())
    stamp = (tmp_path / "qwen3-lr1e-06-seed1" / "about.json").stat().st_mtime_ns
    (folder,) = make_missing(tmp_path, ["qwen3"], [1e-6], progress=silent)
    assert (folder / "about.json").stat().st_mtime_ns == stamp


def test_a_step_of_grpo_moves_masters_and_publishes_their_rounding():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'p2psync[bench]'")
    import torch

    from p2psync.bench import grpo

    torch.manual_seed(0)
    net = grpo._library.Qwen3ForCausalLM(grpo._library.Qwen3Config(**{**grpo.QWEN3, "num_hidden_layers": 1})).eval()
    masters = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    # an untrained model is never right: the first token decides here, so that some samples are
    task = grpo.GrpoTask(grpo.encode, lambda prompt, ids: float(ids[0] < 16), grpo.EOS, 3, prompts=4, group_size=4)
    run = grpo.Trajectory(grpo.Subject(masters, net.to(torch.bfloat16), task, "tiny"), 1e-5, seed=0)
    before = {name: units.copy() for name, units in run.start().units.items()}
    note = run.step()
    changed = sum(np.count_nonzero(units != before[name]) for name, units in note.units.items())
    total = sum(units.size for units in before.values())
    assert 0 < changed < total and 0 < note.reward < 1 and note.used_samples <= note.samples == 16
    for name, master in run._masters.items():
        assert np.array_equal(note.units[name], master.bfloat16().view(torch.int16).flatten().numpy().view(np.uint16))
        assert not torch.equal(master, masters[name])


def test_prompts_read_once_give_the_probabilities_of_whole_sequences():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'p2psync[bench]'")
    import torch

    from p2psync.bench import grpo

    torch.manual_seed(0)
    net = grpo._library.Qwen3ForCausalLM(grpo._library.Qwen3Config(**{**grpo.QWEN3, "num_hidden_layers": 2})).eval()
    prompts = torch.randint(2, 12, (3, 6)).repeat_interleave(4, 0)
    for length in (1, 5):
        completions = torch.randint(2, 12, (12, length))
        logits = net(input_ids=torch.cat((prompts, completions[:, :-1]), 1)).logits[:, 5:]
        whole = torch.log_softmax(logits, -1).gather(2, completions[:, :, None])[:, :, 0]
        shared = grpo.logprobs(net, prompts, completions)
        weights = list(net.parameters())
        for a, b in zip(
            torch.autograd.grad(whole.sum(), weights), torch.autograd.grad(shared.sum(), weights), strict=True
        ):
            assert torch.allclose(a, b, atol=1e-3)
        assert torch.allclose(whole, shared, atol=1e-5)
