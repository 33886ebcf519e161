"""Writes the pages that follow from the code: those of docs/reference, and the changelog.

python -m docs.generate            # write them
python -m docs.generate --check    # exit 1 and name those that are out of date
"""

from __future__ import annotations

from pathlib import Path

from docs.generate.commands import cli_page, configuration_page
from docs.generate.hub import hub_page, openapi_file
from docs.generate.prose import NOTE
from docs.generate.protocol import protocol_page
from docs.generate.python import python_page

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def changelog_page(text: str) -> str:
    """The changelog of the repository, as a page of the site: its links begin in docs/."""
    head, rest = text.split("\n", 1)
    return f"{head}\n\n{NOTE}\n{rest}".replace("](docs/", "](")


def pages() -> dict[Path, str]:
    """Returns every generated file and its right contents."""
    return {
        ROOT / "docs" / "changelog.md": changelog_page((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")),
        REFERENCE / "cli.md": cli_page(),
        REFERENCE / "configuration.md": configuration_page(),
        REFERENCE / "hub-api.md": hub_page(),
        REFERENCE / "hub-openapi.json": openapi_file(),
        REFERENCE / "peer-protocol.md": protocol_page(),
        REFERENCE / "python-api.md": python_page(),
    }


def out_of_date() -> list[str]:
    """Returns the generated files that are out of date, relative to the repository."""
    return [
        str(path.relative_to(ROOT))
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
