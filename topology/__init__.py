"""Networks as p2psync models them: rates between nodes, bounds on a broadcast, plans, and emulation."""
