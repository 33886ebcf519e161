"""Writes the pages of docs/reference that follow from the code.

python -m docs.generate            # write them
python -m docs.generate --check    # exit 1 and name those that are out of date
"""

from __future__ import annotations

from pathlib import Path

from docs.generate.commands import cli_page, configuration_page
from docs.generate.hub import hub_page, openapi_file
from docs.generate.protocol import protocol_page
from docs.generate.python import python_page

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def pages() -> dict[Path, str]:
    """Every generated file and what it must hold."""
    return {
        REFERENCE / "cli.md": cli_page(),
        REFERENCE / "configuration.md": configuration_page(),
        REFERENCE / "hub-api.md": hub_page(),
        REFERENCE / "hub-openapi.json": openapi_file(),
        REFERENCE / "peer-protocol.md": protocol_page(),
        REFERENCE / "python-api.md": python_page(),
    }


def out_of_date() -> list[str]:
    """The generated files, relative to the repository, that do not hold what they must."""
    return [
        str(path.relative_to(ROOT))
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
