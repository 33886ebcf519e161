"""No message of any type with a number that is not finite is encoded or decoded."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from p2psync.errors import FormatError
from p2psync.membership import records, work
from p2psync.protocol import manifest, messages, plan
from p2psync.protocol.wire import checked, decode_json, decode_msgpack, encode_json, encode_msgpack

ROOT = Path(__file__).parents[2]
MODULES = (messages, records, work, plan, manifest)
#: Every message type but Chunk, whose frame holds integers and bytes.
KINDS = sorted(
    {
        kind
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in (msgspec.Struct, messages.Chunk)
    },
    key=lambda kind: kind.__name__,
)
#: Files that encode or decode messages between machines.
WIRE = (
    *("p2psync/net/hub_wire.py", "p2psync/net/hub_views.py", "p2psync/net/hub_client.py", "p2psync/net/hub_routes.py"),
    *("p2psync/protocol/messages.py", "p2psync/membership/work.py", "trainer/ledger/routes.py", "trainer/rollouts.py"),
    *("trainer/ledger/uploads.py", "p2psync/net/plan_worker.py"),
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
NON_FINITE = st.sampled_from([math.nan, math.inf, -math.inf])


def values(info: inspect.Type, figures: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    """Values of a type whose numbers are all drawn from `figures`."""
    match info:
        case inspect.FloatType():
            return figures
        case inspect.IntType():
            return st.integers(0, 100)
        case inspect.BoolType():
            return st.booleans()
        case inspect.StrType():
            return st.text("ab", max_size=3)
        case inspect.BytesType() | inspect.MemoryViewType() | inspect.ByteArrayType():
            return st.binary(max_size=3)
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.ListType() | inspect.VarTupleType():
            made = st.lists(values(info.item_type, figures), min_size=1, max_size=2)
            return made.map(tuple) if isinstance(info, inspect.VarTupleType) else made
        case inspect.TupleType():
            return st.tuples(*(values(item, figures) for item in info.item_types))
        case inspect.DictType():
            return st.dictionaries(values(info.key_type, figures), values(info.value_type, figures), min_size=1)
        case inspect.UnionType():
            return values(info.types[0], figures)
        case inspect.StructType():
            return st.builds(info.cls, **{field.name: values(field.type, figures) for field in info.fields})
    raise AssertionError(f"a message holds {info}: say how one is drawn")


def struct(kind: type, figures: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    return values(inspect.type_info(kind), figures)


def figures_of(message: object) -> list[float]:
    """Every number of a message."""
    if isinstance(message, float):
        return [message]
    if isinstance(message, msgspec.Struct):
        return [f for name in type(message).__struct_fields__ for f in figures_of(getattr(message, name))]
    if isinstance(message, list | tuple):
        return [f for part in message for f in figures_of(part)]
    return [f for part in message.values() for f in figures_of(part)] if isinstance(message, dict) else []


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_message_is_encoded_only_if_its_numbers_are_finite(kind: type, data: st.DataObject) -> None:
    message = data.draw(struct(kind, st.one_of(FINITE, NON_FINITE)))
    if all(math.isfinite(figure) for figure in figures_of(message)):
        assert msgspec.to_builtins(checked(message)) == msgspec.to_builtins(message)
        assert figures_of(decode_msgpack(encode_msgpack(message), kind)) == figures_of(message)
        assert figures_of(decode_json(encode_json(message), kind)) == figures_of(message)
        return
    for encode in (encode_json, encode_msgpack):
        with pytest.raises(FormatError, match=r"\w+\.\w+: .*(inf|nan) is no finite number"):
            encode(message)
    with pytest.raises(FormatError):
        decode_msgpack(msgspec.msgpack.encode(message), kind)


@given(text=st.sampled_from(["1e999", "-1e999", "NaN", "Infinity", "null"]))
def test_json_refuses_numbers_that_are_not_finite(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_json(f'{{"ttl": {text}, "lease": "a", "revision": 1}}'.encode(), records.Lease)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in messages._NUMBERS])
@given(data=st.data())
def test_peer_messages_with_infinite_numbers_are_refused(kind: Any, data: st.DataObject) -> None:
    message = data.draw(struct(kind, NON_FINITE))
    if figures_of(message):
        with pytest.raises(FormatError):
            messages.encode_control(message)
        with pytest.raises(FormatError, match="is no finite number"):
            messages.decode_control(messages._NUMBERS[kind], msgspec.msgpack.encode(message))


@pytest.mark.parametrize("file", WIRE)
def test_every_message_type_uses_the_checked_codec(file: str) -> None:
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("encode", "decode")
        ):
            assert ast.unparse(node.func.value) not in ("msgspec.json", "msgspec.msgpack"), ast.unparse(node)
