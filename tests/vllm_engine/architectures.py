"""Tiny random models of many architectures, as transformers configures them, for the matrix (`matrix.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

_SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEADS = {"head_dim": 32}
_GPT = {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 512, "vocab_size": 512}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SLIDING = {**_HEADS, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 128}
_SCALED = {"rope_parameters": {**_YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 32, "mamba_d_conv": 4}


class Architecture(NamedTuple):
    """kind: transformers' model type. options: those that differ from `_SIZES`. dtype: of the checkpoint and the
    engine. twist: a change of the saved checkpoint, by its name in `_TWISTS`."""

    kind: str
    options: Mapping[str, Any] = MappingProxyType({})
    dtype: str = "bfloat16"
    twist: str = ""


#: By the names that the table has.
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", {**_HEADS, "tie_word_embeddings": True}),
    "llama, own output matrix": Architecture("llama", _HEADS),
    "llama, tied, but with an equal output matrix": Architecture("llama", {"tie_word_embeddings": True}, twist="equal"),
    "llama, tied, but with another output matrix": Architecture("llama", {"tie_word_embeddings": True}, twist="head"),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3", _HEADS),
    "mistral": Architecture("mistral", _HEADS),
    "gemma": Architecture("gemma", _HEADS),
    "gemma2": Architecture("gemma2", _SLIDING),
    "gemma3": Architecture("gemma3_text", _SLIDING),
    "phi (1.5, 2)": Architecture("phi", {"num_key_value_heads": 4}),
    "phi3": Architecture("phi3"),
    "olmo": Architecture("olmo"),
    "olmo2": Architecture("olmo2"),
    "olmo3": Architecture("olmo3", _SLIDING),
    "granite": Architecture("granite"),
    "glm": Architecture("glm", _HEADS),
    "glm4": Architecture("glm4", _HEADS),
    "falcon": Architecture("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt_neox": Architecture("gpt_neox"),
    "gptj": Architecture("gptj", {**_GPT, "rotary_dim": 16}),
    "gpt_bigcode": Architecture("gpt_bigcode", _GPT),
    "gpt2": Architecture("gpt2", _GPT),
    "bloom": Architecture("bloom", {"n_layer": 2, "n_head": 4}),
    "opt": Architecture("opt", {"ffn_dim": 256, "word_embed_proj_dim": 128}),
    "starcoder2": Architecture("starcoder2"),
    "stablelm": Architecture("stablelm"),
    "cohere": Architecture("cohere"),
    "cohere2": Architecture("cohere2", _SLIDING),
    "nemotron": Architecture("nemotron", _HEADS),
    "persimmon": Architecture("persimmon"),
    "smollm3": Architecture("smollm3"),
    "exaone4": Architecture("exaone4", _SLIDING),
    "ernie4_5": Architecture("ernie4_5", _HEADS),
    "hunyuan_v1_dense": Architecture("hunyuan_v1_dense", _HEADS),
    "seed_oss": Architecture("seed_oss", _HEADS),
    "arcee": Architecture("arcee", _HEADS),
    "apertus": Architecture("apertus"),
    "mixtral": Architecture("mixtral", {**_HEADS, **_LOCAL}),
    "qwen3_moe": Architecture("qwen3_moe", {**_HEADS, **_EXPERTS}),
    "qwen2_moe": Architecture("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 128}),
    "olmoe": Architecture("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "flex_olmo": Architecture("flex_olmo", {"num_experts": 4, "num_experts_per_tok": 2}),
    "granitemoe": Architecture("granitemoe", _LOCAL),
    "hunyuan_v1_moe": Architecture("hunyuan_v1_moe", {**_HEADS, "num_experts": 4, "moe_topk": 2}),
    "gpt_oss": Architecture("gpt_oss", {**_SLIDING, **_LOCAL, **_SCALED}),
    "gpt_oss, float16": Architecture("gpt_oss", {**_SLIDING, **_LOCAL, **_SCALED}, "float16"),
    "llama4": Architecture("llama4_text", {**_HEADS, **_LOCAL, "num_experts_per_tok": 1, "intermediate_size_mlp": 256}),
    "glm4_moe": Architecture("glm4_moe", {**_HEADS, **{k: _MLA[k] for k in list(_MLA)[6:]}}),
    "ernie4_5_moe": Architecture(
        "ernie4_5_moe", {**_HEADS, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64}
    ),
    "dots1": Architecture("dots1", {**_HEADS, **{k: _MLA[k] for k in list(_MLA)[6:]}}),
    "deepseek_v2": Architecture("deepseek_v2", _MLA),
    "deepseek_v3": Architecture("deepseek_v3", {**_MLA, "topk_method": "noaux_tc"}),
    "mamba": Architecture("mamba", {"state_size": 16}),
    "mamba2": Architecture("mamba2", {"num_heads": 8, "head_dim": 32, "state_size": 32, "n_groups": 1}),
    "granitemoehybrid": Architecture(
        "granitemoehybrid",
        {**_LOCAL, **_MAMBA, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 128},
    ),
    "falcon_h1": Architecture("falcon_h1", {**_MAMBA, **_HEADS, "mamba_d_ssm": 256}),
    "lfm2": Architecture(
        "lfm2", {"layer_types": ["conv", "full_attention"], "conv_dim": 128, "block_dim": 128, "block_ff_dim": 256}
    ),
    "qwen3_next": Architecture(
        "qwen3_next",
        {
            **_HEADS,
            **_EXPERTS,
            **_LINEAR,
            "layer_types": ["linear_attention", "full_attention"],
            "shared_expert_intermediate_size": 128,
        },
    ),
}
#: One of each kind that behaves in its own way, for `.ci/vllm`.
QUICK = (
    "gemma3",
    "phi (1.5, 2)",
    "gpt2",
    "gpt_oss, float16",
    "mixtral",
    "llama, tied, but with an equal output matrix",
)


def save(name: str, into: Path) -> None:
    """Write the tiny checkpoint of an architecture: every weight random, norms about 1."""
    import torch
    import transformers as hf

    torch.manual_seed(7)
    architecture = ARCHITECTURES[name]
    config = hf.AutoConfig.for_model(architecture.kind, **{**_SIZES, **architecture.options})
    model = hf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]:
            if parameter.dim() == 1 or bool((parameter == parameter.view(-1)[0]).all()):
                parameter.add_(0.05 * torch.randn(parameter.shape))
    model.to(getattr(torch, architecture.dtype)).save_pretrained(into)
    if architecture.twist:
        _TWISTS[architecture.twist](into)


def _with_head(into: Path, noise: float) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    file = into / "model.safetensors"
    tensors = load_file(file)
    rows = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = rows + (noise * torch.randn(rows.shape)).to(rows.dtype)
    save_file(tensors, file, {"format": "pt"})


_TWISTS = {"equal": lambda into: _with_head(into, 0.0), "head": lambda into: _with_head(into, 0.02)}
