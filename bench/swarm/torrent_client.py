"""A libtorrent session in a race.

    python -m p2psync.bench.swarm.torrent_client '{…}'     (see `TorrentOptions`)

It writes `{"listening": PORT}`, `{"peers": N}` whenever it has more or fewer connections, and `{"finished": T}` once
the last piece is there and its hash was right. A line on its standard input starts the download.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from typing import Any

import msgspec

from p2psync.bench.swarm.jsonl import write_line


class TorrentOptions(msgspec.Struct, frozen=True):
    """address, port: where to listen. folder: where the file is, or will be. seed: it is there. cold: a receiver adds
    the torrent when it reads a line; else it adds it at once, and requests nothing before that line. peers:
    address:port of all others."""

    address: str
    port: int
    torrent: str
    folder: str
    seed: bool
    cold: bool
    peers: list[str]
    super_seeding: bool = False


def settings(options: TorrentOptions, lt: Any) -> dict[str, Any]:
    """libtorrent's own settings for fast seeds; besides: TCP alone (uTP gives way to everything), no other ways to find
    peers, everyone is sent to, and failed connections are tried again soon."""
    chosen = dict(lt.high_performance_seed())
    return chosen | {
        "listen_interfaces": f"{options.address}:{options.port}",
        "enable_dht": False,
        "enable_lsd": False,
        "enable_upnp": False,
        "enable_natpmp": False,
        "enable_outgoing_utp": False,
        "enable_incoming_utp": False,
        "in_enc_policy": int(lt.enc_policy.disabled),
        "out_enc_policy": int(lt.enc_policy.disabled),
        "allow_multiple_connections_per_ip": True,
        "unchoke_slots_limit": -1,
        "connection_speed": 500,
        "torrent_connect_boost": 100,
        # Two peers that request nothing yet stay connected.
        "close_redundant_connections": options.cold,
        "min_reconnect_time": 1,
        "max_failcount": 100,
        # So much is asked of a peer ahead: the faster of the lengths that were tried.
        "max_out_request_queue": 500,
        "request_queue_time": 1,
        "alert_mask": int(lt.alert.category_t.status_notification),
    }


def _start_when_told(handle: Any, lt: Any) -> None:
    """Waits for a line, then requests pieces."""
    sys.stdin.readline()
    handle.unset_flags(lt.torrent_flags.upload_mode)


def main(options: TorrentOptions) -> None:
    """Runs until it is killed."""
    lt: Any = importlib.import_module("libtorrent")
    session = lt.session(settings(options, lt))
    write_line({"listening": options.port})
    waits = not options.seed and not options.cold
    if options.cold and not options.seed:
        sys.stdin.readline()
    adding = lt.add_torrent_params()
    adding.ti = lt.torrent_info(options.torrent)
    adding.save_path = options.folder
    adding.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
    if options.seed:
        adding.flags |= lt.torrent_flags.seed_mode
        if options.super_seeding:
            adding.flags |= lt.torrent_flags.super_seeding
    if waits:
        adding.flags |= lt.torrent_flags.upload_mode
    handle = session.add_torrent(adding)
    for peer in options.peers:
        address, port = peer.split(":")
        handle.connect_peer((address, int(port)))
    if waits:
        threading.Thread(target=_start_when_told, args=(handle, lt), daemon=True).start()
    peers = -1
    while True:
        session.wait_for_alert(1000 if peers == len(options.peers) else 50)
        if peers != (peers := handle.status().num_peers):
            write_line({"peers": peers})
        for alert in session.pop_alerts():
            if isinstance(alert, lt.torrent_finished_alert) and not options.seed:
                write_line({"finished": time.monotonic()})


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=TorrentOptions))
