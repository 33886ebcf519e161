"""Keys in each other's place are refused in one line that shows no private key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.cli.main import main
from p2psync.protocol.keys import private_text, public_text

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = public_text(KEY.public_key().public_bytes_raw())
PRIVATE = private_text(KEY).strip()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with both files of a key."""
    (tmp_path / "trainer.key").write_text(PRIVATE + "\n")
    (tmp_path / "trainer.pub").write_text(PUBLIC + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "actor --join http://127.0.0.1:9 --into a --trust trainer.key",
            f"'trainer.key' is a private key, .* {PUBLIC}",
        ),
        (f"actor --join http://127.0.0.1:9 --into a --trust {PRIVATE}", f"this is a private key, .* {PUBLIC}"),
        ("hub --trust trainer.key", "'trainer.key' is a private key"),
        ("verify . --join http://127.0.0.1:9 --trust trainer.key", "'trainer.key' is a private key"),
        ("trainer --watch . --key trainer.pub", "trainer.pub: a public key, which signs nothing; give the file"),
        (f"trainer --watch . --key {PUBLIC}", "a public key is no file's name: give the file of the private key"),
        (f"keys new {PRIVATE}", "a private key's text is no file's name: give the file"),
        ("keys show trainer.pub", "trainer.pub: a public key, which signs nothing"),
    ],
)
def test_a_key_in_the_place_of_another_kind_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    monkeypatch.setattr("sys.argv", ["p2psync", *words.split(" ")])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("p2psync: ")]
    assert ended.value.code in (1, 2)
    assert len(lines) == 1 and PRIVATE[-64:] not in lines[0]
    assert re.search(message, lines[0]), lines[0]
    assert sorted(path.name for path in place.iterdir() if "ed25519" in path.name) == []
