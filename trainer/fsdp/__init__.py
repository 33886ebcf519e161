"""Publishing from FSDP2 ranks: each extracts its own shards and seeds its own chunks. See docs/guides/fsdp2.md."""
