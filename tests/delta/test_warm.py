"""`warm` compiles the loops of both profiles, so that none is left for the first version."""

import subprocess
import sys

from p2psync.delta import warm as parts
from p2psync.delta.tight import class_index, symbols
from p2psync.delta.warm import warm

#: Prints each function that was compiled or loaded, with its types: first those of the shared part.
LIST = """
import sys
from p2psync.delta import warm
from numba.core.dispatcher import Dispatcher

def known():
    modules = [module for name, module in sys.modules.items() if name.startswith("p2psync.delta.")]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
    return {f"{one.__module__}.{one.__name__} {types}" for one in found for types in one.signatures}

warm.warm_shared((1, 2, 4))
shared = known()
getattr(warm, sys.argv[1])((1, 2, 4))
print(*(known() - shared), sep="\\n")
"""


def test_warm_compiles_the_tight_loops(compiled):
    warm((2,))
    for kernel in (
        class_index.scan_class_indices,
        symbols.write_symbols,
        symbols.read_symbols,
        class_index.locate_changes,
    ):
        assert kernel.signatures


def compiled_by(part: str) -> set[str]:
    """The functions that a part of the warming compiles or loads, beyond the shared ones."""
    done = subprocess.run([sys.executable, "-c", LIST, part], capture_output=True, text=True, check=True)
    return {line.split(" ")[0] for line in done.stdout.splitlines()}


def test_no_function_is_compiled_by_two_processes(compiled):
    encoder, rest = compiled_by("warm_encoder"), compiled_by("warm_rest")
    assert min(len(encoder), len(rest)) > 10
    assert encoder & rest == set()


def test_the_chunk_from_which_the_decoder_is_compiled_is_the_encoders():
    row, old, new = parts._tight_sample()
    assert parts._encode(row, old, new, parts.TIGHT) == [parts._TIGHT_CHUNK]
