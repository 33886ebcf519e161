"""Which version a node fetches next, and when it goes live. Sans-I/O."""
