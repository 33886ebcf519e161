"""Refuses, at the start of an engine, configurations that the backend `p2psync` cannot keep exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2psync.errors import EngineError

#: Load formats by which vLLM reads safetensors unchanged.
FORMATS = ("auto", "hf", "safetensors")


def check_supported(vllm_config: Any) -> Path:
    """Returns the directory of the model's checkpoint. Raises `EngineError`, with the reason, for other engines."""
    parallel, model, load = vllm_config.parallel_config, vllm_config.model_config, vllm_config.load_config
    reasons = {
        "pipeline parallelism: the stages would have to agree with each other": parallel.pipeline_parallel_size > 1,
        "data parallelism: run one engine for each replica": parallel.data_parallel_size > 1,
        "expert load balancing: experts change their places": getattr(parallel, "enable_eplb", False),
        f"quantisation ({model.quantization}): live weights are not the checkpoint's": model.quantization is not None,
        "LoRA: its layers are not those of the checkpoint": vllm_config.lora_config is not None,
        "speculative decoding: the draft model would not be updated": vllm_config.speculative_config is not None,
        "sleep mode: weights would be dropped and loaded behind our back": getattr(model, "enable_sleep_mode", False),
        "--ec-transfer-config: outputs of encoders in another place could not be dropped when weights change": (
            getattr(vllm_config, "ec_transfer_config", None) is not None
        ),
        f"load format {load.load_format}: only {', '.join(FORMATS)}": str(load.load_format) not in FORMATS,
    }
    for reason, so in reasons.items():
        if so:
            raise EngineError(f"the backend p2psync does not support {reason}")
    path = Path(model.model)
    if not path.is_dir():
        raise EngineError(f"the backend p2psync needs the model as a local directory, not {model.model!r}")
    return path
