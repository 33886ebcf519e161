"""Fails a run in which a test was skipped for a reason that `MAY_BE_MISSING` does not name.

Only where the environment has `P2PSYNC_NO_SKIPS=1`, as continuous integration does: a test that never runs there proves
nothing.
"""

from __future__ import annotations

import os
import re

import pytest

#: Things that a machine of continuous integration may lack; the reason of a skip must name one of them.
MAY_BE_MISSING = re.compile(
    r"\b(BBR|root|namespaces|mount|kernel module|GPU|second core|not installed|install iproute2)\b"
)


class SkipWatch:
    """Collects skipped tests whose reason names nothing that may be missing, and fails the run for them."""

    def __init__(self) -> None:
        self.unexpected: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test, or its set-up, was skipped."""
        if not hasattr(report, "wasxfail"):
            self._look(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A whole file was skipped."""
        self._look(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that passed otherwise fails."""
        if self.unexpected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line for each."""
        if self.unexpected:
            terminalreporter.section("unexpected skips (P2PSYNC_NO_SKIPS=1)", red=True)
            for nodeid, reason in self.unexpected.items():
                terminalreporter.write_line(f"{nodeid}: {reason}")

    def _look(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped:
            return
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not MAY_BE_MISSING.search(reason):
            self.unexpected[report.nodeid] = reason


def pytest_configure(config: pytest.Config) -> None:
    """Watch skips, once for all workers."""
    if os.environ.get("P2PSYNC_NO_SKIPS") == "1" and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(SkipWatch())
