"""`p2psync warm`: compile the codec before anything waits for it."""

from __future__ import annotations

import sys
import time

from p2psync.warmup import Warmup, compiled


def warm() -> None:
    """Compile the codec for this machine, once: daemons, the demo and images that start later only load it."""
    began = time.monotonic()
    ready = compiled()
    Warmup().run(lambda seconds: print(f"compiling the codec: {seconds:.0f} s", file=sys.stderr, flush=True))
    print(f"the codec {'was compiled before' if ready else 'is compiled'} ({time.monotonic() - began:.1f} s)")
