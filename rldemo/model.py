"""The policy: a small decoder-only transformer of the Qwen3 kind, in plain torch.

RMSNorm before each half-layer (Zhang & Sennrich 2019), rotary positions (Su et al. 2021), grouped-query attention
(Ainslie et al. 2023) with RMSNorm on queries and keys as in Qwen3, SwiGLU (Shazeer 2020). Parameter names are those
of Hugging Face checkpoints, so that a saved policy is an ordinary directory of safetensors.

The parameters are bf16: p2psync publishes, patches and compares them bit by bit. Computation is in fp32 on copies
made at the start of each call (`working_copy`), and never kept: two million elements are cast in about a millisecond,
a commit between two calls can not leave a stale copy behind, and trainer and actors get the same log-probabilities
on processors with and without bf16 arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from p2psync.rldemo.task import EOS, PAD, VOCAB_SIZE

WARM_START = Path(__file__).parent / "weights" / "warm.safetensors"


@dataclass(frozen=True)
class PolicyConfig:
    """Shapes of the network; the defaults are the shipped policy's (2.0 million parameters)."""

    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 256
    intermediate_size: int = 640
    num_layers: int = 3
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 32
    max_positions: int = 32
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6


@dataclass
class KVCache:
    """Keys and values of the tokens seen so far: per layer, fp32 [batch, kv heads, positions, head dim]."""

    keys: list[Tensor]
    values: list[Tensor]
    length: int = 0

    @classmethod
    def empty(cls, config: PolicyConfig, batch: int, positions: int) -> KVCache:
        shape = (batch, config.num_kv_heads, positions, config.head_dim)
        layers = range(config.num_layers)
        return cls([torch.empty(shape) for _ in layers], [torch.empty(shape) for _ in layers])

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values; returns all of that layer's so far."""
        end = self.length + keys.shape[2]
        self.keys[layer][:, :, self.length : end] = keys
        self.values[layer][:, :, self.length : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def put_prompts(self, prompts: SharedPrompts) -> None:
        """Begin with each row's prompt; the cache is empty."""
        for layer, (keys, values) in enumerate(zip(prompts.keys, prompts.values, strict=True)):
            rows = prompts.prompt_of
            self.put(layer, keys.index_select(0, rows), values.index_select(0, rows))
        self.length = prompts.length


@dataclass
class SharedPrompts:
    """Keys and values of distinct prompts, each computed once for all rows that continue it; gradients flow through.

    The first forward pass with it takes the prompts, the second one the rows: row i continues prompt `prompt_of[i]`.
    """

    prompt_of: Tensor  # int64 [rows]
    keys: list[Tensor] = field(default_factory=list)  # per layer, fp32 [prompts, kv heads, prompt length, head dim]
    values: list[Tensor] = field(default_factory=list)
    length: int = 0

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values of the prompts, or put each row's prompt before those of the rows."""
        if self.length == 0:
            self.keys.append(keys)
            self.values.append(values)
            return keys, values
        before = [stored[layer].index_select(0, self.prompt_of) for stored in (self.keys, self.values)]
        return torch.cat((before[0], keys), 2), torch.cat((before[1], values), 2)


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_tables(config: PolicyConfig, start: int, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, fp32 [length, head dim], of the positions from start on."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(start, start + length).float(), config.rope_theta**-half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in the half-split layout of Hugging Face's Llama and Qwen."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal grouped-query self-attention."""

    def __init__(self, config: PolicyConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | SharedPrompts | None) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, -1, self.config.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, -1, self.config.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, -1, self.config.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            k, v = cache.put(self.layer, k, v)
        # One new token sees everything before it. Of several, each sees those after it not, and all that was cached.
        cached = k.shape[2] - length
        mask = torch.ones(length, k.shape[2], dtype=torch.bool).tril(cached) if cached and length > 1 else None
        causal = length > 1 and mask is None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the stream."""

    def __init__(self, config: PolicyConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | SharedPrompts | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers, final norm; the part that Hugging Face names `model.`."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, tokens: Tensor, cache: KVCache | SharedPrompts | None) -> Tensor:
        start, length = (0 if cache is None else cache.length), tokens.shape[1]
        cos, sin = rope_tables(self.config, start, length)
        x: Tensor = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, cache)
        if cache is not None:
            cache.length += length
        out: Tensor = self.norm(x)
        return out


class Policy(nn.Module):
    """The language model. Built in bf16, the published form; `working_copy` gives the fp32 form that computes."""

    def __init__(self, config: PolicyConfig | None = None, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.config = config or PolicyConfig()
        self.model = Decoder(self.config)
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)
        self.to(dtype)

    def forward(self, tokens: Tensor, cache: KVCache | SharedPrompts | None = None) -> Tensor:
        """Logits [batch, length, vocabulary] of int64 tokens [batch, length], in the dtype of the parameters."""
        logits: Tensor = self.lm_head(self.model(tokens, cache))
        return logits

    def initialize(self, seed: int) -> None:
        """Random weights: normal, with the two projections into the stream scaled down by depth (GPT-2's rule)."""
        generator = torch.Generator().manual_seed(seed)
        into_stream = ("o_proj.weight", "down_proj.weight")
        for name, weight in self.named_parameters():
            if weight.dim() == 1:
                weight.data.fill_(1.0)
                continue
            std = weight.shape[-1] ** -0.5 if "embed" not in name else 0.5
            if name.endswith(into_stream):
                std /= (2 * self.config.num_layers) ** 0.5
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * std)


def working_copy(policy: Policy) -> Policy:
    """A detached fp32 policy with the values that `policy` has at this moment."""
    with torch.device("meta"):
        copy = Policy(policy.config, dtype=torch.float32)
    copy.load_state_dict({name: w.detach().float() for name, w in policy.state_dict().items()}, assign=True)
    return copy


def load_warm_start(path: Path = WARM_START) -> Policy:
    """The shipped policy: bf16, partly right at the task."""
    policy = Policy()
    policy.load_state_dict(load_file(path))
    return policy


def save_policy(policy: Policy, path: Path) -> None:
    """Write the parameters, in their dtype, as one safetensors file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: w.detach().contiguous() for name, w in policy.state_dict().items()}, path)


@torch.no_grad()
def generate(
    policy: Policy, prompts: Tensor, max_new_tokens: int, temperature: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sample one completion for each row of prompts, an int64 [batch, prompt length] without padding.

    Returns tokens, int64 [batch, n], and their log-probabilities under the sampling distribution, fp32 [batch, n],
    with n <= max_new_tokens (it stops when all rows have ended). What follows a row's end token is PAD with
    log-probability 0. The weights are read once, when the call starts.
    """
    if max_new_tokens < 1 or temperature <= 0:
        raise ValueError("max_new_tokens must be at least 1 and temperature above 0")
    net = working_copy(policy)
    batch, width = prompts.shape
    cache = KVCache.empty(net.config, batch, width + max_new_tokens)
    logits, shared = _read_prompts(net, prompts)
    cache.put_prompts(shared)
    ended = torch.zeros(batch, dtype=torch.bool)
    tokens: list[Tensor] = []
    logprobs: list[Tensor] = []
    while True:
        scores = F.log_softmax(logits / temperature, dim=-1)
        drawn = torch.multinomial(scores.exp(), 1, generator=generator)
        tokens.append(drawn.masked_fill(ended[:, None], PAD))
        logprobs.append(scores.gather(1, drawn).masked_fill(ended[:, None], 0.0))
        ended |= drawn[:, 0] == EOS
        if len(tokens) == max_new_tokens or bool(ended.all()):
            break
        logits = net(drawn, cache)[:, -1]
    return torch.cat(tokens, 1), torch.cat(logprobs, 1)


def completion_logprobs(net: Policy, prompts: Tensor, completions: Tensor, temperature: float) -> Tensor:
    """Log-probabilities [batch, n] of completions [batch, n] after prompts, by full forward passes of `net`."""
    first, shared = _read_prompts(net, prompts)
    logits = first[:, None]
    if completions.shape[1] > 1:
        logits = torch.cat((logits, net(completions[:, :-1], shared)), dim=1)
    scores = F.log_softmax(logits.float() / temperature, dim=-1)
    return scores.gather(2, completions[:, :, None])[:, :, 0]


def _read_prompts(net: Policy, prompts: Tensor) -> tuple[Tensor, SharedPrompts]:
    """Logits [batch, vocabulary] after each prompt, and what its continuation needs; equal prompts are read once."""
    distinct, prompt_of = prompts.unique(dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
    shared = SharedPrompts(prompt_of)
    return net(distinct, shared)[:, -1].index_select(0, prompt_of), shared
