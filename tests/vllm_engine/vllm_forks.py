"""vLLM's processes, forked from one that has imported everything: each then starts in moments, not in ten seconds.

Python's own fork server is that process. Servers and engine cores are forked from it, and an engine's workers from its
core. Nothing computes in the fork server, so nothing but modules is inherited.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

#: Modules that the fork server imports. Each process imports modules that are missing here by itself, later.
_PRELOAD = [
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen2",
    "vllm.model_executor.models.qwen3",
    "p2psync.actor.vllm.backend",
    "p2psync.actor.vllm.routes",
    "vllm_parts",
    "vllm_warm",
]
#: Settings of vLLM for a small machine without a network; it reads some of them when it is imported.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
    # Threads that spin for work would keep a small machine from everything else.
    "OMP_NUM_THREADS": "1",
}


class Started(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


def start_plain(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Started:
    """`python -m vllm.entrypoints.openai.api_server WORDS`, in a session of its own."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
    return _Forked(_context().Process(target=_command, args=(command, str(log), dict(environment))))


def start_forked(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Started:
    """Starts a process of the fork server."""
    return _Forked(_context().Process(target=_serve, args=(list(words), str(log), dict(environment))))


def process_of(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """A process of the fork server that will call it, and lead a session of its own."""
    return _context().Process(target=function, args=args)


def call_forked(function: Callable[..., Any], *args: Any) -> None:
    """Call it in a process of the fork server: its parts of torch are not imported here."""
    process = _context().Process(target=function, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0, f"{function.__name__} ended with {process.exitcode}"


def take_forks() -> None:
    """Makes vLLM in this process start its engine cores by the fork server from now on."""
    _replace(_context())


class _Forked:
    def __init__(self, process: Any) -> None:
        self._process = process
        process.start()
        self.pid: int = process.pid

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def wait(self) -> int:
        self._process.join()
        return int(self._process.exitcode)


class _Context(ForkServerContext):
    """Processes of the fork server, with the environment of their starter."""

    def Process(self, *, target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return ForkServerProcess(target=_run, args=(dict(os.environ), target, args, kwargs or {}), **options)


def _context() -> _Context:
    os.environ.update(ENVIRONMENT)
    here = str(Path(__file__).parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, *paths]))
    context = _Context()
    context.set_forkserver_preload(_PRELOAD)
    return context


def _replace(context: Any) -> None:
    """Makes vLLM start processes by this context, whatever method it asks for (on CPUs it insists on "spawn")."""
    from vllm.utils import system_utils

    system_utils.multiprocessing = SimpleNamespace(get_context=lambda _: context)  # type: ignore[attr-defined]


def _run(environment: Mapping[str, str], target: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> None:
    """Runs in a process of the fork server; its children are forked from it, and end with its starter."""
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    _replace(multiprocessing.get_context("fork"))
    target(*args, **kwargs)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


def _command(command: list[str], log: str, environment: Mapping[str, str]) -> None:
    with Path(log).open("wb") as out:
        sys.exit(subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False).returncode)


def _serve(words: list[str], log: str, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["api_server", *words]
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
