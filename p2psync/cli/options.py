"""Options and groups of options that several commands share.

Imports nothing but typer, so that a wrong option is refused at once. `option_structs` makes a group part of a command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

HostOption = Annotated[
    str,
    typer.Option(
        help="Address or name to listen on; every address of IPv4 and IPv6 unless given (0.0.0.0: of IPv4 alone).",
        show_default=False,
    ),
]
SwarmPort = Annotated[int, typer.Option(help="Port of the swarm (TCP); 0: any.", min=0, max=65535)]
#: The token that a hub asks for, where it is set; and the one that a node gives.
HubToken = Annotated[str | None, typer.Option(help="Join token that every node must know.")]
JoinToken = Annotated[str | None, typer.Option(help="Join token.")]
HubUrl = Annotated[str, typer.Option(help="The hub's URL.")]
TrainerKeys = Annotated[list[str], typer.Option(help="The trainer's public key, or a file with it; may be repeated.")]

#: The option of every daemon.
EventsTarget = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Events as JSON lines to FILE, or - for stdout.")
]
#: The option of every command that reports figures.
JsonTarget = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="The figures as JSON to FILE, or - for stdout.")
]


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """Options about a node that its peers and the hub learn."""

    advertise: Annotated[
        str,
        typer.Option(
            help="Addresses told to peers, separated by commas; what the hub sees unless given.", show_default=False
        ),
    ] = ""
    region: Annotated[str, typer.Option(help="Where this machine is: any word.")] = ""
    name: Annotated[
        str, typer.Option(help="What `status` calls this node [the machine's name].", show_default=False)
    ] = ""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """How a node connects to its peers."""

    streams: Annotated[
        int, typer.Option(help="Parallel connections to each peer; 0: as measurements say.", min=0, max=16)
    ] = 0
    congestion: Annotated[
        str, typer.Option(help="Congestion control of connections to peers: auto (bbr, else cubic), bbr, cubic, …")
    ] = "auto"
    probe: Annotated[
        bool, typer.Option(help="Measure links with short bursts; they give way to chunks, and cost up to 1 %.")
    ] = True
