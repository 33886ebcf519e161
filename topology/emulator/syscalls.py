"""The C library's calls that the compiled packet loop makes: found by name when the loop is compiled or loaded.

Addresses are plain integers. A result below zero is an error; which one does not matter to the loop.
"""

from __future__ import annotations

from numba.core import types

_fd, _address, _size = types.int32, types.uintp, types.uintp

read = types.ExternalFunction("read", types.intp(_fd, _address, _size))
write = types.ExternalFunction("write", types.intp(_fd, _address, _size))
memcpy = types.ExternalFunction("memcpy", types.uintp(_address, _address, _size))
ppoll = types.ExternalFunction("ppoll", types.int32(_address, types.uint64, _address, _address))
clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, _address))

POLLIN = 0x001
#: POLLERR | POLLHUP | POLLNVAL: a descriptor that will never again have anything to read.
POLL_DEAD = 0x038
CLOCK_MONOTONIC = 1
