"""vLLM engines are refused from their configuration alone, with the reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p2psync.actor.vllm.refusals import check_supported
from p2psync.errors import EngineError


def config(model: Path, **changes: Any) -> SimpleNamespace:
    """A configuration that is taken, but for the changes."""
    parts = {
        "parallel_config": SimpleNamespace(pipeline_parallel_size=1, data_parallel_size=1, enable_eplb=False),
        "model_config": SimpleNamespace(model=str(model), quantization=None, enable_sleep_mode=False),
        "load_config": SimpleNamespace(load_format="auto"),
        "lora_config": None,
        "speculative_config": None,
    }
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if key:
            setattr(parts[part], key, value)
        else:
            parts[part] = value
    return SimpleNamespace(**parts)


def test_a_plain_engine_is_taken(tmp_path: Path) -> None:
    assert check_supported(config(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"parallel_config__data_parallel_size": 2}, "one engine for each replica"),
        ({"parallel_config__enable_eplb": True}, "expert load balancing"),
        ({"model_config__quantization": "fp8"}, r"quantisation \(fp8\)"),
        ({"model_config__enable_sleep_mode": True}, "sleep mode"),
        ({"load_config__load_format": "bitsandbytes"}, "load format bitsandbytes"),
        ({"lora_config": object()}, "LoRA"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"model_config__model": "org/name"}, "a local directory, not 'org/name'"),
    ],
)
def test_options_that_break_exactness_are_refused_by_name(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    with pytest.raises(EngineError, match=match):
        check_supported(config(tmp_path, **change))
