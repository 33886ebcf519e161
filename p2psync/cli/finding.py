"""The result of one check of `p2psync doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "could be better", "missing"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. mend: the one command or step that makes it better; empty if it is ok.

    needed: p2psync does not run at all where this is missing.
    """

    name: str
    state: State
    detail: str
    mend: str = ""
    needed: bool = False
