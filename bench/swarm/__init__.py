"""The race of the swarm against aria2, libtorrent and rsync, over one emulated network."""
