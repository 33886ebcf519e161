"""The compiled loops that turn positions into ranks within classes of the old weight, and back.

The *scale* of a 16-bit unit is the byte after its sign bit: of bfloat16 the exponent. Scales are cut into classes; the
units of a block that are of one class, in order, are numbered 0, 1, 2, … : a unit's *rank*. A receiver that holds the
old weights can count the same ranks.

Both directions go through a block in runs of 4096 units, 64 groups of 64. For each class and group there is a mask of
the units that are of the class, and the number of them up to the group's end; from these follow the rank of a position
and the position of a rank. The vector code is LLVM's own vector language, which every processor has some lowering for;
the two instructions that it does not know, byte shuffles and pdep, have plain equivalents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from p2psync.delta.kernels import kernel, load, popcount, prefetch, trailing
from p2psync.delta.tensors import Units

#: Most classes that a table may have.
MAX_CLASSES = 8
_SHIFT = 3
GROUP, RUN = 64, 4096
_GROUPS = RUN // GROUP
#: One group of so many is looked at to learn how frequent each scale is.
SAMPLED = 256

_U = np.uint64
_ONE = _U(1)
_I64, _BYTE = ir.IntType(64), ir.IntType(8)
#: Scales that can be told apart: this many, in a row; a class for those below, and one for those above, included.
WINDOW = 16
#: Table look-ups of bytes: what a processor must have, the instruction, and its bytes.
_SHUFFLES = (
    ("+avx512bw", "llvm.x86.avx512.pshuf.b.512", 64),
    ("+avx2", "llvm.x86.avx2.pshuf.b", 32),
    ("+ssse3", "llvm.x86.ssse3.pshuf.b.128", 16),
)


def _classifier(groups: int) -> Any:
    """The operation that classifies some groups, one after another; counts pass from one to the next in registers."""

    @intrinsic  # type: ignore[untyped-decorator]
    def operation(
        typing_context: Any, units: Any, valid: Any, window: Any, found: Any, masks: Any, before: Any, ends: Any
    ) -> Any:
        """Classify units from address `units` on; all arguments but `valid` are addresses.

        window: a scale, and the classes of 16 scales from it on. found: the class of each unit, in bytes. For each
        group, masks: for each class a u64, bit k for unit k, and only bits that are set in `valid`; ends: for each
        class a u32, the number of units in the masks so far and `before`.
        """

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            features = context.codegen()._tm_features.split(",")
            units, valid, window, found, masks, before, ends = args
            count = _load(builder, before, ir.VectorType(ir.IntType(32), MAX_CLASSES))
            first = _splat(builder, _load(builder, window, _BYTE), ir.VectorType(_BYTE, GROUP))
            row = _load(builder, builder.add(window, _I64(1)), ir.VectorType(_BYTE, WINDOW))
            for g in range(groups):
                value = _scales(builder, builder.add(units, _I64(2 * GROUP * g)))
                value = _call(builder, "llvm.usub.sat", value.type, [value, first])
                value = _call(builder, "llvm.umin", value.type, [value, ir.Constant(value.type, [WINDOW - 1] * GROUP)])
                value = _look_up(builder, value, row, features)
                _store(builder, value, builder.add(found, _I64(GROUP * g)))
                mask = _masks(builder, value, valid)
                _store(builder, mask, builder.add(masks, _I64(8 * MAX_CLASSES * g)))
                ones = _call(builder, "llvm.ctpop", mask.type, [mask])
                count = builder.add(count, builder.trunc(ones, count.type))
                _store(builder, count, builder.add(ends, _I64(4 * MAX_CLASSES * g)))
            return context.get_dummy_value()

        return types.void(*[types.uint64] * 7), generate

    return operation


def _scales(builder: Any, units: Any) -> Any:
    """The scales of the 64 units at an address: of each unit, doubled, the upper byte."""
    value = _load(builder, units, ir.VectorType(ir.IntType(16), GROUP))
    doubled = builder.bitcast(builder.add(value, value), ir.VectorType(_BYTE, 2 * GROUP))
    return _shuffle(builder, doubled, range(1, 2 * GROUP, 2))


def _masks(builder: Any, value: Any, valid: Any) -> Any:
    """Of 64 classes in bytes the mask of each class: for each of a class's bits, the lanes where it is as it should."""
    lanes = ir.VectorType(_I64, MAX_CLASSES)
    mask = _splat(builder, valid, lanes)
    for plane in range(_SHIFT):
        bits = builder.and_(value, ir.Constant(value.type, [1 << plane] * GROUP))
        word = builder.bitcast(builder.icmp_unsigned("!=", bits, ir.Constant(value.type, [0] * GROUP)), _I64)
        flips = ir.Constant(lanes, [0 if c >> plane & 1 else -1 for c in range(MAX_CLASSES)])
        mask = builder.and_(mask, builder.xor(_splat(builder, word, lanes), flips))
    return mask


#: Four at a time: a sum that waited for memory in each group would take twice as long as all the rest.
_four_groups, _one_group = _classifier(4), _classifier(1)


def _load(builder: Any, place: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(place, kind.as_pointer()), align=1)


def _store(builder: Any, value: Any, place: Any) -> None:
    builder.store(value, builder.inttoptr(place, value.type.as_pointer()), align=1)


def _look_up(builder: Any, value: Any, row: Any, features: list[str]) -> Any:
    """For each byte below 16 of `value` the byte of `row`: shuffles where there are any, else compares and sums."""
    for feature, name, width in _SHUFFLES:
        if feature in features:
            wide = ir.VectorType(_BYTE, width)
            rows = _shuffle(builder, row, [k % WINDOW for k in range(width)])
            function = builder.module.declare_intrinsic(name, [], ir.FunctionType(wide, [wide, wide]))
            parts = [
                builder.call(function, [rows, _shuffle(builder, value, range(k, k + width))])
                for k in range(0, GROUP, width)
            ]
            while len(parts) > 1:
                half = range(2 * parts[0].type.count)
                parts = [
                    builder.shuffle_vector(a, b, _lanes(half)) for a, b in zip(parts[::2], parts[1::2], strict=True)
                ]
            return parts[0]
    found = _shuffle(builder, row, [0] * GROUP)
    for k in range(1, WINDOW):
        rise = builder.sub(_shuffle(builder, row, [k] * GROUP), _shuffle(builder, row, [k - 1] * GROUP))
        reached = builder.icmp_unsigned(">=", value, ir.Constant(value.type, [k] * GROUP))
        found = builder.add(found, builder.and_(builder.sext(reached, value.type), rise))
    return found


def _lanes(order: Any) -> Any:
    lanes = list(order)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)


def _shuffle(builder: Any, vector: Any, order: Any) -> Any:
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _lanes(order))


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    """A vector of which every lane is the low bits of the u64 `value`."""
    undefined = ir.Constant(vector, ir.Undefined)
    low = value if value.type == vector.element else builder.trunc(value, vector.element)
    one = builder.insert_element(undefined, low, ir.IntType(32)(0))
    return _shuffle(builder, one, [0] * vector.count)


def _call(builder: Any, name: str, kind: Any, args: list[Any]) -> Any:
    """An LLVM intrinsic of arguments and outcome of one type."""
    suffix = f"v{kind.count}i{kind.element.width}" if isinstance(kind, ir.VectorType) else f"i{kind.width}"
    function = builder.module.declare_intrinsic(f"{name}.{suffix}", [], ir.FunctionType(kind, [kind] * len(args)))
    return builder.call(function, args)


@intrinsic  # type: ignore[untyped-decorator]
def _select(typing_context: Any, mask: Any, rank: Any) -> Any:
    """`_select(mask, rank) -> u64`: the place of set bit number `rank` of `mask`, which has more than `rank` set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mask, rank = args
        if "+bmi2" not in context.codegen()._tm_features.split(","):
            return _search(builder, mask, rank)
        pdep = builder.module.declare_intrinsic("llvm.x86.bmi.pdep.64", [], ir.FunctionType(_I64, [_I64, _I64]))
        return _zeros(builder, builder.call(pdep, [builder.shl(_I64(1), rank), mask]))

    return types.uint64(types.uint64, types.uint64), generate


def _zeros(builder: Any, value: Any) -> Any:
    flag = ir.IntType(1)
    count = builder.module.declare_intrinsic("llvm.cttz", [_I64], ir.FunctionType(_I64, [_I64, flag]))
    return builder.call(count, [value, flag(1)])


def _search(builder: Any, mask: Any, rank: Any) -> Any:
    """The same by halves: skip the lower half of what is left where it has too few set bits."""
    place = _I64(0)
    for half in (32, 16, 8, 4, 2, 1):
        low = _call(builder, "llvm.ctpop", _I64, [builder.and_(mask, _I64((1 << half) - 1))])
        skip = builder.icmp_unsigned(">=", rank, low)
        rank = builder.sub(rank, builder.select(skip, low, _I64(0)))
        step = builder.select(skip, _I64(half), _I64(0))
        mask, place = builder.lshr(mask, step), builder.add(place, step)
    return place


@kernel
def _classify(
    base: Any,
    size: Any,
    window: NDArray[np.uint8],
    found: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    ends: NDArray[np.uint32],
) -> None:
    """Classify `size` ≤ 4096 units at `base`.

    At `8 · g + c` is then in `masks` the mask of class c in group g, and in `ends[8:]` the number of units of class c
    up to the group's end, counted on from what stands at the beginning of `ends`.
    """
    units, at, line = _U(base), _U(found.ctypes.data), _U(window.ctypes.data)
    mask, end = _U(masks.ctypes.data), _U(ends.ctypes.data)
    groups = size >> _U(6)
    for _ in range(groups >> _U(2)):
        # The next run: whoever waits for ranks in between would leave the memory idle.
        for ahead in range(_U(2 * RUN), _U(2 * RUN + 512), _U(64)):
            prefetch(units + ahead)
        _four_groups(units, ~_U(0), line, at, mask, end, end + _U(32))
        units, at, mask, end = units + _U(512), at + _U(256), mask + _U(256), end + _U(128)
    for _ in range(groups & _U(3)):
        _one_group(units, ~_U(0), line, at, mask, end, end + _U(32))
        units, at, mask, end = units + _U(128), at + _U(64), mask + _U(64), end + _U(32)
    if size & _U(63):
        last = np.zeros(GROUP, np.uint16)
        for i in range(size & _U(63)):
            last[i] = load(units, np.int64(i), last)
        _one_group(_U(last.ctypes.data), (_ONE << (size & _U(63))) - _ONE, line, at, mask, end, end + _U(32))


@kernel
def class_of(scale: Any, window: NDArray[np.uint8]) -> Any:
    """The class of a scale. `window` holds the first scale told apart from those below, and 16 classes from it on."""
    return window[_ONE + min(max(scale, _U(window[0])) - _U(window[0]), _U(WINDOW - 1))]


@kernel
def count_scales(base: int, count: int, totals: NDArray[np.int64], like: Units) -> None:
    """Add to `totals` (256) how often each scale occurs in a sample of `count` units: one group of 256."""
    for begin in range(0, count, GROUP * SAMPLED):
        for i in range(begin, min(begin + GROUP, count)):
            totals[(load(base, i, like) >> _U(7)) & _U(255)] += 1


@kernel
def rank_changes(
    base: int,
    count: int,
    window: NDArray[np.uint8],
    positions: NDArray[np.uint32],
    steps: Units,
    sizes: NDArray[np.int64],
    totals: NDArray[np.int64],
    gaps: NDArray[np.uint32],
    sorted_steps: Units,
) -> None:
    """The changes of a block of `count` units at `base`, class after class: gaps of their ranks, and their steps.

    `sizes[c]`, given, is the number of changes of class c; `totals[c]` becomes the number of its units. A gap is the
    rank less that of the change before and 1.
    """
    found = np.empty(RUN, np.uint8)
    masks = np.empty(_GROUPS << _SHIFT, np.uint64)
    ends = np.zeros((_GROUPS + 1) << _SHIFT, np.uint32)
    places, seen = np.zeros(MAX_CLASSES, np.uint64), np.zeros(MAX_CLASSES, np.uint64)
    for k in range(1, sizes.size):
        places[k] = places[k - 1] + _U(sizes[k - 1])
    j, changed = _U(0), _U(positions.size)
    for begin in range(_U(0), _U(count), _U(RUN)):
        size = min(_U(RUN), _U(count) - begin)
        _classify(_U(base) + (begin << _ONE), size, window, found, masks, ends)
        while j < changed and _U(positions[j]) < begin + size:
            place = _U(positions[j]) - begin
            c = _U(found[place])
            at = ((place >> _U(6)) << _U(_SHIFT)) + c
            rank = _U(ends[at + _U(MAX_CLASSES)]) - popcount(masks[at] >> (place & _U(63)))
            out = places[c]
            places[c] = out + _ONE
            gaps[out] = rank - seen[c]
            seen[c] = rank + _ONE
            sorted_steps[out] = steps[j]
            j += _ONE
        _roll(ends, size)
    for k in range(sizes.size):
        totals[k] = ends[k]


@kernel
def _roll(ends: NDArray[np.uint32], size: Any) -> None:
    """The counts at the end of a run of `size` units become those at the beginning of the next."""
    last = ((size + _U(63)) >> _U(6)) << _U(_SHIFT)
    for c in range(_U(MAX_CLASSES)):
        ends[c] = ends[last + c]


@kernel
def place_changes(
    base: int,
    count: int,
    window: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    ranks: NDArray[np.uint32],
    sorted_steps: Units,
    positions: NDArray[np.uint32],
    steps: Units,
) -> bool:
    """The inverse: `ranks` strictly rise within each class. False if a rank is not below its class's total.

    `positions` must have room for 2 more entries than there are ranks.
    """
    step_at = np.empty(RUN, np.uint16)
    found, bits = np.empty(RUN, np.uint8), np.zeros(_GROUPS, np.uint64)
    masks = np.empty(_GROUPS << _SHIFT, np.uint64)
    ends = np.zeros((_GROUPS + 1) << _SHIFT, np.uint32)
    places, stops = np.zeros(MAX_CLASSES + 1, np.uint64), np.zeros(MAX_CLASSES, np.uint64)
    for c in range(sizes.size):
        stops[c] = places[c] + _U(sizes[c])
        places[c + 1] = stops[c]
    filled = _U(0)
    for begin in range(_U(0), _U(count), _U(RUN)):
        size = min(_U(RUN), _U(count) - begin)
        _classify(_U(base) + (begin << _ONE), size, window, found, masks, ends)
        groups = (size + _U(63)) >> _U(6)
        # Groups that this short run does not have end where its last one does.
        for g in range(groups, _U(_GROUPS)):
            for c in range(_U(MAX_CLASSES)):
                ends[((g + _ONE) << _U(_SHIFT)) + c] = ends[(groups << _U(_SHIFT)) + c]
        for c in range(_U(sizes.size)):
            end = _U(ends[_U(_GROUPS << _SHIFT) + c])
            j = places[c]
            while j < stops[c] and _U(ranks[j]) < end:
                at = _group_with(ends, ranks[j], c)
                mask = masks[at]
                bit = _select(mask, _U(ranks[j]) + popcount(mask) - _U(ends[at + _U(MAX_CLASSES)]))
                g = at >> _U(_SHIFT)
                bits[g] |= _ONE << bit
                step_at[(g << _U(6)) + bit] = sorted_steps[j]
                j += _ONE
            places[c] = j
        filled = _emit(bits, begin, step_at, filled, positions, steps)
        _roll(ends, _U(RUN))
    left = _U(0)
    for c in range(sizes.size):
        left += stops[c] - places[c]
    return bool(left == _U(0))


@kernel
def _group_with(ends: NDArray[np.uint32], rank: Any, c: Any) -> Any:
    """`8 · g + c` of the group g that has a rank of class c, which the run has: by halves, without branches."""
    at = c
    at += _U(ends[at + _U(32 << _SHIFT)] <= rank) << _U(5 + _SHIFT)
    at += _U(ends[at + _U(16 << _SHIFT)] <= rank) << _U(4 + _SHIFT)
    at += _U(ends[at + _U(8 << _SHIFT)] <= rank) << _U(3 + _SHIFT)
    at += _U(ends[at + _U(4 << _SHIFT)] <= rank) << _U(2 + _SHIFT)
    at += _U(ends[at + _U(2 << _SHIFT)] <= rank) << _U(1 + _SHIFT)
    return at + (_U(ends[at + _U(1 << _SHIFT)] <= rank) << _U(_SHIFT))


@kernel
def _emit(
    bits: NDArray[np.uint64], begin: Any, step_at: Units, filled: Any, positions: NDArray[np.uint32], steps: Units
) -> Any:
    """Write out what was found in one run, in order, and clear it; returns how many entries are filled by now."""
    first = filled
    for g in range(_U(_GROUPS)):
        rest = bits[g]
        bits[g] = 0
        after = filled + popcount(rest)
        at = begin + (g << _U(6))
        for k in range(_U(2)):
            positions[filled + k] = np.uint32(at + trailing(rest))
            rest &= rest - _ONE
        place = filled + _U(2)
        while rest != _U(0):
            positions[place] = np.uint32(at + trailing(rest))
            rest &= rest - _ONE
            place += _ONE
        filled = after
    for j in range(first, filled):
        steps[j] = step_at[_U(positions[j]) - begin]
    return filled
