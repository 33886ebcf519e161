"""Parts of the tests of the store and of membership serve here too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / room) for room in ("store", "membership")]
