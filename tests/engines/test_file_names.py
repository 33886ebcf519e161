"""File names from manifests never lead out of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psync.engines.checkpoint.file_names import check_file_name
from p2psync.errors import FormatError

HOSTILE = [
    "", "/", "/etc/passwd", "..", "../x", "a/../b", "a/..", ".", "./a", "a//b", "a/", "a\0b", "a\\b", "..\\x",
    ".hidden", "a/.git/config", "a\nb", "x" * 256, "é" * 128, "/".join("x" * 9 for _ in range(300)), "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(FormatError):
        check_file_name(name)


@pytest.mark.parametrize("name", ["model.safetensors", "onnx/model (1).bin", "a/b/c..d", "é" * 127, "config.json"])
def test_plain_names_are_accepted_unchanged(name: str) -> None:
    assert check_file_name(name) == name


@given(st.text(alphabet=st.sampled_from("./\\\0a~é\n"), max_size=12))
def test_accepted_names_stay_within_the_root(name: str) -> None:
    try:
        check_file_name(name)
    except FormatError:
        return
    root = Path("/root/of/checkpoint")
    assert (root / name).resolve().is_relative_to(root)
    assert Path(name).as_posix() == name
