"""Resets the signal handling that children of the tests inherit, whatever the tests themselves inherited.

A parent that ignores SIGINT (nohup, a job in the background, some CI) hands that on to all that it starts.
"""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """Gives the child the default action on SIGINT; for `preexec_fn`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore_interrupts() -> None:
    """Makes the child ignore SIGINT, as a job in the background does; for `preexec_fn`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
