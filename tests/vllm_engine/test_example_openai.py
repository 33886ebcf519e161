"""The example of an OpenAI-compatible server with versions on its requests: conducted by the proxy, and by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_parts import ONE_PROCESS, ONE_PROCESS_FLAGS, TIMEOUT, Server, save, save_tokenizer, stepped, trainer

pytestmark = pytest.mark.vllm
EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_server"
UNBUFFERED = os.environ | {"PYTHONUNBUFFERED": "1"}


class VersionProxy:
    """version_proxy.py in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, str(EXAMPLE / "version_proxy.py"), "--host", "127.0.0.1", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=UNBUFFERED)
        assert self.process.stdout is not None
        self.url = next(line for line in self.process.stdout if "the proxy is at" in line).split()[-1]

    def refusal(self, **wanted: int) -> dict[str, Any]:
        """The body of the 409 that a request gets."""
        body = json.dumps({"model": "policy", "prompt": "t1 t2", "max_tokens": 1}).encode()
        headers = {f"P2PSync-{kind.title()}-Version": str(version) for kind, version in wanted.items()}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", body, headers | {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=TIMEOUT)
        assert caught.value.code == 409
        found: dict[str, Any] = json.load(caught.value)
        return found

    def ask(self, *arguments: str) -> subprocess.Popen[str]:
        """ask.py, begun."""
        command = [sys.executable, str(EXAMPLE / "ask.py"), "t1 t2 t3", "--url", f"{self.url}/v1", "--tokens", "4"]
        return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        """End it, as a user would."""
        self.process.terminate()
        assert self.process.wait(60) == 0


@pytest.fixture
def closing() -> Iterator[list[Any]]:
    """A list of processes; they are closed after the test, the last one first."""
    made: list[Any] = []
    yield made
    for one in reversed(made):
        one.close()


def answer(asked: subprocess.Popen[str]) -> Any:
    said, _ = asked.communicate(timeout=TIMEOUT)
    assert asked.returncode == 0
    return json.loads(said)


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_request_waits_for_its_version_and_learns_which_one_answered(
    tmp_path: Path, by_itself: bool, closing: list[Any]
) -> None:
    model = save("qwen3", tmp_path / "0")
    save_tokenizer(model)
    with trainer(tmp_path / "run") as source:
        join = source.join()
        environment, flags = {}, ["--join", join["hub_url"], "--trust", join["trust"][0]]
        if by_itself:
            environment = {
                "VLLM_PLUGINS": "p2psync",
                "VLLM_SERVER_DEV_MODE": "0",
                "P2PSYNC_VLLM_JOIN": join["hub_url"],
                "P2PSYNC_VLLM_TRUST": join["trust"][0],
            }
            flags = []
        server = Server(model, tmp_path / "server.log", ONE_PROCESS_FLAGS, **ONE_PROCESS, **environment)
        closing.append(server)
        server.ready()
        proxy = VersionProxy("--server", server.url, *flags)
        closing.append(proxy)
        assert proxy.refusal(min=0)["live"] is None, "nothing is met before the first version"
        source.publish(model)
        first = answer(proxy.ask("--min-version", "0"))
        assert (first["start_version"], first["end_version"], first["commits"]) == (0, 0, 0)
        refusal = proxy.refusal(min=1)
        assert (refusal["reason"], refusal["live"], refusal["retry"]) == ("not_yet", 0, True)
        waiting = proxy.ask("--min-version", "1")
        source.publish(stepped(model, tmp_path / "1", 1, 0.3))
        second = answer(waiting)
        assert (second["start_version"], second["end_version"]) == (1, 1)
        assert proxy.refusal(exact=0)["reason"] == "passed"
        assert answer(proxy.ask("--exact-version", "1")) == second
