"""Two processes run the whole suite where pytest-xdist is installed, one runs whatever else is asked for.

A file's tests stay together, since they share slow fixtures. Emulated networks and races of real processes have
the same worker: they time things, and wait for each other rather than for cores.

`skip_watch` explains `P2PSYNC_NO_SKIPS=1`.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from skip_watch import pytest_configure as pytest_configure

from p2psync.warmup import Warmup

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

WORKERS = 2
#: Prefixes of the ids of tests of which only one may run at a time.
ALONE = (
    "tests/topology/test_emulator",
    "tests/topology/test_probing_wan",
    "tests/bench/test_bench_",
    "tests/daemons/test_daemons_planned",
)
#: Prefixes of the ids of tests that start first: long ones, so that none is left for one worker at the end, and those
#: that compile code for many others.
ORDER = (
    *("tests/topology/test_emulator", "tests/topology/test_probing_wan"),
    *("tests/delta/test_warm", "tests/delta/"),
    *ALONE,
    "tests/daemons/",
)

with suppress(ImportError):  # where vLLM is tested there is no Hypothesis
    from hypothesis import settings

    # Every run draws the same examples: a failure is of the change at hand, and comes again.
    settings.register_profile("suite", derandomize=True, deadline=None)
    settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """`python -m pytest` is `python -m pytest -n 2`."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    alone = config.option.usepdb or config.option.collectonly or "PYTEST_XDIST_WORKER" in os.environ
    if whole and not alone and config.pluginmanager.hasplugin("xdist") and config.option.numprocesses is None:
        config.option.numprocesses = WORKERS
    if whole and not alone:
        Warmup().run(
            lambda seconds: print(f"compiling the codec: {seconds:.0f} s", flush=True)
        )  # once, for all workers


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts tests by `ORDER`; the others come last, in their own order."""
    items.sort(key=lambda item: next((i for i, start in enumerate(ORDER) if item.nodeid.startswith(start)), len(ORDER)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Gives whole files, in the order of collection, to any free worker."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "alone" if nodeid.startswith(ALONE) else nodeid.split("::", 1)[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiles the daemons' code into numba's cache, since daemons that start together would each compile all of it."""
    from p2psync.delta.warm import warm

    place = tmp_path_factory.getbasetemp()
    with (place.parent / "p2psync-compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        warm()
