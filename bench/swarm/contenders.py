"""The contenders of a race, and the requirements of each."""

from __future__ import annotations

import importlib.util
import shutil

from p2psync.bench.swarm.aria2 import Aria2
from p2psync.bench.swarm.libtorrent import Libtorrent, LibtorrentSuperSeeding
from p2psync.bench.swarm.p2psync import P2PSync
from p2psync.bench.swarm.rsync import Rsync
from p2psync.bench.swarm.trial import Trial

P2PSYNC = "p2psync"
#: The same client with another option: the better of the two is what p2psync is compared with.
LIBTORRENT, SUPER = "libtorrent", "libtorrent-super"
TRIALS: dict[str, type[Trial]] = {
    P2PSYNC: P2PSync,
    "aria2": Aria2,
    LIBTORRENT: Libtorrent,
    SUPER: LibtorrentSuperSeeding,
    "rsync": Rsync,
}
BASELINES = tuple(name for name in TRIALS if name != P2PSYNC)


def missing(name: str) -> str:
    """Returns why a contender cannot run here, in one line; "" if it can."""
    if name == "aria2" and shutil.which("aria2c") is None:
        return "there is no aria2c: apt-get install aria2"
    if name == "rsync" and shutil.which("rsync") is None:
        return "there is no rsync: apt-get install rsync"
    if name in (LIBTORRENT, SUPER) and importlib.util.find_spec("libtorrent") is None:
        return "there is no libtorrent: pip install libtorrent"
    return ""
