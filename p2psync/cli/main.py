"""The `p2psync` command's entry: runs the command line, and ends every error with one line and its exit code.

Nothing that takes long is imported before `main` runs, so that an interrupt ends in one line from the first moment on.
"""

from __future__ import annotations

import sys

from p2psync.errors import P2PSyncError, UsageError
from p2psync.setting_names import named_as_options


def main() -> None:
    """Run the command line and exit.

    Exit codes: 0 success, 1 failure (2 for wrong usage), 130 after an interrupt; an error is one line on stderr.
    """
    try:
        from p2psync.cli.app import run

        with named_as_options():
            code = run()
    except P2PSyncError as error:
        code = _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:
        code = 1
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "p2psync"):
            raise
        code = _fail(f"{package} cannot be imported: {error}; `pip install --force-reinstall {package}` mends it", 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _fail(f"{where}{error.strerror or error}", 1)
    except KeyboardInterrupt:
        code = _fail("interrupted", 130)
    sys.exit(code)


def _fail(line: str, code: int) -> int:
    print(f"p2psync: {line}", file=sys.stderr)
    return code
