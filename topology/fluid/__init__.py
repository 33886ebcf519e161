"""The chunk exchange on a flow-level network in virtual time: thousands of nodes on one core.

Real: each node's `Exchange`, the planner's plan, the hub's decision when to plan, and every message. Modelled: links
are servers that pass one chunk after another at their rate (`servers`). Left out: hashes, packets, congestion control,
disks and engines. Each chunk represents one that is `payload.SCALE` times as large, on links that are as much slower.
Equal seeds give equal runs.
"""
