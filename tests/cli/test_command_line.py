"""The command line as a whole: help, version, wrong usage, completion, the log's level and format."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest
import typer

from p2psync.cli import logs
from p2psync.cli.app import ENTRIES, app
from p2psync.cli.lazy import all_commands
from p2psync.cli.main import main
from p2psync.observe.events import Note, Trouble

#: Modules that no help, version or usage error may import.
HEAVY = ("torch", "numpy", "numba", "asyncio", "aiohttp", "uvloop", "rich.console", "cryptography", "msgspec")
COMMANDS = dict(all_commands(typer.main.get_command(app)))


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Restores the log's handlers after each test."""
    logger = logging.getLogger("p2psync")
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def p2psync(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command in this process."""
    monkeypatch.setattr("sys.argv", ["p2psync", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


@pytest.mark.parametrize(
    "words",
    [("--help",), ("--version",), ("trainer", "--help"), ("actor", "--bogus"), ("status", "--bogus"), ("hubb",)],
)
def test_help_version_and_wrong_usage_load_nothing_heavy(words: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom p2psync.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    # Variables that may be mistyped options are compared with those of all commands, which are imported for it.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("P2PSYNC_")}
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, env=plain)
    assert done.stderr.splitlines()[-1] == ""


def test_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import p2psync as package

    assert p2psync(monkeypatch, capsys, "--version") == (0, f"p2psync {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("hubb",), "no such command 'hubb' (did you mean 'hub'?); `p2psync --help` tells more"),
        (
            ("hub", "--trst", "x"),
            "no such option: --trst (Possible options: --port, --trust, --ttl); `p2psync hub --help` tells more",
        ),
        (("hub",), "missing option '--trust'; `p2psync hub --help` tells more"),
        (("delta", "info"), "missing argument 'D'; `p2psync delta info --help` tells more"),
        (("-v", "-q", "doctor"), "--verbose and --quiet exclude each other: give one of them"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert p2psync(monkeypatch, capsys, *words) == (2, "", f"p2psync: {message}\n")


def test_help_documents_the_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = p2psync(monkeypatch, capsys, "--help")
    assert code == 0
    for exit_code, meaning in ((0, "success"), (1, "failure"), (2, "wrong usage"), (130, "interrupted")):
        assert re.search(rf"^ +{exit_code} +{meaning}", out, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_keeps_text_in_brackets_and_names_the_variables(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = p2psync(monkeypatch, capsys, *name.split(), "--help")
    assert code == 0
    shown = " ".join(out.split())
    for option in COMMANDS[name].params:
        for bracketed in re.findall(r"\[[^\]]*\]", getattr(option, "help", None) or ""):
            assert bracketed in shown
    if len(COMMANDS[name].params) > 1:
        assert f"P2PSYNC_{name.replace(' ', '_').upper()}_" in shown


def test_the_list_of_commands_agrees_with_the_help_of_each() -> None:
    group = typer.main.get_command(app)
    for name, entry in ENTRIES.items():
        told = group.commands[name].help  # type: ignore[attr-defined]
        words, own = set(re.findall(r"\w{4,}", entry.help.lower())), set(re.findall(r"\w{4,}", told.lower()))
        assert len(words & own) >= min(2, len(words)), (name, entry.help, told)


def test_completion_offers_commands_and_options() -> None:
    for line, offered in (("p2psync st", "status"), ("p2psync wan p", "plan"), ("p2psync actor --jo", "--join")):
        done = subprocess.run(
            [sys.executable, "-m", "p2psync"],
            env={"_P2PSYNC_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
            | {"PYTHONPATH": ":".join(sys.path), "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert offered in done.stdout.split(), (line, done)


def test_show_completion_prints_a_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    code, out, _ = p2psync(monkeypatch, capsys, "--show-completion")
    assert code == 0 and "_P2PSYNC_COMPLETE=complete_bash" in out


def lines(capsys: pytest.CaptureFixture[str], form: logs.Format, **levels: bool) -> list[str]:
    """The log's lines for a note, a warning and a debug record of the library."""
    from p2psync.cli.daemon import EventOutput

    logs.set_up(logs.level_of(**({"verbose": False, "quiet": False} | levels)), form)
    show = EventOutput(None)
    show(Note("all is well"))
    show(Trouble("the disk is full"))
    logging.getLogger("p2psync.hub").debug("a detail")
    return capsys.readouterr().err.splitlines()


def test_a_log_that_is_no_terminal_has_time_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    note, trouble = lines(capsys, logs.Format.text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    all is well", note)
    assert trouble.endswith("Z WARNING the disk is full")


def test_a_log_of_json_lines_has_time_severity_event_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    note, trouble = (json.loads(line) for line in lines(capsys, logs.Format.json))
    assert datetime.fromisoformat(note.pop("time")).utcoffset() is not None
    assert note == {"severity": "info", "type": "Note", "message": "all is well"}
    assert (trouble["severity"], trouble["type"]) == ("warning", "Trouble")


def test_quiet_shows_warnings_alone_and_verbose_shows_details(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[-1] for line in lines(capsys, logs.Format.text, quiet=True)] == ["full"]
    assert lines(capsys, logs.Format.text, verbose=True)[-1].endswith("DEBUG   p2psync.hub: a detail")


def test_an_interrupt_during_the_import_of_a_command_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str, entry: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("p2psync.cli.lazy._load", interrupt)
    assert p2psync(monkeypatch, capsys, "verify", ".") == (130, "", "p2psync: interrupted\n")


def test_a_package_that_cannot_be_imported_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def miss(name: str, entry: object) -> None:
        raise ModuleNotFoundError("No module named 'numba.core'", name="numba.core")

    monkeypatch.setattr("p2psync.cli.lazy._load", miss)
    code, _, told = p2psync(monkeypatch, capsys, "verify", ".")
    assert code == 1 and told.count("\n") == 1
    assert told.startswith("p2psync: numba cannot be imported: No module named 'numba.core'; `pip install")


def test_an_import_error_within_the_package_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, entry: object) -> None:
        raise ImportError("cannot import name 'x'", name="p2psync.cli.verify")

    monkeypatch.setattr("p2psync.cli.lazy._load", fail)
    monkeypatch.setattr("sys.argv", ["p2psync", "verify", "."])
    with pytest.raises(ImportError, match="cannot import name"):
        main()
