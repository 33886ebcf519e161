"""Warming goes the way of both profiles: nothing is left to be compiled when the first version comes."""

from p2psync.delta.tight import class_index as ranks
from p2psync.delta.tight import symbols
from p2psync.delta.warm import warm


def test_a_tight_chunk_is_written_and_read(compiled):
    warm(("BF16",))
    for kernel in (ranks.scan_ranked, symbols.write_symbols, symbols.read_symbols, ranks.place_changes):
        assert kernel.signatures
