"""`import p2psync`: cheap, whole, documented, and in nobody's way."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import p2psync
from p2psync import ActorConfig, HubConfig, LedgerConfig, TrainerConfig, errors

ROOT = Path(__file__).parents[1]
CONFIGS = (ActorConfig, HubConfig, LedgerConfig, TrainerConfig)
#: Modules that importing p2psync must not load.
HEAVY = ("torch", "numpy", "numba", "asyncio", "aiohttp", "msgspec", "cryptography", "p2psync.trainer", "p2psync.actor")
#: Seconds that importing p2psync may take beyond starting Python.
MAX_IMPORT_SECONDS = 0.15


def fresh(code: str, folder: Path) -> str:
    """Returns the output of code run by a fresh interpreter in a folder."""
    command = [sys.executable, "-c", code]
    paths = {"PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A folder with modules of a user's own, by the names that p2psync's folders have."""
    (tmp_path / "trainer.py").write_text("mine = 1\n")
    (tmp_path / "topology.py").write_text("mine = 1\n")
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "__init__.py").write_text("mine = 1\n")
    return tmp_path


def test_importing_is_cheap_and_loads_nothing_heavy(users_folder: Path) -> None:
    code = f"import sys, p2psync\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    assert fresh(code, users_folder) == ""
    timed = "import time\nbegan = time.process_time()\nimport p2psync\nprint(time.process_time() - began)"
    assert min(float(fresh(timed, users_folder)) for _ in range(3)) < MAX_IMPORT_SECONDS


def test_a_users_own_modules_stay_his(users_folder: Path) -> None:
    code = (
        "from p2psync import ActorConfig, LedgerConfig, Publisher, TrainerConfig\n"
        "import actor, topology, trainer\nprint(actor.mine + topology.mine + trainer.mine)"
    )
    assert fresh(code, users_folder) == "3"


@pytest.mark.parametrize("name", sorted(set(p2psync.__all__) - {"__version__"}))
def test_every_public_name_exists_and_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(p2psync, name)), name
    assert name in dir(p2psync)


@pytest.mark.parametrize(("missing", "name"), [("torch", "Publisher"), ("transformers", "PublishCallback")])
def test_a_name_whose_module_is_missing_names_the_extra(missing: str, name: str, tmp_path: Path) -> None:
    code = (
        f"import sys\nsys.modules[{missing!r}] = None\nimport p2psync\n"
        f"try: p2psync.{name}\nexcept ImportError as error: print(error)"
    )
    assert re.fullmatch(rf"p2psync.{name} needs {missing}: pip install 'p2psync\[\w+\]'", fresh(code, tmp_path))


def test_every_error_is_public() -> None:
    own = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.P2PSyncError)
    }
    assert own <= set(p2psync.__all__)


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Publishr'"):
        getattr(p2psync, "Publishr")  # noqa: B009 (as a typing error makes it)


def test_typing_and_loading_name_the_same_modules() -> None:
    source = inspect.getsource(p2psync)
    typed = {
        name.split(" as ")[0].strip(): module
        for module, names in re.findall(r"^    from (\S+) import (.+)$", source, re.MULTILINE)
        for name in names.split(",")
        if module.startswith("p2psync")
    }
    assert typed == p2psync._MODULES


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_field_of_a_configuration_has_a_line_with_its_default(config: type[Any]) -> None:
    documented = dict(re.findall(r"^(\w+): (.+)$", inspect.getdoc(config) or "", re.MULTILINE))
    fields = {field.name: field for field in dataclasses.fields(config)}
    assert list(documented) == list(fields), "one line for each field, in their order"
    for name, field in fields.items():
        default = re.search(r"\[(.*)\]$", documented[name])
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            assert default is not None and default[1] == "required", name
        elif field.default is not dataclasses.MISSING:
            assert default is not None and _same(default[1], field.default), (name, field.default)


def _same(text: str, value: object) -> bool:
    """Returns whether the documentation's words for a default mean this value."""
    words: dict[object, str] = {True: "yes", False: "no", None: "none", "": '""'}
    if isinstance(value, bool) or value is None or value == "":
        return text == words[value]
    if isinstance(value, str):
        return text == value
    scales = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    number, _, unit = text.partition(" ")
    return float(number) * scales.get(unit, 1) == value
