"""An installation by `pip install '.[torch]'` imports, publishes and runs commands; nothing else is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOPOLOGY = ROOT / "examples" / "topologies" / "wan-4x3.toml"
#: Packages of other extras, and those that torch installs only where it is built for a GPU.
ABSENT = (
    "PIL", "accelerate", "fastapi", "gguf", "hypothesis", "matplotlib", "psutil", "pytest", "transformers", "triton",
    "vllm",
)  # fmt: skip
#: Kernels, which are imported where a tensor is on a GPU and Triton is there.
KERNELS = {f"p2psync.engines.device.{name}" for name in ("digest", "triton_scatter", "triton_finder")}
#: Modules that are imported only by vLLM, or by a program that has vLLM or transformers.
BACKEND = {
    "p2psync.actor.vllm.backend",
    "p2psync.actor.vllm.routes",
    "p2psync.trainer.vllm_engine",
    "p2psync.trainer.huggingface",
}


def plain(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that has none of `ABSENT`."""
    barred = f"import sys\nsys.modules.update(dict.fromkeys({ABSENT!r}))\n"
    command = [sys.executable, "-c", barred + code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def p2psync(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line there."""
    return plain("from p2psync.cli.main import main\nmain()", *arguments)


def test_every_module_but_the_kernels_and_the_backend_is_imported() -> None:
    modules = {
        ".".join((*package, *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for package, folders in (((), ("p2psync",)), (("p2psync",), ("trainer", "actor", "topology", "rldemo")))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__main__.py"
    }
    assert modules > KERNELS | BACKEND
    done = plain(
        "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)",
        *sorted(modules - KERNELS - BACKEND),
    )
    assert done.returncode == 0, done.stderr


PUBLISH = """
from pathlib import Path
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.publisher import Publisher

for on_device in (False, True):
    model = torch.nn.Linear(64, 64).to(torch.bfloat16)
    masters = {name: weight.detach().float() for name, weight in model.named_parameters()}
    store = Path(sys.argv[1]) / str(on_device)
    config = TrainerConfig(store=store, key=Ed25519PrivateKey.generate(), host="127.0.0.1", hub_port=0, port=0)
    with Publisher(model, config, masters=masters, resident=True, on_device=on_device) as publisher:
        for version in range(2):
            masters["weight"][0, :8] += 1
            assert publisher.publish() is not None
            assert publisher.position.version == version
"""


def test_a_module_is_published_also_by_the_way_of_a_device(tmp_path: Path) -> None:
    done = plain(PUBLISH, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_network_is_planned() -> None:
    done = p2psync("wan", "plan", TOPOLOGY)
    assert (done.returncode, done.stderr) == (0, "")
    assert "of the bound" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("wan", "plan", TOPOLOGY, "--png", "plan.png"),
        ("bench", "codec", "--quick", "--baselines", "none", "--plot", "codec.png"),
        ("bench", "codec", "--quick", "--baselines", "none", "--trajectories", "runs"),
        ("bench", "pause", "model"),
    ],
    ids=lambda words: words[-2],
)
def test_a_command_that_needs_another_extra_names_it_before_it_starts(
    arguments: tuple[object, ...], tmp_path: Path
) -> None:
    done = p2psync(*arguments[:-1], tmp_path / str(arguments[-1]))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'p2psync[" in done.stderr
