"""Whole nodes in virtual time: the real exchange, measuring and planning over virtual TCP on a described network.

`p2psync.topology.fluid` simulates flows and knows the network; here each node measures it, over connections that have
congestion control, queues and losses, and a hub plans from what the nodes report.
"""
