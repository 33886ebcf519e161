"""The relay bench: what it costs one node to receive everything once and to pass it on."""
