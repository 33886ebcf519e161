"""`warm` compiles the loops of both profiles, so that none is left for the first version."""

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
