"""`p2psync status` shows runs, and why nodes wait."""

from __future__ import annotations

import pytest

from p2psync.cli.status_text import show_status
from p2psync.membership.records import Member, MemberAge, NodeInfo, Status, View

OLD, NEW = "01a221f19048" + "a" * 20, "01a221f1a064" + "b" * 20
WHY = "follows run [bold]: not followed"


def status(*members: tuple[str, str, int, str]) -> Status:
    """A hub of run OLD at version 3, with members: node, run, version, why it waits."""
    shown = [
        Member(info=NodeInfo(node=node * 32, role="actor"), version=version, digest="d" * 32, run=run, epoch=4)
        for node, run, version, _ in members
    ]
    ages = [MemberAge(node=node * 32, joined=1, heard=1, waits=why) for node, _, _, why in members]
    view = View(instance="i", revision=1, run=OLD, epoch=2, claim="trainer X claimed it", head=3, members=shown)
    return Status(view=view, uptime=9, ages=ages)


def text(capsys: pytest.CaptureFixture[str], *members: tuple[str, str, int, str]) -> list[str]:
    show_status(status(*members))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_run_its_age_and_its_holder_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = text(capsys)
    assert lines[:3] == [
        "run 01a221f19048 (created 2026-11-28 11:36:48 UTC)",
        "version 3  epoch 2  hub up 9 s",
        "trainer X claimed it",
    ]


def test_a_node_at_the_newest_version_of_the_run_has_no_note(capsys: pytest.CaptureFixture[str]) -> None:
    lines = text(capsys, ("1", OLD, 3, ""), ("2", "", 3, ""))
    assert not any("←" in line for line in lines)


def test_the_same_number_in_another_run_is_another_version_and_one_reason_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    members = [(node, NEW, 3, WHY) for node in "12345"] + [("6", OLD, 2, "the disk is full"), ("7", OLD, 2, "")]
    lines = text(capsys, *members)
    assert sum("3 ←" in line for line in lines) == 5 and sum("2 ←" in line for line in lines) == 2
    assert [line for line in lines if line.startswith("←")] == [
        f"← 11111111, 22222222, 33333333 and 2 more: version 3 of run 01a221f1a064, epoch 4: {WHY}",
        "← 66666666: the disk is full",
    ]


def test_nodes_are_called_by_their_names_where_they_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    info = NodeInfo(node="7" * 32, role="actor", name="gpu-7")
    found = View(instance="i", revision=1, run=OLD, head=3, members=[Member(info=info, version=2, run=OLD)])
    ages = [MemberAge(node=info.node, joined=1, heard=1, waits="fetching version 3: 42 % of 16.0 GB")]
    show_status(Status(view=found, uptime=9, ages=ages))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("77777777  gpu-7") for line in lines)
    assert "← gpu-7: fetching version 3: 42 % of 16.0 GB" in lines
