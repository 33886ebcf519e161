"""Several threads may extract at the same time, also when they are the first."""

from __future__ import annotations

import subprocess
import sys

_FIRST_OF_ALL = """
import threading
import numpy as np
from p2psync.delta.extract import extract_block

bits = np.arange(1 << 16, dtype=np.uint16)
barrier = threading.Barrier(8)

def extract():
    barrier.wait()
    for _ in range(50):
        assert extract_block(0, None, bits, 0, bits.size) is not None
        assert extract_block(0, bits.view(np.uint8), None, 0, bits.size) is not None

threads = [threading.Thread(target=extract) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_are_the_first_to_extract_do_not_hurt_each_other() -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST_OF_ALL], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
