"""The trailer names a stream's versions, however the stream is split into parts."""

from __future__ import annotations

import random

import pytest

from p2psync.actor.demand import VersionSpan
from p2psync.actor.stream_trailer import EVENT_STREAM, JSON_LINES, StreamTrailer, read_trailer

FOUND = VersionSpan(start_version=3, start_digest="03" * 16, end_version=4, end_digest="04" * 16, commits=1)
EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
SENTINEL = b"data: [DONE]\n\n"


def sent(content_type: str, *parts: bytes) -> bytes:
    mark = StreamTrailer(content_type)
    return b"".join(mark.feed(part) for part in parts) + mark.finish(FOUND)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("stream", [3 * EVENT + SENTINEL, 3 * EVENT, b"", SENTINEL, EVENT + b"data: [DON"])
def test_an_event_stream_gets_a_comment_before_the_sentinel(stream: bytes, seed: int) -> None:
    rng = random.Random(seed)
    cuts = sorted(rng.choices(range(len(stream) + 1), k=rng.randint(0, 8)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    got = sent(EVENT_STREAM, *parts)
    assert read_trailer(got) == FOUND
    assert got.endswith(SENTINEL) == stream.endswith(SENTINEL)
    kept = b"".join(line for line in got.splitlines(keepends=True) if not line.startswith(b": p2psync"))
    assert kept.replace(b"\n", b"") == stream.replace(b"\n", b"")


def test_events_are_forwarded_at_once() -> None:
    mark = StreamTrailer(EVENT_STREAM)
    for part in (EVENT, b"data: {", b'"x":1}\n', b"\n", b"data: [BEGUN]\n\n"):
        assert mark.feed(part) == part


def test_a_sentinel_within_a_line_is_ignored() -> None:
    stream = b'data: {"text":"data: [DONE]"}\n\n'
    assert sent(EVENT_STREAM, stream[:9], stream[9:]).startswith(stream)


@pytest.mark.parametrize("stream", [b'{"a":1}\n{"a":2}\n', b'{"a":1}\n{"a":2}', b""])
def test_json_lines_get_one_more_line(stream: bytes) -> None:
    got = sent(JSON_LINES, stream)
    assert got.splitlines()[:-1] == stream.splitlines()
    assert got.endswith(b"}}\n") and read_trailer(got) == FOUND


@pytest.mark.parametrize("stream", [b"", b"data: x\n\n", b": p2psync {}\n\n", b': p2psync {"start_version":"x"}\n'])
def test_a_stream_without_trailer_reads_as_none(stream: bytes) -> None:
    assert read_trailer(stream) is None


def test_other_content_types_cannot_carry_a_trailer() -> None:
    assert (
        StreamTrailer.can_carry(EVENT_STREAM)
        and StreamTrailer.can_carry(JSON_LINES)
        and not StreamTrailer.can_carry("application/octet-stream")
    )
