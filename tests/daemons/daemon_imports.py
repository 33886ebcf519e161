"""Imports the modules of daemons, and loads the codec: the server that forks them (`forked_daemons`) does so once.

It starts no thread: a fork would be without it.
"""

import p2psync.actor.directory
import p2psync.actor.node
import p2psync.actor.scrub
import p2psync.cli.main
import p2psync.net.hub
import p2psync.topology.hub_planner
import p2psync.trainer.daemon
import p2psync.trainer.ledger.daemon
import p2psync.trainer.node  # noqa: F401
from p2psync.delta.warm import warm
from p2psync.warmup import compiled

if compiled():  # else the first daemon compiles, as everywhere
    warm()
