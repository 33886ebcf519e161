"""Options that several commands share. Imports nothing but typer, so that a wrong option is refused at once."""

from __future__ import annotations

from typing import Annotated

import typer

HostOption = Annotated[
    str,
    typer.Option(
        help="Address or name to listen on; every address of IPv4 and IPv6 unless given (0.0.0.0: of IPv4 alone).",
        show_default=False,
    ),
]
Advertise = Annotated[
    str,
    typer.Option(
        help="Addresses told to peers, separated by commas; what the hub sees unless given.", show_default=False
    ),
]
Name = Annotated[str, typer.Option(help="What `status` calls this node [the machine's name].", show_default=False)]
Streams = Annotated[int, typer.Option(help="Parallel connections to each peer; 0: as measurements say.", min=0, max=16)]
CongestionOption = Annotated[
    str, typer.Option(help="Congestion control of connections to peers: auto (bbr, else cubic), bbr, cubic, …")
]
Probe = Annotated[
    bool, typer.Option(help="Measure links with short bursts; they give way to chunks, and cost up to 1 %.")
]

#: The option of every daemon.
EventsTarget = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Events as JSON lines to FILE, or - for stdout.")
]
#: The option of every command that reports figures.
JsonTarget = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="The figures as JSON to FILE, or - for stdout.")
]
