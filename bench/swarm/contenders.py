"""Who may race, and what each needs."""

from __future__ import annotations

import importlib.util
import shutil

from p2psync.bench.swarm.aria2 import Aria2
from p2psync.bench.swarm.libtorrent import Libtorrent
from p2psync.bench.swarm.p2psync import P2PSync
from p2psync.bench.swarm.rsync import Rsync
from p2psync.bench.swarm.trial import Trial

P2PSYNC = "p2psync"
TRIALS: dict[str, type[Trial]] = {P2PSYNC: P2PSync, "aria2": Aria2, "libtorrent": Libtorrent, "rsync": Rsync}
BASELINES = tuple(name for name in TRIALS if name != P2PSYNC)


def missing(name: str) -> str:
    """Why a contender cannot run here, in one line; "" if it can."""
    if name == "aria2" and shutil.which("aria2c") is None:
        return "there is no aria2c: apt-get install aria2"
    if name == "rsync" and shutil.which("rsync") is None:
        return "there is no rsync: apt-get install rsync"
    if name == "libtorrent" and importlib.util.find_spec("libtorrent") is None:
        return "there is no libtorrent: pip install libtorrent"
    return ""
