"""The swarm's core on a flow-level network in virtual time: thousands of nodes on one core.

What is real: each node's `Swarm`, the plan that the planner makes, when the hub makes it, and every message. What is
modelled: links are servers that pass one chunk after another at their rate (`servers`); hashes, packets, congestion
control, disks and engines are not there. Chunks stand for ones that are `payload.SCALE` times as large, on links as
much slower. The same seed gives the same run.
"""
