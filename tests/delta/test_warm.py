"""Warming goes the way of both profiles: nothing is left to be compiled when the first version comes."""

from p2psync.delta.tight import class_index, symbols
from p2psync.delta.warm import warm


def test_warm_compiles_the_tight_loops(compiled):
    warm(("BF16",))
    for kernel in (
        class_index.scan_class_indices,
        symbols.write_symbols,
        symbols.read_symbols,
        class_index.locate_changes,
    ):
        assert kernel.signatures
