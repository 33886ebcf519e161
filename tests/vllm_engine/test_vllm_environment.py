"""An engine joins by its environment: variables that Kubernetes sets are ignored, and errors name their variable."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")

from p2psync.actor.vllm.backend import _from_environment
from p2psync.environment import VLLM_PREFIX
from p2psync.errors import UsageError

pytestmark = pytest.mark.vllm


def test_a_kubernetes_service_link_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{VLLM_PREFIX}JOIN", "http://[::1]:7070")
    monkeypatch.setenv(f"{VLLM_PREFIX}PORT", "tcp://10.0.0.1:7071")
    found = _from_environment()
    assert (found.hub_url, found.port, found.host) == ("http://[::1]:7070", 0, "")


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "abc"), ("HOST", "192.0.2.7:7"), ("ADVERTISE", "::"), ("JOIN", "nonsense")]
)
def test_an_invalid_variable_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"{VLLM_PREFIX}{name}", value)
    with pytest.raises(UsageError, match=f"{VLLM_PREFIX}{name}='{value}' in the environment: it should be"):
        _from_environment()
