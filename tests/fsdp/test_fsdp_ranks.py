"""Versions that real FSDP2 ranks publish together are those of one process, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsdp_parts import OneProcess, RankProcesses, packs_of, same_chunks, same_manifest


@pytest.mark.parametrize(("ranks", "profile"), [(2, "tight"), (4, "fast")])
def test_ranks_build_the_versions_of_one_process(tmp_path: Path, ranks: int, profile: str) -> None:
    place = tmp_path / "run"
    (place / "files").mkdir(parents=True)
    (place / "files" / "config.json").write_text('{"width": 1024}')
    with RankProcesses(place, ranks, "--profile", profile) as training:
        training.fine("open")
        states = []
        for step, change in enumerate(["train", "train", "disturb", "train"]):
            training.fine(f"{change} {step}")
            training.fine(f"save {step}")
            answers = training.fine("publish")
            assert {answer["version"] for answer in answers} == {step}
            states.append(training.full(str(step)))
        assert {answer["version"] for answer in training.fine("publish")} == {None}  # nothing has changed
        packs = packs_of(place, ranks)
        first = packs[0][0].manifest
        one = OneProcess(tmp_path / "one", first.run, first.epoch, profile, place / "files")
        for step, full in enumerate(states):
            whole = one.publish(full)
            parts = [theirs[step] for theirs in packs]
            same_manifest(parts[0].manifest, whole.manifest)
            same_chunks(parts, whole)
            assert all(pack.count for pack in parts)
        one.close()
