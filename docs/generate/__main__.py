"""See `docs.generate`."""

from __future__ import annotations

import sys

from docs.generate import out_of_date, pages

if "--check" in sys.argv[1:]:
    if stale := out_of_date():
        sys.exit(f"out of date, run `python -m docs.generate`: {', '.join(stale)}")
else:
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
