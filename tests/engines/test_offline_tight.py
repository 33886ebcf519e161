"""Deltas of profile tight squashed and inverted, given the weights that they start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offline_parts import Files, Tensor, checkpoints, contents, model, safetensors, scratch, step, successors, write

from p2psync.engines.offline import delta_commands
from p2psync.errors import BaseMismatchError, P2PSyncError, UsageError


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


def chain_of(place: Path, versions: list[Files], profiles: str) -> list[Path]:
    """Write the versions, and the deltas between them: t is tight, f is fast."""
    paths = [write(place / f"v{i}", files) for i, files in enumerate(versions)]
    deltas = []
    for i, short in enumerate(profiles):
        deltas.append(place / f"d{i}")
        delta_commands.diff(paths[i], paths[i + 1], deltas[-1], profile={"t": "tight", "f": "fast"}[short])
    return deltas


def steps(count: int) -> list[Files]:
    versions = [model()]
    for i in range(count):
        versions.append(step(versions[-1], i))
    return versions


@pytest.mark.parametrize("profiles", ["t", "tt", "tft", "ftf", "ttff"])
def test_a_squashed_chain_is_byte_for_byte_the_diff_of_its_ends(place: Path, profiles: str) -> None:
    deltas = chain_of(place, steps(len(profiles)), profiles)
    made = delta_commands.squash(deltas, place / "squashed", base=place / "v0")
    delta_commands.diff(place / "v0", place / f"v{len(profiles)}", place / "ends")
    assert (place / "squashed").read_bytes() == (place / "ends").read_bytes()
    assert made.profile == "fast"
    left = {path.name for path in place.iterdir() if path.name[0] not in "vd"}
    assert left == {"squashed", "ends"}, "scratch files are removed"


def test_an_inverted_tight_delta_is_byte_for_byte_the_diff_the_other_way(place: Path) -> None:
    (there,) = chain_of(place, steps(1), "t")
    delta_commands.invert(there, place / "inverted", base=place / "v0")
    delta_commands.diff(place / "v1", place / "v0", place / "back")
    assert (place / "inverted").read_bytes() == (place / "back").read_bytes()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_tensors_and_files_may_come_go_and_come_back(data: st.DataObject) -> None:
    versions = [data.draw(checkpoints())]
    for _ in range(data.draw(st.integers(1, 4))):
        earlier = data.draw(st.sampled_from(versions))
        versions.append(data.draw(successors(earlier)) if data.draw(st.booleans()) else earlier)
    with scratch() as place:
        profiles = "".join(data.draw(st.sampled_from("tf")) for _ in versions[1:])
        deltas = chain_of(place, versions, profiles)
        delta_commands.squash(deltas, place / "squashed", base=place / "v0")
        delta_commands.diff(place / "v0", place / f"v{len(deltas)}", place / "ends")
        assert (place / "squashed").read_bytes() == (place / "ends").read_bytes()


def test_single_files_are_a_base_too(place: Path) -> None:
    rng = np.random.default_rng(3)
    old = rng.integers(0, 1 << 16, 200_000, np.uint16)
    for i in range(3):
        (place / f"{i}.safetensors").write_bytes(safetensors({"w": Tensor("BF16", (old.size,), old.tobytes())}))
        old[rng.random(old.size) < 0.01] += 1
    for i in range(2):
        delta_commands.diff(
            place / f"{i}.safetensors", place / f"{i + 1}.safetensors", place / f"d{i}", profile="tight"
        )
    delta_commands.squash([place / "d0", place / "d1"], place / "s", base=place / "0.safetensors")
    delta_commands.apply(place / "0.safetensors", place / "s", place / "out.safetensors")
    assert contents(place / "out.safetensors") == contents(place / "2.safetensors")


def refused(place: Path, kind: type[P2PSyncError], deltas: list[Path], base: Path | None) -> str:
    before = sorted(path.name for path in place.iterdir())
    with pytest.raises(kind) as caught:
        delta_commands.squash(deltas, place / "o", base=base)
    assert sorted(path.name for path in place.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tight_chain_without_its_base_or_with_another_is_refused(place: Path) -> None:
    deltas = chain_of(place, steps(3), "ttt")
    assert "--base" in refused(place, UsageError, deltas, None)
    assert "not the base" in refused(place, BaseMismatchError, deltas, place / "v1")
    assert "does not start" in refused(place, BaseMismatchError, [deltas[0], deltas[2]], place / "v0")
    with pytest.raises(UsageError, match="--base"):
        delta_commands.invert(deltas[0], place / "o")


def test_a_base_is_never_written_to_or_over(place: Path) -> None:
    deltas = chain_of(place, steps(2), "tt")
    before = contents(place / "v0")
    delta_commands.squash(deltas, place / "o", base=place / "v0")
    assert contents(place / "v0") == before
    with pytest.raises(UsageError, match="only read"):
        delta_commands.squash(deltas, place / "v0" / "o", base=place / "v0")
