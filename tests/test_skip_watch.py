"""The skip watch, on with P2PSYNC_NO_SKIPS=1, fails a run for skips whose reason names nothing that may be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory of tests under the suite's watch."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("P2PSYNC_NO_SKIPS", "1")
    tests = str(Path(__file__).parent)
    pytester.makeconftest(f"import sys\nsys.path.insert(0, {tests!r})\nfrom skip_watch import pytest_configure")
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    return pytester


def skipped(reason: str) -> str:
    return f"@pytest.mark.skip(reason={reason!r})\ndef test_that_is_skipped(): pass"


def outcome(run: pytest.Pytester, body: str, *options: str) -> tuple[int, str]:
    """Exit code and output of a file with this test and one that passes."""
    run.makepyfile(f"import pytest\n{body}\ndef test_that_runs(): pass")
    result = run.runpytest_inprocess("-q", "-p", "no:cacheprovider", *options)
    return int(result.ret), result.stdout.str()


@pytest.mark.parametrize("reason", ["this kernel does not offer BBR", "needs root", "xdelta3 skipped: not installed"])
def test_a_skip_for_a_thing_that_may_be_missing_passes(run: pytest.Pytester, reason: str) -> None:
    assert outcome(run, skipped(reason))[0] == pytest.ExitCode.OK


@pytest.mark.parametrize(
    "body",
    [skipped("flaky today"), "def test_that_is_skipped(): pytest.skip('flaky today')"],
    ids=["marked", "inside"],
)
def test_a_skip_for_any_other_reason_fails_the_run_and_is_named(run: pytest.Pytester, body: str) -> None:
    code, output = outcome(run, body)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "unexpected skips" in output and "test_that_is_skipped: Skipped: flaky today" in output


def test_a_file_that_is_skipped_whole_fails_the_run(run: pytest.Pytester) -> None:
    run.makepyfile(test_other="def test_that_runs(): pass")
    code, output = outcome(run, "pytest.skip('flaky today', allow_module_level=True)")
    assert code == pytest.ExitCode.TESTS_FAILED and "Skipped: flaky today" in output


def test_a_skip_in_a_worker_fails_the_run(run: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    code, output = outcome(run, skipped("flaky today"), "-n", "1")
    assert code == pytest.ExitCode.TESTS_FAILED and "Skipped: flaky today" in output


def test_skips_are_not_judged_unless_asked(run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P2PSYNC_NO_SKIPS")
    assert outcome(run, skipped("flaky today"))[0] == pytest.ExitCode.OK
