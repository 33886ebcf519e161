"""The exchange of chunks: which node sends which chunk to whom, and when. Sans-I/O."""
