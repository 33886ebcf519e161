"""The hub logs members that join and leave, and calls that it refuses."""

from __future__ import annotations

import logging

import pytest

from p2psync.errors import FormatError, TrustError
from p2psync.membership.leases import EndedLease
from p2psync.membership.records import Member, NodeInfo
from p2psync.net.hub_log import LOG_AGAIN_SECONDS, HubLog

INFO = NodeInfo(node="ab" * 16, role="actor", region="eu", host="10.0.0.7", port=7071, name="gpu-7")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> tuple[HubLog, list[float]]:
    caplog.set_level(logging.DEBUG, "p2psync.hub")
    now = [0.0]
    return HubLog(lambda: now[0]), now


def test_nodes_that_come_and_go_are_named(log: tuple[HubLog, list[float]], caplog: pytest.LogCaptureFixture) -> None:
    log[0].joined(INFO)
    for reason in ("left", "expired", "replaced"):
        log[0].ended(EndedLease("lease", Member(info=INFO), reason))  # type: ignore[arg-type]
    assert caplog.messages == [
        "actor gpu-7 abababab (10.0.0.7:7071) joined from region eu",
        "actor gpu-7 abababab (10.0.0.7:7071) left",
        "actor gpu-7 abababab (10.0.0.7:7071) is gone: its lease was not renewed",
    ]


def test_a_wrong_token_is_warned_of_once_a_minute_for_each_host(
    log: tuple[HubLog, list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    hub_log, now = log
    for host in ("10.0.0.8", "10.0.0.8", "10.0.0.9"):
        hub_log.refused(host, "POST /v1/join", TrustError("the join token is wrong"))
    now[0] = LOG_AGAIN_SECONDS
    hub_log.refused("10.0.0.8", "POST /v1/join", TrustError("the join token is wrong"))
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", f"refused POST /v1/join from {host}: the join token is wrong")
        for host in ("10.0.0.8", "10.0.0.9", "10.0.0.8")
    ]


def test_other_refusals_are_details(log: tuple[HubLog, list[float]], caplog: pytest.LogCaptureFixture) -> None:
    log[0].refused("10.0.0.8", "POST /v1/renew", FormatError("the request is not what it should be"))
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
