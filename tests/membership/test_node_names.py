"""The name of a node for people: bounded, printable, and optional on the wire."""

from __future__ import annotations

import msgspec
import pytest

from p2psync.errors import FormatError
from p2psync.membership.checks import MAX_HOST, check_info
from p2psync.membership.records import NodeInfo

INFO = NodeInfo(node="ab" * 16, role="actor", host="10.0.0.7", port=7071)


@pytest.mark.parametrize("name", ["", "gpu-7", "Maschine im Büro", "x" * MAX_HOST])
def test_a_printable_name_of_bounded_length_is_taken(name: str) -> None:
    check_info(msgspec.structs.replace(INFO, name=name))


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "x" * (MAX_HOST + 1)])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match="a node's name is at most"):
        check_info(msgspec.structs.replace(INFO, name=name))


def test_a_node_without_a_name_is_accepted() -> None:
    fields = {key: value for key, value in msgspec.to_builtins(INFO).items() if key != "name"}
    assert msgspec.convert(fields, NodeInfo) == INFO
