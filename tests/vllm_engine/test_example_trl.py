"""The example of TRL's GRPOTrainer over p2psync, with two vLLM servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_parts import ENVIRONMENT, ONE_PROCESS, ONE_PROCESS_FLAGS, Server, free_port, save

pytestmark = pytest.mark.vllm
EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_grpo.py"
LIMIT = 600


def test_trl_trains_with_two_servers_that_end_with_its_weights(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is not installed: the extra trl")
    from p2psync.cli.keys import make_key

    model = save("qwen3", tmp_path / "0")
    save_digits(model)
    make_key(tmp_path / "key")
    flags = {"logprobs_mode": "processed_logprobs"} | ONE_PROCESS_FLAGS
    servers = [Server(model, tmp_path / f"server-{number}.log", flags, **ONE_PROCESS) for number in range(2)]
    try:
        for server in servers:
            server.ready()
        urls = [server.url for server in servers]
        command = [sys.executable, EXAMPLE, "--model", model, "--key", tmp_path / "key", "--store", tmp_path / "run"]
        command += ["--servers", *urls, "--steps", "2", "--save", tmp_path / "last"]
        command += ["--host", "127.0.0.1", "--hub-port", str(free_port()), "--port", "0"]
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=LIMIT, env=os.environ | ENVIRONMENT
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        assert re.findall(r"published version (\d)", done.stdout) == ["0", "1", "2"]
        for server in servers:
            live = server.ask("weight_checker", {"action": "checksum"})["checksums"]
            assert server.ask("weight_info") == {"weight_version": "2"}
            call = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "last")}}
            server.ask("collective_rpc", call)
            assert server.ask("weight_checker", {"action": "checksum"})["checksums"] == live
    finally:
        for server in servers:
            server.close()


def save_digits(into: Path) -> None:
    """A tokenizer of characters, so that sums can be written."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "\n", " ", "+", "=", *map(str, range(10)), *(f"<{k}>" for k in range(500))]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<pad>", eos_token="<pad>", pad_token="<pad>"
    ).save_pretrained(into)
