"""Options from the environment: variables that Kubernetes sets are ignored, and errors name their variable."""

from __future__ import annotations

import os
import sys

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from p2psync.cli.app import app
from p2psync.cli.main import main
from p2psync.environment import VLLM_NAMES, Environment, is_service_link
from p2psync.errors import UsageError
from p2psync.protocol.keys import public_text

KEY = public_text(bytes(32))
DAEMONS = ("trainer", "actor", "hub", "publish")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = [(name, option) for name in DAEMONS for option in COMMANDS[name].params if option.name != "help"]
NUMBERS = [(name, option) for name, option in OPTIONS if isinstance(option.default, int | float)]
#: The variables that a Kubernetes service of this name, with two ports, sets in every pod of its namespace.
SERVICE = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "7070",
    "SERVICE_PORT_HUB": "7070",
    "SERVICE_PORT_SWARM": "7071",
    "PORT": "tcp://10.0.0.1:7070",
    "PORT_7070_TCP": "tcp://10.0.0.1:7070",
    "PORT_7070_TCP_PROTO": "tcp",
    "PORT_7070_TCP_PORT": "7070",
    "PORT_7070_TCP_ADDR": "10.0.0.1",
    "PORT_7071_UDP": "udp://10.0.0.1:7071",
}


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """(exit code, stderr) of a command."""
    sys.argv = ["p2psync", *words]
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.fixture(autouse=True)
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    for variable in [name for name in os.environ if name.startswith("P2PSYNC_")]:
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_the_variables_of_a_service_change_nothing_and_cost_one_line(
    daemon: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = told(capsys, daemon, "--no-such-option")
    for name, value in SERVICE.items():
        monkeypatch.setenv(f"P2PSYNC_{daemon.upper()}_{name}", value)
    code, error = told(capsys, daemon, "--no-such-option")
    line, rest = error.split("\n", 1)
    assert (code, rest) == alone
    assert line.startswith(f"p2psync: P2PSYNC_{daemon.upper()}_PORT=tcp://10.0.0.1:7070 is ignored: Kubernetes")


@pytest.mark.parametrize(("daemon", "option"), OPTIONS, ids=lambda part: getattr(part, "name", part))
def test_a_service_link_is_no_option_whichever_it_falls_on(
    daemon: str, option: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variable = f"P2PSYNC_{daemon}_{option.name}".upper()  # type: ignore[attr-defined]
    monkeypatch.setenv(variable, "tcp://10.0.0.1:7071")
    code, error = told(capsys, daemon, "--no-such-option")
    assert code == 2
    assert f"{variable}=tcp://10.0.0.1:7071 is ignored" in error
    assert variable not in os.environ


@pytest.mark.parametrize(("daemon", "option"), NUMBERS, ids=lambda part: getattr(part, "name", part))
def test_a_bad_variable_is_named_with_its_value_and_the_expected_form(
    daemon: str, option: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variable = f"P2PSYNC_{daemon}_{option.name}".upper()  # type: ignore[attr-defined]
    monkeypatch.setenv(variable, "lots")
    required = {"trainer": ["--watch", "."], "publish": [".", "--to", "x", "--key", "k", "--store", "s"]}
    code, error = told(
        capsys, daemon, *required.get(daemon, ["--trust", "k", *["--join", "x"][: 2 * (daemon == "actor")]])
    )
    assert code == 2
    assert error.startswith(f"p2psync: {variable}='lots' in the environment: input should be a valid ")
    assert error.count("\n") == 1


def test_a_number_out_of_bounds_is_refused_with_the_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("P2PSYNC_THREADS", "0")
    assert (
        "P2PSYNC_THREADS='0' in the environment: input should be greater than or equal to 1" in told(capsys, "hub")[1]
    )


def test_a_value_that_a_command_refuses_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("P2PSYNC_ACTOR_JOIN", "nonsense")
    monkeypatch.setenv("P2PSYNC_ACTOR_TRUST", "no-key")
    code, error = told(capsys, "actor", "--into", "x")
    assert code == 2 and "P2PSYNC_ACTOR_TRUST='no-key' is set in the environment" in error
    monkeypatch.setenv("P2PSYNC_ACTOR_TRUST", KEY)
    code, error = told(capsys, "actor", "--into", "x")
    assert code == 2 and "P2PSYNC_ACTOR_JOIN='nonsense' is set in the environment" in error


def test_a_flag_that_is_refused_is_not_blamed_on_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("P2PSYNC_ACTOR_TRUST", KEY)
    assert "environment" not in told(capsys, "actor", "--trust", "no-key", "--join", "x", "--into", "x")[1]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("P2PSYNC_ACTR_JOIN", "P2PSYNC_ACTOR_JOIN"),
        ("P2PSYNC_ACTOR_TRSUT", "P2PSYNC_ACTOR_TRUST"),
        ("P2PSYNC_JOIN", "P2PSYNC_ACTOR_JOIN"),
        ("P2PSYNC_TRAINER_TOKN", "P2PSYNC_TRAINER_TOKEN"),
        ("P2PSYNC_THREDS", "P2PSYNC_THREADS"),
        ("P2PSYNC_BENCH_SWARM_SEDE", "P2PSYNC_BENCH_SWARM_SEED"),
    ],
)
def test_a_mistyped_variable_is_told_once_with_the_nearest_name(
    typed: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = told(capsys, "actor", "--no-such-option")
    monkeypatch.setenv(typed, "open-sesame")
    code, error = told(capsys, "actor", "--no-such-option")
    line, rest = error.split("\n", 1)
    assert (code, rest) == alone
    assert line == f"p2psync: {typed} in the environment is ignored: it is no option; did you mean {meant}?"


@pytest.mark.parametrize(
    "variable",
    ["P2PSYNC_ACTOR_JOIN", "P2PSYNC_VLLM_TRUST", "P2PSYNC_NO_SKIPS", "P2PSYNC_HUB_SERVICE_HOST", "P2PSYNC_PORT"],
)
def test_known_unlike_and_kubernetes_variables_are_told_nothing_about(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = told(capsys, "hub", "--no-such-option")
    monkeypatch.setenv(variable, "x")
    assert told(capsys, "hub", "--no-such-option") == alone


def test_an_engine_tells_of_a_mistyped_variable() -> None:
    lines: list[str] = []
    variables = dict.fromkeys((f"P2PSYNC_VLLM_{name}" for name in (*VLLM_NAMES, "JION", "PORT_7070_TCP")), "x")
    Environment("P2PSYNC_VLLM_", variables, lines.append).tell_unknown(VLLM_NAMES)
    assert lines == [
        "P2PSYNC_VLLM_JION in the environment is ignored: it is no option; did you mean P2PSYNC_VLLM_JOIN?"
    ]


LINKS = st.builds("{}://{}:{}".format, st.sampled_from(["tcp", "udp", "TCP"]), st.ip_addresses(), st.integers(1, 65535))


@given(link=LINKS)
def test_an_engine_ignores_a_service_link_wherever_it_stands(link: str) -> None:
    lines: list[str] = []
    given = Environment("P2PSYNC_VLLM_", {"P2PSYNC_VLLM_PORT": link, "P2PSYNC_VLLM_JOIN": link}, lines.append)
    assert is_service_link(link)
    assert given.number("PORT", 7, -1, 65535) == 7
    assert given.text("JOIN", "none") == "none"
    assert [line.split("=")[0] for line in lines] == ["P2PSYNC_VLLM_PORT", "P2PSYNC_VLLM_JOIN"]


@given(text=st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text))
def test_an_engine_takes_a_number_or_names_the_variable(text: str) -> None:
    given = Environment("P2PSYNC_VLLM_", {"P2PSYNC_VLLM_PORT": text}, lambda line: None)
    try:
        assert -1 <= given.number("PORT", 0, -1, 65535) <= 65535
    except UsageError as error:
        assert str(error).startswith(f"P2PSYNC_VLLM_PORT={text.strip()!r} in the environment: it should be a whole")


def test_an_empty_variable_is_none() -> None:
    given = Environment("P2PSYNC_VLLM_", {"P2PSYNC_VLLM_PORT": "", "P2PSYNC_VLLM_HOST": ""}, lambda line: None)
    assert (given.number("PORT", 3, -1, 65535), given.text("HOST", "here")) == (3, "here")
