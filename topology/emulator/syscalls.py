"""The C library's functions that the compiled packet loop calls, resolved by name when it is compiled or loaded.

Addresses are plain integers. A negative result is an error; the loop does not distinguish errors.
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
#: POLLERR | POLLHUP | POLLNVAL: a descriptor that will never be readable again.
POLL_DEAD = 0x038
CLOCK_MONOTONIC = 1
