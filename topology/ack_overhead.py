"""What nodes' uplinks have left for sending, beside the acknowledgements of what comes in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from p2psync.topology.network import Network

#: Bytes of acknowledgements for each byte received: one of 52 bytes (IPv4 20, TCP 20, timestamps 12) for every second
#: segment of 1448 (RFC 5681, section 4.2).
ACK_BYTES_PER_BYTE = 52 / (2 * 1448)
#: What is left of an uplink at least.
UPLINK_MIN_SHARE = 0.1


def without_ack_overhead(network: Network) -> Network:
    """The same network with uplinks as they are while their nodes receive about the largest rate there may be.

    Where downlinks are wide and uplinks thin that is no trifle: at 60 Mbit/s acknowledgements take a fifth of an uplink
    of 5. Whoever is given more to send than the rest fills its uplink's queue; then all that comes to it waits, too,
    for its acknowledgements.
    """
    if network.size < 2:
        return network
    up = network.up
    rate = min(float(up[network.trainer]), float(up.sum()) / (network.size - 1))
    acks = ACK_BYTES_PER_BYTE * np.minimum(rate, network.down)
    acks[network.trainer] = 0.0
    return replace(network, up=np.maximum(up - acks, UPLINK_MIN_SHARE * up))
