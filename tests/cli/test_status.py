"""`p2psync status`: addresses stay whole, whatever the terminal's width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from p2psync.cli import status_text
from p2psync.membership.records import HUB_HOST, Member, MemberAge, NodeInfo, Status, View

HOSTS = st.one_of(st.ip_addresses().map(str), st.just("node-with-a-long-name.region.example"), st.just(HUB_HOST))


def swarm(hosts: list[str], regions: list[str]) -> Status:
    """Nodes at these hosts."""
    infos = [
        NodeInfo(node=f"{i:032x}", role="actor", region=region, host=host, port=60000 + i)
        for i, (host, region) in enumerate(zip(hosts, regions, strict=True))
    ]
    members = [Member(info=info, version=3, digest="d" * 32, fetch_rate=12_345_678) for info in infos]
    ages = [MemberAge(node=info.node, joined=9, heard=1, up=123.4, down=567.8) for info in infos]
    return Status(view=View(instance="i", revision=1, run="a" * 32, head=3, members=members), uptime=100, ages=ages)


def shown(found: Status, width: int, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """The status as a terminal of this width shows it."""
    out = io.StringIO()
    made = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda **options: made)
    status_text.show_status(found, "hub.example")
    return out.getvalue()


@given(
    hosts=st.lists(HOSTS, min_size=1, max_size=4), region=st.sampled_from(["", "eu", "[bold]", "a-region-of-64-" * 4])
)
def test_addresses_stand_whole_in_eighty_columns(hosts: list[str], region: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        text = shown(swarm(hosts, [region] * len(hosts)), 80, True, patch)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    for i, host in enumerate(hosts):
        host = "hub.example" if host == HUB_HOST else host
        assert (f"[{host}]:{60000 + i}" if ":" in host else f"{host}:{60000 + i}") in text


def test_columns_left_out_of_eighty_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(swarm(["2001:db8:1:2:3:4:5:6"], ["eu-west"]), 80, True, monkeypatch)
    assert "not shown here: digest, fetches at, up/down; --json - has all" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_all_columns_are_shown_on_wide_terminals_and_in_pipes(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    text = shown(swarm(["2001:db8:1:2:3:4:5:6"], ["eu-west"]), 200 if terminal else 80, terminal, monkeypatch)
    assert "not shown" not in text
    row = next(line for line in text.splitlines() if "2001" in line)
    assert "dddddddddddd" in row and "123.4/567.8 Mbit/s" in row and "eu-west" in row
