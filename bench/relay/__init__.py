"""The relay bench: the cost for one node of receiving everything once and passing it on."""
