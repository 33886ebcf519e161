"""TCP in virtual time: connections over shared links with queues, delays and losses, driven by congestion control."""
