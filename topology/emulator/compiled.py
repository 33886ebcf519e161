"""How the packet loop is compiled."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

_F = TypeVar("_F", bound=Callable[..., Any])
#: Modules whose functions and constants are compiled into the loop, besides its own.
_MODULES = "compiled", "packet_memory", "plane", "segments", "syscalls"
#: Bytes are widened before arithmetic: int() leaves them unsigned, and mixed sums become floats.
wide: Any = np.int64


def entry(function: _F) -> _F:
    """Compiles a function that Python calls, cached on disk with all that it calls.

    numba's cache notices changes in the function's own file only, so the name under which it is cached stands for the
    text of the other ones.
    """
    texts = b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in _MODULES)
    function.__qualname__ = f"{function.__name__}_{zlib.crc32(texts):08x}"
    return cast(_F, numba.njit(nogil=True, cache=True, error_model="numpy", _nrt=False)(function))


def kernel(function: _F) -> _F:
    """Compiles a function that only compiled code calls, without the wrapper for Python, which would double the time to
    compile."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    return cast(_F, numba.njit(nogil=True, error_model="numpy", **options)(function))
