"""The configuration file: nothing in it is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from p2psync.cli.app import app
from p2psync.cli.config import read_config
from p2psync.cli.main import main
from p2psync.errors import UsageError

COMMANDS = typer.main.get_command(app)


def read(tmp_path: Path, text: str) -> dict[str, object]:
    file = tmp_path / "p2psync.toml"
    file.write_text(text)
    return read_config(file, COMMANDS)  # type: ignore[arg-type]


def test_a_key_is_an_options_name_with_dashes_or_underscores_and_one_string_is_a_list_of_one(tmp_path: Path) -> None:
    text = """
        [trainer]
        hub-port = 7
        anchor_ratio = 0.5
        [actor]
        trust = "key"
        listen = false
        [hub]
        trust = ["one", "two"]
        [bench.swarm]
        seed = 3
        [status]
        url = "http://h:1"
    """
    assert read(tmp_path, text) == {
        "trainer": {"hub_port": "7", "anchor_ratio": "0.5"},
        "actor": {"trust": ["key"], "listen": False},
        "hub": {"trust": ["one", "two"]},
        "bench": {"swarm": {"seed": "3"}},
        "status": {"url": "http://h:1"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[actor]\nuntill = 10", r"\[actor\] has no option untill; did you mean until\?"),
        ("[actr]\njoin = 'x'", r"no command for the table \[actr\]; did you mean actor\?"),
        ("[trainer]\ntokn = 's'", r"\[trainer\] has no option tokn; did you mean token\?"),
        ("[hub]\ntoken-s = 's'", r"did you mean token\?"),
        ("[actor]\nno-listen = true", r"did you mean listen\?"),
        ("[actor]\nqqqq = 1", r"has no option qqqq; there are advertise, base"),
        ("token = 's'", r"token = … is in no command's table: .*did you mean \[trainer\] token\?"),
        ("[bench.swrm]\nseed = 3", r"\[bench.swrm\]; did you mean swarm\?"),
        ("[bench]\nseed = 3", r"\[bench\] holds tables of its commands only"),
        ("[actor]\nport = true", r"\[actor\] port takes a value, not true or false"),
        ("[actor]\nlisten = 'no'", r"\[actor\] listen takes true or false"),
        ("[actor]\njoin = ['x']", r"\[actor\] join takes one value"),
        ("[actor]\ntrust = [['x']]", r"\[actor\] trust takes a list of plain values"),
        ("[actor.join]\nurl = 'x'", r"\[actor\] join is a table"),
        ("[trainer]\nhub-port = 1\nhub_port = 2", r"gives hub_port twice"),
        ("[trainer", "is not a TOML file"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_known_one(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text)


def test_every_option_of_every_command_can_stand_in_a_file_and_loses_no_letter_unseen(tmp_path: Path) -> None:
    for name in ("trainer", "publish", "actor", "hub", "status"):
        for option in COMMANDS.commands[name].params:  # type: ignore[attr-defined]
            if option.name in (None, "help"):
                continue
            value = "true" if getattr(option, "is_flag", False) else '"1"'
            assert option.name in read(tmp_path, f"[{name}]\n{option.name} = {value}")[name]  # type: ignore[operator]
            for at in range(len(option.name)):
                typed = option.name[:at] + option.name[at + 1 :]
                with pytest.raises(UsageError, match=r"no option|not a TOML file"):
                    read(tmp_path, f"[{name}]\n{typed} = {value}")


def test_a_mistyped_table_ends_any_command_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p2psync.toml"
    file.write_text("[trainer]\ntokn = 'open-sesame'\n")
    monkeypatch.setattr("sys.argv", ["p2psync", "--config", str(file), "hub", "--trust", "ab" * 32])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "did you mean token?" in told and "open-sesame" not in told


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path, *words: str) -> str:
    """The one line with which a command refuses its configuration file."""
    monkeypatch.setattr("sys.argv", ["p2psync", "--config", str(file), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 'lots'", "[actor] port='lots' in {}: input should be a valid int"),
        ("port = 70000", "[actor] port='70000' in {}: input should be less than or equal to 65535"),
        ("reader-limit = 'x'", "[actor] reader-limit='x' in {}: input should be a valid "),
        ("trust = ['no-key']", "'no-key' is not a public key"),
        ("base = '/no/where'", "--base /no/where does not exist"),
    ],
)
def test_a_bad_value_is_named_by_its_file_table_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    file = tmp_path / "p2psync.toml"
    given = {"join": "'http://127.0.0.1:9'", "trust": f"'{'ab' * 32}'", "into": f"'{tmp_path}'"}
    key, value = text.split(" = ")
    file.write_text("\n".join(["[actor]", *(f"{name} = {one}" for name, one in (given | {key: value}).items())]))
    line = told(monkeypatch, capsys, file, "actor")
    assert message.format(file) in line and f"[actor] {key}=" in line and str(file) in line


def test_a_flag_that_is_refused_is_not_blamed_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p2psync.toml"
    file.write_text("[actor]\nport = 'lots'\n")
    assert str(file) not in told(monkeypatch, capsys, file, "actor", "--port", "many", "--join", "x", "--trust", "x")


def test_a_secret_of_the_file_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p2psync.toml"
    private = "p2psync-private-ed25519:" + "ab" * 32
    file.write_text(f"[actor]\ntrust = '{private}'\njoin = 'http://127.0.0.1:9'\ninto = '{tmp_path}'\n")
    line = told(monkeypatch, capsys, file, "actor")
    assert "is a private key" in line and f"[actor] trust='…' is set in {file}" in line
    assert private not in line
