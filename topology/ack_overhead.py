"""Subtracts the acknowledgements of received data from the nodes' uplinks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from p2psync.topology.network import Network

#: Bytes of acknowledgements per byte received: one of 52 bytes (IPv4 20, TCP 20, timestamps 12) for every second
#: segment of 1448 (RFC 5681, section 4.2).
ACK_BYTES_PER_BYTE = 52 / (2 * 1448)
#: Least share of an uplink that is left for sending.
UPLINK_MIN_SHARE = 0.1


def without_ack_overhead(network: Network) -> Network:
    """Returns the network with the uplinks that remain while their nodes receive at about the highest possible rate.

    The overhead matters where downlinks are fast and uplinks slow: at 60 Mbit/s acknowledgements take a fifth of an
    uplink of 5 Mbit/s. An uplink whose planned load leaves no capacity for them builds a queue, and its
    acknowledgements wait in it, which slows everything that the node receives.
    """
    if network.size < 2:
        return network
    up = network.up
    rate = min(float(up[network.trainer]), float(up.sum()) / (network.size - 1))
    acks = ACK_BYTES_PER_BYTE * np.minimum(rate, network.down)
    acks[network.trainer] = 0.0
    return replace(network, up=np.maximum(up - acks, UPLINK_MIN_SHARE * up))
