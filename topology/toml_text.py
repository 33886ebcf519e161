"""Writes a topology as the TOML file that `topology.model` reads."""

from __future__ import annotations

import json

import msgspec

from p2psync.topology.model import Topology


def topology_toml(topology: Topology) -> str:
    """Returns the file's text: settings that equal their defaults are left out."""
    lines = [f"trainer = {json.dumps(topology.trainer)}"]
    if topology.blocked:
        lines.append(f"blocked = {json.dumps([list(pair) for pair in topology.blocked])}")
    for title, tables in (("region", topology.region), ("host", topology.host)):
        for name, table in tables.items():
            lines += ["", f"[{title}.{name}]", *_settings(table)]
    for title, rows in (("link", topology.link), ("event", topology.event)):
        for row in rows:
            lines += ["", f"[[{title}]]", *_settings(row)]
    return "\n".join(lines) + "\n"


def _settings(table: msgspec.Struct) -> list[str]:
    fields = msgspec.structs.fields(type(table))
    values = {field.encode_name: (getattr(table, field.name), field.default) for field in fields}
    return [
        f"{name} = {json.dumps(msgspec.to_builtins(value))}"
        for name, (value, default) in values.items()
        if value is not None and value != default
    ]
