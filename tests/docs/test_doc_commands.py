"""Every `p2psync …` in the pages is a command that there is, with options that it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import GENERATED, ROOT, all_pages, blocks, prose

from docs.generate.commands import root

#: Pages of history: commands in them may be gone.
HISTORY = ROOT / "docs" / "experiments"
#: Texts that look like command lines but are none.
NO_COMMANDS = {"p2psync tensor v1"}
PAGES = [path for path in all_pages() if not path.is_relative_to(HISTORY) and path not in GENERATED]


def command_lines(path: Path) -> Iterator[str]:
    """The command lines of a page: in blocks, and alone between backquotes."""
    for block in blocks(path):
        if block.language in ("text", "bash", "sh", "ini", ""):
            text = re.sub(r"\\\n\s*", " ", block.text)
            wan = "wan()" in text
            for line in text.splitlines():
                for part in re.split(r"&& | \| ", re.sub(r"\s#\s.*$", "", line)):
                    found = re.match(r"\s*(?:\S+=\S* +)*(?:ExecStart=)?(?:/\S*/)?(p2psync .*)", part)
                    if found:
                        yield found[1]
                    elif wan and part.startswith("wan "):
                        yield f"p2psync {part}"
    for code in re.findall(r"`([^`\n]+)`", re.sub(r"\n(?!\n)", " ", prose(path))):
        if code.startswith("p2psync ") and code not in NO_COMMANDS and not re.search(r"[|:](?! )", code.split()[1]):
            yield code


def takes_value(words: list[str]) -> bool:
    """Returns whether a line ends with an option that takes a value: prose names such options without one."""
    command = root()
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    return any(words[-1] in one.opts and not one.is_flag for one in command.params)


def check(line: str) -> None:
    """Raises what typer's own parser raises for a command that there is not, or an option that it has not."""
    words = [word for word in shlex.split(line.replace("[", "").replace("]", "")) if word not in ("&", "…")]
    words = words[: words.index(">")] if ">" in words else words
    words = [*words, "VALUE"] if takes_value(words) else words
    command, words = root(), words[1:]
    while True:
        context = command.context_class(command, info_name="p2psync")
        if not hasattr(command, "commands"):
            command.make_parser(context).parse_args(words)
            return
        _, rest, _ = command.make_parser(context).parse_args(words)
        if not rest:
            return
        if rest[0] not in command.commands:
            raise LookupError(f"there is no command {rest[0]!r}")
        command, words = command.commands[rest[0]], rest[1:]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_parse(path: Path) -> None:
    wrong = {}
    for line in command_lines(path):
        try:
            check(line)
        except Exception as error:
            wrong[line] = str(error) or type(error).__name__
    assert wrong == {}


def test_the_readme_has_its_command_lines() -> None:
    found = list(command_lines(ROOT / "README.md"))
    assert "p2psync demo" in found
    assert any(line.startswith("p2psync actor --join") for line in found)


@pytest.mark.parametrize("line", ["p2psync actr --join X", "p2psync actor --joined X", "p2psync wan upp F"])
def test_a_wrong_command_line_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"[Nn]o such option|no command"):
        check(line)
