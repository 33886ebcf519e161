"""What children of the tests inherit of signals, whatever the tests themselves inherited.

A parent that ignores SIGINT (nohup, a job in the background, some CI) hands that on to all that it starts.
"""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """For `preexec_fn`: SIGINT does in the child what it does in a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore_interrupts() -> None:
    """For `preexec_fn`: the child is started as in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
