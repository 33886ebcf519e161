"""The page of the peers' protocol, from the table of messages."""

from __future__ import annotations

import inspect

import msgspec

from docs.generate.prose import NOTE, cell, doc, table
from p2psync.protocol import messages

PAGE = """# Peer protocol

{note}

Nodes speak this protocol over TCP with each other. This is protocol number **{number}**. A node refuses a peer of
another number and tells its user which side to update.

## Frames

A frame is a header of {header} bytes and a body. The header holds the body's length (u32) and the message's type
(u8), both little-endian. The body of a chunk is the manifest's short id ({short} bytes), the chunk's index (u32), a
tag (u64) and the chunk's bytes. The body of every other message is a MessagePack array of the message's fields, in
the order below.

- `Hello` is the first message on every connection, once in each direction. After it either side sends what it
  likes.
- A node sends frames over one or several connections to the same peer, and a message may take any of them.
- A receiver checks length and type of a frame before it allocates memory. It closes a connection that breaks a
  rule.
- No message obliges its receiver. A receiver verifies a chunk against the signed manifest before it keeps it,
  decodes it or passes it on.

{bounds}

## Messages

{types}

{sections}

The bytes of a chunk are described in [formats](formats.md). The code is in `p2psync/protocol/messages.py`
(messages) and `p2psync/protocol/frames.py` (parsing)."""


def _section(number: int, kind: type[msgspec.Struct]) -> str:
    rows = [(f"`{one}`", f"`{cell(str(note))}`") for one, note in inspect.get_annotations(kind, eval_str=False).items()]
    return f"### {kind.__name__} (type {number})\n\n{doc(kind)}\n\n" + table(("field", "type"), rows)


def protocol_page() -> str:
    """docs/reference/peer-protocol.md."""
    kinds = {messages.CHUNK_TYPE: messages.Chunk, **messages._TYPES}
    bounds = [(f"`{name}`", f"{value:,}") for name, value in vars(messages).items() if name.startswith("MAX_")]
    return PAGE.format(
        note=NOTE,
        number=messages.PROTOCOL,
        header=messages.FRAME_HEADER.size,
        short=messages.SHORT_ID_BYTES,
        bounds=table(("bound", "value"), bounds),
        types=table(
            ("type", "message", "in short"),
            [(str(n), f"`{k.__name__}`", cell(doc(k).split(". ")[0].rstrip(".") + ".")) for n, k in kinds.items()],
        ),
        sections="\n\n".join(_section(number, kind) for number, kind in kinds.items()),
    )
