"""Compiled loops over units of weights: scan, gather, scatter, add, and the sums of digest and block sums.

Weights come as an address and a count of units, not as arrays: safetensors data in a memory map may begin at any byte,
even an odd one, and may be read-only, and each such kind of array would be a compilation of its own. Every load and
store here is unaligned, which costs nothing on current processors but where a unit straddles two cache lines. The
callers check every bound before they pass an address and keep the array alive meanwhile.

`like` is an array whose dtype tells the unit (u1, u2, u4, u8); its contents are never read. Loops that call one another
stand in this one file, because numba's cache on disk notices a change of a function's own file only; files that use the
primitives here (`fast.byte_loops`, `tight`, `history`) must be compiled again after a change of this one.
Compilation happens at the first call of each dtype, never at import.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from p2psync.delta.tensors import Units

_U = np.uint64
_T = TypeVar("_T", bound=np.generic)
_F = TypeVar("_F", bound=Callable[..., Any])

#: Units compared at a time: one bit each of a 64-bit mask.
GROUP = 64
#: Units scanned before the changed ones are gathered and both copies are summed: few enough that they are still in the
#: L1 cache (with twice as many, summing takes twice as long).
_SCAN_UNITS = 2048
#: Units after which block sums add the lanes to the weighted lanes. It divides `_SCAN_UNITS` and is a multiple of the
#: turns of `class_index`: larger tiles tell fewer swaps apart, smaller ones cost more.
TILE_UNITS = 2048
#: Rows of a block's sums: lanes and weighted lanes of the old units, the same of the new units, the steps found.
SUM_ROWS = 5
#: Units added before their digest is summed, few enough that their old bits stay in the L1 cache.
_BATCH = 512
#: Changed units that memory is prefetched ahead of the current one.
_PREFETCH_UNITS = 256


def kernel(function: _F) -> _F:
    """Compile with numba: without the GIL and Python objects, cached on disk, at the first call of each type."""
    return cast(_F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def inline(function: _F) -> _F:
    """Like `kernel`, for the small functions that kernels call."""
    return cast(_F, numba.njit(nogil=True, inline="always", error_model="numpy")(function))


def _intrinsic(function: Callable[..., Any]) -> Any:
    return intrinsic(function)


def address(array: NDArray[Any]) -> int:
    """The address of an array's first byte."""
    if array.flags.carray and array.size:
        # Three times as fast as the array interface; read-only arrays do not allow it.
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return int(array.__array_interface__["data"][0])


def plain(array: NDArray[_T]) -> NDArray[_T]:
    """The array itself if it is contiguous, aligned and writable, else such a copy: loops are compiled for no other."""
    return array if array.flags.carray else array.copy()


def _unit_pointer(builder: Any, base: Any, index: Any, element: Any, shape: Any) -> Any:
    """A pointer of type `shape` to unit `index` after address `base`."""
    pointer = builder.gep(builder.inttoptr(base, element.as_pointer()), [index])
    return builder.bitcast(pointer, shape.as_pointer())


@_intrinsic
def load(typing_context: Any, base: Any, index: Any, like: Any) -> Any:
    """`load(base, index, like) -> u64`: the unit at `index` after address `base`, widened."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = context.get_value_type(signature.args[2].dtype)
        value = builder.load(_unit_pointer(builder, args[0], args[1], element, element), align=1)
        return value if element.width == 64 else builder.zext(value, ir.IntType(64))

    return types.uint64(types.uint64, types.int64, like), generate


@_intrinsic
def store(typing_context: Any, base: Any, index: Any, value: Any, like: Any) -> Any:
    """`store(base, index, value, like)`: write the low bits of the u64 `value` as unit `index` after `base`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = context.get_value_type(signature.args[3].dtype)
        low = args[2] if element.width == 64 else builder.trunc(args[2], element)
        builder.store(low, _unit_pointer(builder, args[0], args[1], element, element), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.uint64, like), generate


@_intrinsic
def differ(typing_context: Any, a: Any, b: Any, index: Any, like: Any) -> Any:
    """`differ(a, b, index, like) -> u64`: bit k tells whether units `index + k` after `a` and `b` differ, k < 64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = context.get_value_type(signature.args[3].dtype)
        vector = ir.VectorType(element, GROUP)
        left = builder.load(_unit_pointer(builder, args[0], args[2], element, vector), align=1)
        right = builder.load(_unit_pointer(builder, args[1], args[2], element, vector), align=1)
        return builder.bitcast(builder.icmp_unsigned("!=", left, right), ir.IntType(GROUP))

    return types.uint64(types.uint64, types.uint64, types.int64, like), generate


@_intrinsic
def add_groups(typing_context: Any, base: Any, groups: Any, lanes: Any, like: Any) -> Any:
    """`add_groups(base, groups, lanes, like)`: add `groups` > 0 groups of 64 units after `base`, lane by lane, to those
    at address `lanes`, mod 2^width."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = context.get_value_type(signature.args[3].dtype)
        vector, word = ir.VectorType(element, GROUP), ir.IntType(64)
        base, groups, lanes, _ = args
        sums = builder.inttoptr(lanes, vector.as_pointer())
        first, before = builder.load(sums, align=1), builder.block
        loop, done = builder.append_basic_block("groups"), builder.append_basic_block("summed")
        builder.branch(loop)
        builder.position_at_end(loop)
        index, total = builder.phi(word), builder.phi(vector)
        units = builder.load(_unit_pointer(builder, base, builder.mul(index, word(GROUP)), element, vector), align=1)
        following, summed = builder.add(index, word(1)), builder.add(total, units)
        for value, start, after in ((index, word(0), following), (total, first, summed)):
            value.add_incoming(start, before)
            value.add_incoming(after, loop)
        builder.cbranch(builder.icmp_signed("<", following, groups), loop, done)
        builder.position_at_end(done)
        builder.store(summed, sums, align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.uint64, like), generate


def _unary(name: str, extra: tuple[int, ...]) -> Any:
    @_intrinsic
    def operation(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            flags = [ir.IntType(1)(flag) for flag in extra]
            function = builder.module.declare_intrinsic(
                name, [word], ir.FunctionType(word, [word] + [flag.type for flag in flags])
            )
            return builder.call(function, [args[0], *flags])

        return types.uint64(types.uint64), generate

    return operation


#: Set bits of a u64; number of its leading, and of its trailing, zeros (64 for 0).
popcount = _unary("llvm.ctpop", ())
leading = _unary("llvm.ctlz", (0,))
trailing = _unary("llvm.cttz", (0,))


@_intrinsic
def prefetch(typing_context: Any, base: Any) -> Any:
    """`prefetch(base)`: fetch the cache line at any address into the second-level cache.

    The first level has far fewer requests in flight, so prefetching into it is slower.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        flag = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        )
        builder.call(function, [builder.inttoptr(args[0], byte), flag(0), flag(2), flag(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


@_intrinsic
def bits_of(typing_context: Any, like: Any) -> Any:
    """`bits_of(like) -> u64`: bits of one unit, a constant to the compiler."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.IntType(64)(signature.args[0].dtype.bitwidth)

    return types.uint64(like), generate


# The mix of the digest. Two lanes, each linear in (index, bits) and then scrambled by a bijection of 64 bits. The
# scramblers are published finalizers: low lane "moremur" (P. Evensen 2019), high lane "mix13" (D. Stafford 2011).
INDEX_LOW = _U(0x9E3779B97F4A7C15)
INDEX_HIGH = _U(0xD1B54A32D192ED03)
BITS_LOW = _U(0x9E3779B1)
BITS_HIGH = _U(0x85EBCA77)
_LOW_A, _LOW_B = _U(0x3C79AC492BA7B653), _U(0x1C69B3F74AC4AE35)
_HIGH_A, _HIGH_B = _U(0xBF58476D1CE4E5B9), _U(0x94D049BB133111EB)
_HALF = _U(0xFFFFFFFF)
_27, _30, _31, _32, _33 = (_U(n) for n in (27, 30, 31, 32, 33))
_ONE = _U(1)


@inline
def _low(x: Any) -> Any:
    x = (x ^ (x >> _27)) * _LOW_A
    x = (x ^ (x >> _33)) * _LOW_B
    return x ^ (x >> _27)


@inline
def _high(x: Any) -> Any:
    x = (x ^ (x >> _30)) * _HIGH_A
    x = (x ^ (x >> _27)) * _HIGH_B
    return x ^ (x >> _31)


@kernel
def sum_units(base: int, count: int, start: int, key: NDArray[np.uint64], like: Units) -> Any:
    """Sum the mix of `count` < 2^32 units; the low lane in two halves, so that no carry is lost.

    Returns three u64: sum of the low lane's low halves, sum of its high halves, sum of the high lane mod 2^64.
    """
    first, second, high = _U(0), _U(0), _U(0)
    key_low = key[0] + _U(start) * INDEX_LOW
    key_high = key[1] + _U(start) * INDEX_HIGH
    for i in range(count):
        bits = load(base, i, like)
        low = _low(_U(i) * INDEX_LOW + bits * BITS_LOW + key_low)
        first += low & _HALF
        second += low >> _32
        high += _high(_U(i) * INDEX_HIGH + bits * BITS_HIGH + key_high)
    return first, second, high


@kernel
def sum_change(
    positions: NDArray[np.uint32], old: Units, steps: Units, count: Any, start: int, key: NDArray[np.uint64]
) -> Any:
    """Sum mix(old + step) − mix(old) over `count` < 2^31 positions; returns as `sum_units`, the first two signed."""
    first, second, high = np.int64(0), np.int64(0), _U(0)
    key_low = key[0] + _U(start) * INDEX_LOW
    key_high = key[1] + _U(start) * INDEX_HIGH
    for j in range(count):
        index = _U(positions[j])
        before = _U(old[j])
        after = _U(old.dtype.type(before + _U(steps[j])))
        low, high_index = index * INDEX_LOW + key_low, index * INDEX_HIGH + key_high
        new_low, old_low = _low(low + after * BITS_LOW), _low(low + before * BITS_LOW)
        first += np.int64(new_low & _HALF) - np.int64(old_low & _HALF)
        second += np.int64(new_low >> _32) - np.int64(old_low >> _32)
        high += _high(high_index + after * BITS_HIGH) - _high(high_index + before * BITS_HIGH)
    return first, second, high


@kernel
def add_tiles(base: Any, count: Any, lanes: Any, like: Any) -> None:
    """Add `count` units to a block's sums: 64 lanes at address `lanes`, and 64 weighted lanes after them.

    Unit i is added to lane i mod 64. At the end of each tile the lanes are added to the weighted lanes, so a unit
    counts once for each tile that ends after it. All mod 2^width. Several calls continue one block if all but the last
    add whole tiles.
    """
    width = bits_of(like) >> _U(3)
    weighted = _U(lanes) + _U(GROUP) * width
    for begin in range(_U(0), _U(count), _U(TILE_UNITS)):
        size = min(_U(TILE_UNITS), _U(count) - begin)
        tile = _U(base) + begin * width
        groups = size // _U(GROUP)
        if groups:
            add_groups(tile, np.int64(groups), _U(lanes), like)
        for i in range(groups * _U(GROUP), size):
            lane = np.int64(i % _U(GROUP))
            store(_U(lanes), lane, load(_U(lanes), lane, like) + load(tile, np.int64(i), like), like)
        add_groups(_U(lanes), 1, weighted, like)


@kernel
def add_both(old: Any, new: Any, count: Any, sums: Any, like: Any) -> None:
    """`add_tiles` of `count` old and new units to the rows of a block's sums at address `sums`."""
    row = _U(GROUP) * (bits_of(like) >> _U(3))
    add_tiles(old, count, _U(sums), like)
    add_tiles(new, count, _U(sums) + row + row, like)


@kernel
def clear_sums(sums: Any, like: Any) -> None:
    """Set all rows of a block's sums to zeros."""
    for i in range(SUM_ROWS * GROUP):
        store(_U(sums), i, _U(0), like)


@kernel
def sum_blocks(base: int, count: int, span: int, sums: NDArray[Any], like: Units) -> None:
    """Set `sums` (blocks, 2, 64) to the first two rows of sums of each block of `span` units, of `count` in all."""
    sums[:] = 0
    width = bits_of(like) >> _U(3)
    for begin in range(_U(0), _U(count), _U(span)):
        size = min(_U(span), _U(count) - begin)
        lanes = _U(sums.ctypes.data) + (begin // _U(span)) * _U(2 * GROUP) * width
        add_tiles(_U(base) + begin * width, size, lanes, like)


@kernel
def scan(
    old: int, new: int, count: int, positions: NDArray[np.uint32], olds: Units, steps: Units, sums: int = 0
) -> int:
    """Find the units that differ and write their offsets, old bits and steps; returns their number.

    positions, olds, steps: at least `count + GROUP` entries; entries after the returned number are undefined. sums:
    address of the block's sums (`SUM_ROWS` rows of 64 units), which the scan sets; 0: none. The scan does not prefetch:
    the processor's own prefetching of two streams reaches the rate of merely reading.
    """
    total = _U(count)
    found = _U(0)
    begin = _U(0)
    moved = _U(0)
    width = bits_of(steps) >> _U(3)
    if sums:
        clear_sums(sums, steps)
    while begin < total:
        end = min(begin + _U(_SCAN_UNITS), total)
        first = found
        i = begin
        while i + _U(GROUP) <= end:
            rest = differ(old, new, np.int64(i), steps)
            after = found + popcount(rest)
            # Four unconditional stores are cheaper than an unpredictable branch.
            for k in range(_U(4)):
                positions[found + k] = np.uint32(i + trailing(rest))
                rest &= rest - _ONE
            at = found + _U(4)
            while rest != _U(0):
                positions[at] = np.uint32(i + trailing(rest))
                rest &= rest - _ONE
                at += _ONE
            found = after
            i += _U(GROUP)
        while i < end:
            if load(old, np.int64(i), steps) != load(new, np.int64(i), steps):
                positions[found] = np.uint32(i)
                found += _ONE
            i += _ONE
        for j in range(first, found):
            at_unit = np.int64(positions[j])
            before = load(old, at_unit, steps)
            step = load(new, at_unit, steps) - before
            olds[j] = before
            steps[j] = step
            moved += step
        if sums:
            add_both(_U(old) + begin * width, _U(new) + begin * width, end - begin, sums, steps)
        begin = end
    if sums:
        store(_U(sums), (SUM_ROWS - 1) * GROUP, moved, steps)
    return int(found)


@kernel
def count_changed(old: int, new: int, count: int, like: Units) -> int:
    """Number of units, among `count`, that differ."""
    found = _U(0)
    i = 0
    while i + GROUP <= count:
        found += popcount(differ(old, new, i, like))
        i += GROUP
    while i < count:
        found += _U(load(old, i, like) != load(new, i, like))
        i += 1
    return int(found)


@kernel
def add_sparse(
    base: int, positions: NDArray[np.uint32], steps: Units, start: int, span: int, key: NDArray[np.uint64]
) -> Any:
    """Add each step to the unit at its position, mod 2^width; returns the three sums of `sum_change`, and True.

    Returns False as the last value, and writes nothing, if a position is not below `span`.
    """
    first, second, high = np.int64(0), np.int64(0), _U(0)
    if not _within(positions, span):
        return first, second, high, False
    olds = np.empty(_BATCH, steps.dtype)
    width = bits_of(steps) >> _U(3)
    count = _U(positions.size)
    for j in range(min(_U(_PREFETCH_UNITS), count)):
        prefetch(base + _U(positions[j]) * width)
    begin = _U(0)
    while begin < count:
        size = min(_U(_BATCH), count - begin)
        for j in range(size):
            prefetch(base + _U(positions[min(begin + j + _U(_PREFETCH_UNITS), count - _ONE)]) * width)
            at = np.int64(positions[begin + j])
            before = load(base, at, steps)
            olds[j] = before
            store(base, at, before + _U(steps[begin + j]), steps)
        part = slice(begin, begin + size)
        a, b, c = sum_change(positions[part], olds, steps[part], np.int64(size), start, key)
        first += a
        second += b
        high += c
        begin += size
    return first, second, high, True


@kernel
def gather_at(base: int, positions: NDArray[np.uint32], span: int, out: Units) -> bool:
    """Read the units at `positions` into `out`. Returns False, and reads nothing, if a position is not below `span`."""
    if not _within(positions, span):
        return False
    count = _U(positions.size)
    width = bits_of(out) >> _U(3)
    for j in range(count):
        prefetch(base + _U(positions[min(j + _U(_PREFETCH_UNITS), count - _ONE)]) * width)
        out[j] = load(base, np.int64(positions[j]), out)
    return True


@kernel
def scatter_at(base: int, positions: NDArray[np.uint32], span: int, values: Units) -> bool:
    """Write `values` to the units at `positions`. Returns False, and writes nothing, if one is not below `span`."""
    if not _within(positions, span):
        return False
    count = _U(positions.size)
    width = bits_of(values) >> _U(3)
    for j in range(count):
        prefetch(base + _U(positions[min(j + _U(_PREFETCH_UNITS), count - _ONE)]) * width)
        store(base, np.int64(positions[j]), _U(values[j]), values)
    return True


@kernel
def scatter_runs(runs: NDArray[np.int64], positions: NDArray[np.uint32], values: Units) -> None:
    """Write `values` to several tensors in one call.

    runs: i64 (runs, 2), the address of a tensor's first unit, and its number of consecutive entries in `positions` and
    `values`. The caller checks that all positions lie within their tensors.
    """
    width = bits_of(values) >> _U(3)
    last = _U(max(positions.size, 1) - 1)
    begin = _U(0)
    for k in range(runs.shape[0]):
        base = runs[k, 0]
        end = begin + _U(runs[k, 1])
        for j in range(begin, end):
            # Past the run's end this prefetches by the next run's positions, which is harmless.
            prefetch(base + _U(positions[min(j + _U(_PREFETCH_UNITS), last)]) * width)
            store(base, np.int64(positions[j]), _U(values[j]), values)
        begin = end


@kernel
def _within(positions: NDArray[np.uint32], span: int) -> bool:
    """Returns whether all positions are below `span`."""
    highest = np.uint32(0)
    for j in range(_U(positions.size)):
        highest = max(highest, positions[j])
    return positions.size == 0 or int(highest) < span


@kernel
def merge_sums(
    a: NDArray[np.uint32],
    a_steps: Units,
    b: NDArray[np.uint32],
    b_steps: Units,
    positions: NDArray[np.uint32],
    steps: Units,
) -> int:
    """Merge two rising lists of changes: add steps at common positions, drop zeros. Returns the number of changes."""
    i = j = n = 0
    while i < a.size or j < b.size:
        at = np.uint32(0)
        step = _U(0)
        take_a = j >= b.size or (i < a.size and a[i] <= b[j])
        take_b = i >= a.size or (j < b.size and b[j] <= a[i])
        if take_a:
            at = a[i]
            step += _U(a_steps[i])
            i += 1
        if take_b:
            at = b[j]
            step += _U(b_steps[j])
            j += 1
        value = steps.dtype.type(step)
        if value != 0:
            positions[n] = at
            steps[n] = value
            n += 1
    return n
