"""Publishing from a real `transformers.Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from trainer_parts import KEY

from p2psync import Published, TrainerConfig, UsageError

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[smollm]'")
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install '.[smollm]'")

from p2psync import PublishCallback  # noqa: E402 (needs transformers)

STEPS = 4


class Policy(nn.Module):
    """A module as transformers' trainer takes one: it returns its loss first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8).to(torch.bfloat16)

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of a batch."""
        found = self.layer(rows.bfloat16()).float()
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Drawn rows, and twice them for labels."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        rows = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"rows": rows, "labels": 2 * rows}


def train(place: Path, callback: Any, policy: nn.Module, *more: Any, **options: Any) -> None:
    args = transformers.TrainingArguments(
        output_dir=str(place / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=0.1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **({"save_strategy": "no"} | options),
    )
    trainer = transformers.Trainer(policy, args, train_dataset=Rows(), callbacks=[callback, *more])
    with callback:
        trainer.train()


def callback_of(place: Path, told: list[Published], **options: Any) -> Any:
    config = TrainerConfig(store=place / "store", key=KEY, host="127.0.0.1", hub_port=0, port=0)

    def hear(event: object) -> None:
        if isinstance(event, Published):
            told.append(event)

    return PublishCallback(config, on_event=hear, **options)


def versions(told: list[Published]) -> list[int]:
    """The versions that were published, each once: one that is written out whole later is told again."""
    return sorted({event.version for event in told})


def test_a_version_leaves_before_training_and_after_each_optimizer_step(tmp_path: Path) -> None:
    told: list[Published] = []
    callback = callback_of(tmp_path, told)
    train(tmp_path, callback, Policy())
    assert versions(told) == list(range(STEPS + 1))
    assert callback.publisher is None


def test_every_other_step_and_the_last_weights_are_published(tmp_path: Path) -> None:
    told: list[Published] = []
    train(tmp_path, callback_of(tmp_path, told, every=3), Policy())
    assert versions(told) == [0, 1, 2]  # at the beginning, after step 3, and at the end


def test_after_saves_versions_leave_with_the_saves(tmp_path: Path) -> None:
    told: list[Published] = []
    options = {"save_strategy": "steps", "save_steps": 2}
    train(tmp_path, callback_of(tmp_path, told, after="save"), Policy(), **options)
    assert versions(told) == [0, 1, 2]  # at the beginning, and after steps 2 and 4; the end holds the bits of step 4


def test_training_that_fails_leaves_no_node_behind(tmp_path: Path) -> None:
    class Failing(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            raise RuntimeError("out of luck")

    callback = callback_of(tmp_path, [])
    with pytest.raises(RuntimeError, match="out of luck"):
        train(tmp_path, callback, Policy(), Failing())
    assert callback.publisher is None


def test_wrong_options_of_the_callback_are_refused(tmp_path: Path) -> None:
    for options in ({"every": 0}, {"after": "epoch"}):
        with pytest.raises(UsageError):
            callback_of(tmp_path, [], **options)
    with pytest.raises(UsageError, match="give a TrainerConfig"):
        PublishCallback("run")  # type: ignore[arg-type]
