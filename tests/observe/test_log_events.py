"""Events in logs: every node has a logger under `p2psync`, and records carry their events."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync import ActorConfig, ActorNode, TrainerConfig, TrainerNode
from p2psync.observe.events import Note, Published, Trouble
from p2psync.observe.log_events import EventLog
from p2psync.observe.log_format import JsonFormatter, TextFormatter

PUBLISHED = Published(3, "ab" * 16, False, 1, 100, 10, 1000, 1, 0.5, 1.0, checkpoint="ck/step-3")


def test_nodes_log_under_p2psync_without_a_listener(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "p2psync")
    config = ActorConfig(hub_url="http://127.0.0.1:9", trusted=bytes(32), store=tmp_path)  # type: ignore[arg-type]
    ActorNode(config, lambda store: None)._emit(Note("one"))  # type: ignore[arg-type,return-value]
    TrainerNode(TrainerConfig(store=tmp_path, key=Ed25519PrivateKey.generate()))._emit(Trouble("two"))
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("p2psync.actor", "INFO", "one"),
        ("p2psync.trainer", "WARNING", "two"),
    ]


def test_a_json_line_begins_with_its_type_and_holds_time_severity_fields_and_the_line_for_people(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "p2psync")
    EventLog("p2psync.test")(PUBLISHED)
    line = JsonFormatter().format(caplog.records[0])
    assert line.startswith('{"type":"Published","time":"')
    found = json.loads(line)
    assert (found["severity"], found["version"], found["checkpoint"]) == ("info", 3, "ck/step-3")
    assert found["message"] == PUBLISHED.line() and "version 3 from ck/step-3" in PUBLISHED.line()


def test_a_record_without_an_event_is_a_line_of_the_same_kind() -> None:
    record = logging.LogRecord("p2psync.hub", logging.WARNING, "", 0, "refused %s", ("a token",), None)
    record.created = 0.0
    assert json.loads(JsonFormatter().format(record)) == {
        "type": "p2psync.hub",
        "time": "1970-01-01T00:00:00.000Z",
        "severity": "warning",
        "message": "refused a token",
    }
    assert TextFormatter(names=True).format(record) == "1970-01-01T00:00:00.000Z WARNING p2psync.hub: refused a token"
