"""Memory maps of files that others may cut short.

Access to a page of a map beyond the end of its file ends the process with SIGBUS, be it in a compiled loop, in a copy
or in another thread. Checking the file's size beforehand does not close that window. So a handler answers SIGBUS within
the maps that are registered here: it maps zeros over the missing pages, notes it, and lets the program go on. A reader
then sees wrong bits, which a digest detects; a writer checks `GuardedMap.torn`, since its writes reach no file. For
SIGBUS anywhere else the previous handler runs.

The handler may interrupt any code, so it makes system calls only: numba compiles it, it touches no Python object and
takes no lock. systemd guards the maps of its journals in the same way.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import threading
import weakref
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import cfunc
from numba.core import types
from numba.extending import intrinsic

_U = np.uint64
#: Maps that are guarded at a time; any more are not guarded. A model has a few hundred files at most.
_MAPS = 1024
#: A row of the table: first byte of a map, byte after its last, whether a page was missing. Empty rows are 0.
_ROW = 3
_PAGE = _U(mmap.PAGESIZE)
#: mmap(2): PROT_READ | PROT_WRITE, and MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE.
_READ_WRITE, _ZEROS_THERE = 0x3, 0x4032
_MAP_FAILED = _U(2**64 - 1)
#: sigaction(2); offset of the address in siginfo_t (bytes).
_SA_SIGINFO, _SI_ADDR = 4, _U(16)


class _Action(ctypes.Structure):
    """struct sigaction of glibc and musl on 64 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_table = np.zeros((_MAPS, _ROW), np.uint64)
_before = _Action()
_free = list(range(_MAPS))
_lock = threading.Lock()
_libc = ctypes.CDLL(None)
#: Keeps the compiled handler alive as long as the process.
_kept: list[Any] = []
# Compiled code that numba kept on disk finds this process's table by its name.
binding.add_symbol("p2psync_guarded_maps", _table.ctypes.data)
binding.add_symbol("p2psync_action_before", ctypes.addressof(_before))


class GuardedMap:
    """A map of a whole file, guarded until `close`, or until the last array over it is dropped."""

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        """Map `size` bytes (at least 1) of an open file, shared with it. Raises OSError."""
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            self.map = mmap.mmap(descriptor, size, mmap.MAP_SHARED, access)
        except ValueError:  # raised for a file that is shorter
            raise OSError(0, "the file is shorter than it was") from None
        self._row = _register(self.map)
        self._ended = weakref.finalize(self.map, _unregister, self._row) if self._row is not None else None

    @property
    def torn(self) -> bool:
        """Whether a page was missing: reads gave zeros there, and writes were lost."""
        return self._row is not None and bool(_table[self._row, 2])

    def close(self) -> bool:
        """Unmap the file. Returns False if arrays over it are left; the map ends with the last of them."""
        try:
            self.map.close()
        except BufferError:
            return False
        if self._ended is not None:
            self._ended()
        return True


def _register(mapped: mmap.mmap) -> int | None:
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    first = np.frombuffer(mapped, np.uint8).ctypes.data
    with _lock:
        if not _free:
            return None
        _install()
        row = _free.pop()
        # The end is written last: from then on the handler sees the row.
        _table[row, 2], _table[row, 0] = 0, first
        _table[row, 1] = first + len(mapped)
        return row


def _unregister(row: int) -> None:
    with _lock:
        _table[row, 1] = 0
        _free.append(row)


def _install() -> None:
    """Install the handler, also if another one, such as `faulthandler`, was installed since."""
    found, ours = _Action(), _handler()
    _libc.sigaction(_SIGBUS, None, ctypes.byref(found))
    if found.handler == ours.handler:
        return
    ctypes.pointer(_before)[0] = found
    _libc.sigaction(_SIGBUS, ctypes.byref(ours), None)


def _symbol(name: str) -> Any:
    """An intrinsic that returns the address of a symbol of `binding.add_symbol`."""

    @intrinsic  # type: ignore[untyped-decorator]
    def address_of(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            place = builder.module.globals.get(name) or ir.GlobalVariable(builder.module, word, name)
            return builder.ptrtoint(place, word)

        return types.uint64(), generate

    return address_of


_maps, _action_before = _symbol("p2psync_guarded_maps"), _symbol("p2psync_action_before")


@intrinsic  # type: ignore[untyped-decorator]
def _load(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _store(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


_mmap = types.ExternalFunction(
    "mmap", types.uint64(types.uint64, types.uint64, types.int32, types.int32, types.int32, types.int64)
)
_sigaction = types.ExternalFunction("sigaction", types.int32(types.int32, types.uint64, types.uint64))
_SIGBUS = int(signal.SIGBUS)


def _on_bus_error(number: int, info: int, context: int) -> None:
    at = _load(info + _SI_ADDR)
    table = _maps()
    for index in range(_MAPS):
        row = table + _U(8 * _ROW) * _U(index)
        end = _load(row + _U(8))
        if _load(row) <= at < end:
            # All pages behind a missing one are missing, too. One map replaces them, since the number of maps is
            # limited.
            page = at - at % _PAGE
            whole = (end + _PAGE - _U(1)) // _PAGE * _PAGE
            if _mmap(page, whole - page, _READ_WRITE, _ZEROS_THERE, -1, 0) != _MAP_FAILED:
                _store(row + _U(16), _U(1))
                return
    # Not in a guarded map: restore the previous handler, which the repeated instruction then calls.
    _sigaction(_SIGBUS, _action_before(), _U(0))


@cache
def _handler() -> _Action:
    """Compile the handler, or load it from numba's cache. Not at import, so that importing does not wait for numba."""
    compiled = cfunc(types.void(types.int32, types.uint64, types.uint64), cache=True)(_on_bus_error)
    _kept.append(compiled)
    return _Action(compiled.address, (ctypes.c_ulong * 16)(), _SA_SIGINFO, None)
