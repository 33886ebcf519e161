"""Interprets the names that frameworks and copying tools give to files: unfinished work, training state, shards, steps.

Every function takes names only, relative to some directory and with "/" between parts; nothing here opens a file.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from p2psync.engines.checkpoint.file_names import SAFETENSORS

#: Caches answers by name: a directory is listed five times a second, and names repeat. About 100 bytes an entry.
_cached = lru_cache(maxsize=1 << 15)

#: Names of work in progress, files and directories alike. Downloaders (.crdownload, .aria2, .!qB, `.gstmp`), rsync's
#: hidden `.name.XXXXXX` and `.~tmp~`, s3transfer's `name.1a2B3c4D`, Orbax, Python's tempfile (`tmpab12cd34`).
_UNFINISHED = re.compile(
    r"\.(tmp|temp|part|partial|incomplete|writing|crdownload|download|opdownload|aria2|filepart|gstmp|!qb|!ut)$"
    r"|^_?tmp[-_.]|^tmp[a-z0-9_]{8}$|^\.azdownload-|^\.syncthing\.|^~syncthing~"
    r"|[-_.](tmp|temp|partial|incomplete|unfinished|writing|in[-_]?progress|staging)$"
    r"|[-_.]tmp[-_.]?\d+$|\.tmp[-_.][0-9a-z]+$|\.orbax-checkpoint-tmp|^_\.gstmp"
    r"|^\.[^.].*\.(?!config$|ignore$|sha256$)[a-z0-9]{6}$|^\.~tmp~$|^\.rsync-partial$|\.safetensors\.[0-9a-f]{8}$",
    re.IGNORECASE,
)

#: Training state by the names that HF Trainer, Accelerate, DeepSpeed, Megatron, verl, torchtune and FSDP give it.
_STATE_FILES = (
    "optimizer.*", "optimizer-*", "optimizer_*", "optim.*", "optim_*", "*_optim_states.*", "*_optimizer.safetensors",
    "*-optimizer.safetensors", "scheduler.*", "lr_scheduler.*", "scaler.*", "rng_state*", "random_states*",
    "training_args.*", "trainer_state.json", "zero_to_fp32.py", "latest", "latest_checkpointed_*", "recipe_state.*",
    "dataloader*.json", "*.distcp", "scheduler.bin", "pytorch_model*.bin", "pytorch_model*.bin.index.json",
)  # fmt: skip
#: Training state by kind: pickles and PyTorch's own containers hold no tensors that a delta could read.
_STATE_KINDS = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".distcp")
_STATE_FOLDERS = ("global_step*", "optimizer*", "optim", "recipe_state", "dist_ckpt", "rng*", "*_fsdp_*")
#: Tensor names of optimizers: a safetensors file of only such tensors is training state, whatever it is called.
_STATE_TENSORS = re.compile(r"(^|[./])(exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|square_avg|grad_avg)([./]|$)")

#: Logs are never part of a checkpoint, and do not keep it from being complete while they grow.
_LOG_FILES = ("*.log", "*_log.jsonl", "log.jsonl", "events.out.tfevents.*", "nohup.out", "slurm-*.out")
_LOG_FOLDERS = ("logs", "log", "runs", "wandb", "tensorboard", "mlruns", "__pycache__")

_SHARD = re.compile(r"^(?P<stem>.*?)[-_.]?(?P<number>\d+)[-_]of[-_](?P<total>\d+)\.safetensors$")
_INDEX = re.compile(r"\.safetensors\.index(\.[^.]+)?\.json$")

_STEP_WORDS = "checkpoints?|ckpt|steps?|iter|iteration|epoch|update|version|ver|v|policy|round|rollout|episode|ep|gen"
_STEP = re.compile(rf"(?<![a-z])(?:{_STEP_WORDS})[-_=. ]?(\d+)(?![a-z])", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")

#: Models that train beside the policy (verl, DeepSpeed-Chat, TRL): they are never what actors roll out.
_NOT_POLICY = re.compile(r"^(critic|value|value_model|reward|reward_model|rm|ref|reference|ref_model|teacher)$", re.I)
#: Where frameworks put the policy within a step, best first.
POLICY_FOLDERS = ("actor/huggingface", "policy/huggingface", "huggingface", "hf", "policy", "actor", "model", "weights")
#: Files that say that the directories beside them are components of one model (diffusers, sentence-transformers).
PIPELINE_FILES = ("model_index.json", "modules.json")


class ShardName(NamedTuple):
    """One file of a sharded set: `number` of `total`; files of one set share `stem` and `total`."""

    stem: str
    number: int
    total: int


class StepOrder(NamedTuple):
    """The order of a name: names of one `family` are ordered by their `numbers`, names of different ones by time."""

    family: str
    numbers: tuple[int, ...]


@_cached
def is_unfinished(name: str) -> bool:
    """Returns whether a file or directory of this name is unfinished, being written or left behind."""
    return _UNFINISHED.search(name) is not None


def is_hidden(name: str) -> bool:
    """Returns whether a name starts with a dot: such files are no part of a checkpoint."""
    return name.startswith(".")


@_cached
def is_training_state(name: str) -> bool:
    """Returns whether a file of this name is training state, which is not needed to run the model."""
    lowered = name.lower()
    return lowered.endswith(_STATE_KINDS) or _matches(lowered, _STATE_FILES)


@_cached
def is_training_state_folder(name: str) -> bool:
    """Returns the same for a directory, with everything in it."""
    return _matches(name.lower(), _STATE_FOLDERS)


def is_optimizer(tensor_names: list[str]) -> bool:
    """Returns whether a safetensors file with these tensors holds optimizer state and nothing else."""
    return bool(tensor_names) and all(_STATE_TENSORS.search(name) for name in tensor_names)


@_cached
def is_log(name: str) -> bool:
    """Returns whether a file of this name is a log."""
    return _matches(name.lower(), _LOG_FILES)


@_cached
def is_log_folder(name: str) -> bool:
    """Returns the same for a directory."""
    return name.lower() in _LOG_FOLDERS


@_cached
def is_index(name: str) -> bool:
    """Returns whether a file of this name lists the shards of a safetensors model."""
    return _INDEX.search(name) is not None


@_cached
def shard_of(name: str) -> ShardName | None:
    """Parses a name like `model-00002-of-00003.safetensors`; returns None for any other."""
    found = _SHARD.match(name)
    return ShardName(found["stem"], int(found["number"]), int(found["total"])) if found is not None else None


@_cached
def is_step(name: str) -> bool:
    """Returns whether a directory of this name is a step of a run, like `checkpoint-500`, `epoch=3`, `1200`."""
    return name.isdecimal() or _STEP.search(name) is not None


@_cached
def is_not_policy(name: str) -> bool:
    """Returns whether a directory of this name holds a model that trains beside the policy, such as a critic."""
    return _NOT_POLICY.match(name) is not None


@_cached
def is_best(name: str) -> bool:
    """Returns whether a directory of this name was chosen by quality, so that it is not ordered by time."""
    return re.search(r"(^|[-_.])best([-_.]|$)", name, re.IGNORECASE) is not None


@_cached
def is_single_file_step(name: str) -> bool:
    """Returns whether one safetensors file is a step of a run by itself, like `policy-20.safetensors`."""
    return (
        name.endswith(SAFETENSORS)
        and shard_of(name) is None
        and _STEP.search(name.removesuffix(SAFETENSORS)) is not None
    )


@_cached
def order_of(path: str) -> StepOrder:
    """Returns the order of a checkpoint among those with similar paths.

    In each part of the path, numbers that follow a word such as `step` count, else all numbers.
    """
    family, numbers = [], []
    for part in path.split("/"):
        steps = list(_STEP.finditer(part))
        if steps:
            family.append(_DIGITS.sub("#", part[: steps[0].start(1)]) + "#")
            numbers += [int(step[1]) for step in steps]
        else:
            family.append(_DIGITS.sub("#", part))
            numbers += [int(digits) for digits in _DIGITS.findall(part)]
    return StepOrder("/".join(family), tuple(numbers))


def is_text(name: str) -> bool:
    """Returns whether a name is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(path: str) -> str:
    """Returns a path for messages: escapes bytes that are not UTF-8, and control characters."""
    text = path.encode("utf-8", "backslashreplace").decode()
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _matches(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
