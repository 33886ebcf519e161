"""SIMD operations on groups of 64 units of 16 bits: class masks, and the look-up of class-relative indices.

They are written in LLVM's vector language, which LLVM lowers for every processor. Instructions outside it (byte
shuffles, bit transposes, pdep) have plain equivalents, and all variants give the same bits.

A *quad* is four groups. All arguments but class indices, counts, tags and masks are addresses.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

#: Classes of a table, at most.
MAX_CLASSES = 8
#: Consecutive scales that a table maps to classes; lower scales count as its first, higher ones as its last.
WINDOW = 16
GROUP, QUAD, RUN = 64, 256, 4096
#: Bytes from the start of a table to the sums of the units that are classified and compared.
SUMS_OFFSET = 64
#: Items that are read together, so this many may be read after the last.
READ_AHEAD_ITEMS = 8

_I1, _I16, _I64, _BYTE = ir.IntType(1), ir.IntType(16), ir.IntType(64), ir.IntType(8)
_LANES = ir.VectorType(_I64, MAX_CLASSES)
_BYTES, _UNITS = ir.VectorType(_BYTE, GROUP), ir.VectorType(_I16, GROUP)
#: Byte-table look-ups: the processor feature, the instruction, and its width in bytes.
_SHUFFLES = (
    ("+avx512bw", "llvm.x86.avx512.pshuf.b.512", 64),
    ("+avx2", "llvm.x86.avx2.pshuf.b", 32),
    ("+ssse3", "llvm.x86.ssse3.pshuf.b.128", 16),
)


def _classifier(compare: bool) -> Any:
    """The operation that classifies a quad, and compares it with another if `compare` is set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        features = context.codegen()._tm_features.split(",")
        old, new, table, masks, before, ends, differ = args
        first = _splat(builder, _load(builder, table, _BYTE), _BYTES)
        counts = []
        lanes = builder.add(table, _I64(SUMS_OFFSET))
        totals = [_load(builder, builder.add(lanes, _I64(2 * GROUP * k)), _UNITS) for k in range(2 * compare)]
        for g in range(QUAD // GROUP):
            units = _load(builder, builder.add(old, _I64(2 * GROUP * g)), _UNITS)
            if compare:
                others = _load(builder, builder.add(new, _I64(2 * GROUP * g)), units.type)
                totals = [builder.add(total, more) for total, more in zip(totals, (units, others), strict=True)]
                word = builder.bitcast(builder.icmp_unsigned("!=", units, others), _I64)
                _store(builder, word, builder.add(differ, _I64(8 * g)))
            mask = _masks(builder, units, first, table, features)
            _store(builder, mask, builder.add(masks, _I64(8 * MAX_CLASSES * g)))
            counts.append(_call(builder, "llvm.ctpop", mask.type, [mask]))
        for k, total in enumerate(totals):
            _store(builder, total, builder.add(lanes, _I64(2 * GROUP * k)))
        # Four running sums of 16 bits in each lane, continued from the last one of the previous quad.
        sums = counts[0]
        for g in range(1, 4):
            sums = builder.or_(sums, builder.shl(counts[g], ir.Constant(_LANES, [16 * g] * MAX_CLASSES)))
        for shift in (16, 32):
            sums = builder.add(sums, builder.shl(sums, ir.Constant(_LANES, [shift] * MAX_CLASSES)))
        before = _load(builder, before, ir.VectorType(_I16, 4 * MAX_CLASSES))
        before = _shuffle(builder, before, [k | 3 for k in range(4 * MAX_CLASSES)])
        _store(builder, builder.add(sums, builder.bitcast(before, _LANES)), ends)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def operation(
        typing_context: Any, old: Any, new: Any, table: Any, masks: Any, before: Any, ends: Any, differ: Any
    ) -> Any:
        """Classify 256 units at `old`.

        table: the first scale of the window (1 byte), the class of each of its scales (16), 1 << class of each (16).

        masks: for each group and class a u64, bit k for unit k. ends: for each class four u16, the number of units of
        the class up to the end of each group, continued from the last of those at `before`. differ: for each group a
        u64, bit k set if unit k differs from that at `new`. If units are compared, the groups are added to 64 lanes of
        u16, `SUMS_OFFSET` bytes after the table, and those at `new` to the 64 lanes after these.
        """
        return types.void(*[types.uint64] * 7), generate

    return operation


def _masks(builder: Any, units: Any, first: Any, table: Any, features: list[str]) -> Any:
    """Builds the mask of each class over 64 units."""
    transposing = {"+avx512bw", "+avx512vbmi", "+gfni"} <= set(features)
    # The scale of a unit, doubled, is its upper byte. Bits are transposed with the last of eight bytes first.
    order = [8 * (k // 8) + 7 - k % 8 for k in range(GROUP)] if transposing else range(GROUP)
    doubled = builder.bitcast(builder.add(units, units), ir.VectorType(_BYTE, 2 * GROUP))
    scales = _shuffle(builder, doubled, [2 * k + 1 for k in order])
    scales = _call(builder, "llvm.usub.sat", _BYTES, [scales, first])
    scales = _call(builder, "llvm.umin", _BYTES, [scales, ir.Constant(_BYTES, [WINDOW - 1] * GROUP)])
    row = _load(builder, builder.add(table, _I64(1 + WINDOW * transposing)), ir.VectorType(_BYTE, WINDOW))
    found = _look_up(builder, scales, row, features)
    return _transposed(builder, found) if transposing else _planes(builder, found)


def _transposed(builder: Any, found: Any) -> Any:
    """Transpose 64 bytes with one bit set each into 8 masks: first bits within each eight bytes, then bytes."""
    function = builder.module.declare_intrinsic(
        "llvm.x86.vgf2p8affineqb.512", [], ir.FunctionType(_BYTES, [_BYTES, _BYTES, _BYTE])
    )
    unit = ir.Constant(_BYTES, [1 << (k % 8) for k in range(GROUP)])
    parts = builder.call(function, [unit, found, _BYTE(0)])
    return builder.bitcast(_shuffle(builder, parts, [8 * (k % 8) + k // 8 for k in range(GROUP)]), _LANES)


def _planes(builder: Any, found: Any) -> Any:
    """The masks of all classes from 64 classes in bytes: the AND, over a class's bits, of the lanes that match."""
    mask = None
    for plane in range(3):
        bits = builder.and_(found, ir.Constant(_BYTES, [1 << plane] * GROUP))
        word = builder.bitcast(builder.icmp_unsigned("!=", bits, ir.Constant(_BYTES, [0] * GROUP)), _I64)
        flips = ir.Constant(_LANES, [0 if c >> plane & 1 else -1 for c in range(MAX_CLASSES)])
        part = builder.xor(_splat(builder, word, _LANES), flips)
        mask = part if mask is None else builder.and_(mask, part)
    return mask


def _look_up(builder: Any, value: Any, row: Any, features: list[str]) -> Any:
    """Look up each byte (below 16) of `value` in `row`: by byte shuffles if available, else by compares and sums."""
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
                half = _order(range(2 * parts[0].type.count))
                parts = [builder.shuffle_vector(a, b, half) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            return parts[0]
    found = _shuffle(builder, row, [0] * GROUP)
    for k in range(1, WINDOW):
        rise = builder.sub(_shuffle(builder, row, [k] * GROUP), _shuffle(builder, row, [k - 1] * GROUP))
        reached = builder.icmp_unsigned(">=", value, ir.Constant(value.type, [k] * GROUP))
        found = builder.add(found, builder.and_(builder.sext(reached, value.type), rise))
    return found


#: `classify(old, 0, table, masks, ends, 0)`; `classify_pair(old, new, table, masks, ends, differ)`.
classify, classify_pair = _classifier(False), _classifier(True)


@intrinsic  # type: ignore[untyped-decorator]
def transpose_ends(typing_context: Any, ends: Any, rows: Any) -> Any:
    """Transpose the ends of a run from 16 quads of 8 classes of 4 groups to 8 classes of 64 groups.

    rows: receives the classes, 256 bytes apart.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ends, rows = args
        for half in range(2):
            lines = [_load(builder, builder.add(ends, _I64(64 * (8 * half + k))), _LANES) for k in range(8)]
            for step in (1, 2, 4):
                low = _order([k if not k & step else k - step + 8 for k in range(8)])
                high = _order([k + step if not k & step else k + 8 for k in range(8)])
                turned = list(lines)
                for k in range(8):
                    if not k & step:
                        turned[k] = builder.shuffle_vector(lines[k], lines[k + step], low)
                        turned[k + step] = builder.shuffle_vector(lines[k], lines[k + step], high)
                lines = turned
            for c in range(8):
                _store(builder, lines[c], builder.add(rows, _I64(256 * c + 64 * half)))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def group_of_index(typing_context: Any, row: Any, class_index: Any) -> Any:
    """`group_of_index(row, class_index) -> u64`: how many of the 64 u16 at `row` are not above `class_index`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ends = _load(builder, args[0], ir.VectorType(_I16, GROUP))
        below = builder.icmp_unsigned("<=", ends, _splat(builder, args[1], ends.type))
        return _call(builder, "llvm.ctpop", _I64, [builder.bitcast(below, _I64)])

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def take_below(typing_context: Any, items: Any, left: Any, start: Any, stop: Any, tag: Any, out: Any) -> Any:
    """`take_below(items, left, start, stop, tag, out) -> u64`: how many of 8 items, and of `left`, lie below `stop`.

    Compares the low 32 bits, which are rising class indices. Copies all 8 to `out`, less `start` and plus `tag`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        items, left, start, stop, tag, out = args
        entries = _load(builder, items, _LANES)
        indices = builder.and_(entries, ir.Constant(_LANES, [0xFFFFFFFF] * READ_AHEAD_ITEMS))
        below = builder.icmp_unsigned("<", indices, _splat(builder, stop, _LANES))
        there = builder.icmp_unsigned(
            "<", ir.Constant(_LANES, list(range(READ_AHEAD_ITEMS))), _splat(builder, left, _LANES)
        )
        entries = builder.sub(entries, _splat(builder, builder.sub(start, tag), _LANES))
        _store(builder, entries, out)
        bits = builder.bitcast(builder.and_(below, there), ir.IntType(READ_AHEAD_ITEMS))
        return _call(builder, "llvm.ctpop", _I64, [builder.zext(bits, _I64)])

    return types.uint64(*[types.uint64] * 6), generate


@intrinsic  # type: ignore[untyped-decorator]
def count_before(typing_context: Any, words: Any, counts: Any) -> Any:
    """Write to `counts`, u64, for each of the 64 u64 at `words` the number of bits set in the words before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words, counts = args
        zeros = ir.Constant(_LANES, [0] * 8)
        before = zeros
        for k in range(8):
            own = _call(builder, "llvm.ctpop", _LANES, [_load(builder, builder.add(words, _I64(64 * k)), _LANES)])
            sums = own
            for step in (1, 2, 4):
                moved = builder.shuffle_vector(
                    zeros, sums, _order([8 - step + i if i >= step else i for i in range(8)])
                )
                sums = builder.add(sums, moved)
            sums = builder.add(sums, before)
            _store(builder, builder.sub(sums, own), builder.add(counts, _I64(64 * k)))
            before = _shuffle(builder, sums, [7] * 8)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def compress(typing_context: Any, units: Any, mask: Any, out: Any) -> Any:
    """Copy the units, of 64 at `units`, whose bits are set in `mask` to `out`, in order.

    Overwrites 64 units at `out`; those after the copied ones are undefined.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        units, mask, out = args
        if "+avx512vbmi2" not in context.codegen()._tm_features.split(","):
            return _move_each(context, builder, *args)
        half = ir.VectorType(_I16, GROUP // 2)
        chosen = ir.VectorType(_I1, GROUP // 2)
        squeeze = builder.module.declare_intrinsic(
            "llvm.x86.avx512.mask.compress.v32i16", [], ir.FunctionType(half, [half, half, chosen])
        )
        for shift in (0, GROUP // 2):
            bits = builder.trunc(builder.lshr(mask, _I64(shift)), ir.IntType(GROUP // 2))
            loaded = _load(builder, builder.add(units, _I64(2 * shift)), half)
            _store(builder, builder.call(squeeze, [loaded, loaded, builder.bitcast(bits, chosen)]), out)
            count = _call(builder, "llvm.ctpop", _I64, [builder.zext(bits, _I64)])
            out = builder.add(out, builder.shl(count, _I64(1)))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), generate


def _move_each(context: Any, builder: Any, units: Any, mask: Any, out: Any) -> Any:
    """`compress`, unit by unit: unconditional stores are cheaper than unpredictable branches."""
    for k in range(GROUP):
        _store(builder, _load(builder, builder.add(units, _I64(2 * k)), _I16), out)
        bit = builder.and_(builder.lshr(mask, _I64(k)), _I64(1))
        out = builder.add(out, builder.shl(bit, _I64(1)))
    return context.get_dummy_value()


@intrinsic  # type: ignore[untyped-decorator]
def select(typing_context: Any, mask: Any, number: Any) -> Any:
    """`select(mask, number) -> u64`: the position of set bit `number`, from 0 on, of `mask`, which must have it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mask, number = args
        if "+bmi2" not in context.codegen()._tm_features.split(","):
            return _bisect(builder, mask, number)
        pdep = builder.module.declare_intrinsic("llvm.x86.bmi.pdep.64", [], ir.FunctionType(_I64, [_I64, _I64]))
        only = builder.call(pdep, [builder.shl(_I64(1), number), mask])
        count = builder.module.declare_intrinsic("llvm.cttz", [_I64], ir.FunctionType(_I64, [_I64, _I1]))
        return builder.call(count, [only, _I1(1)])

    return types.uint64(types.uint64, types.uint64), generate


def _bisect(builder: Any, mask: Any, number: Any) -> Any:
    """`select` by bisection: skip the lower half of the remaining bits if it has too few set bits."""
    position = _I64(0)
    for half in (32, 16, 8, 4, 2, 1):
        low = _call(builder, "llvm.ctpop", _I64, [builder.and_(mask, _I64((1 << half) - 1))])
        skip = builder.icmp_unsigned(">=", number, low)
        number = builder.sub(number, builder.select(skip, low, _I64(0)))
        step = builder.select(skip, _I64(half), _I64(0))
        mask, position = builder.lshr(mask, step), builder.add(position, step)
    return position


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _order(order: Any) -> Any:
    lanes = list(order)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)


def _shuffle(builder: Any, vector: Any, order: Any) -> Any:
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _order(order))


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    """A vector whose lanes are all the low bits of the u64 `value`."""
    undefined = ir.Constant(vector, ir.Undefined)
    low = value if value.type == vector.element else builder.trunc(value, vector.element)
    one = builder.insert_element(undefined, low, ir.IntType(32)(0))
    return _shuffle(builder, one, [0] * vector.count)


def _call(builder: Any, name: str, kind: Any, args: list[Any]) -> Any:
    """Call an LLVM intrinsic whose arguments and result have one type."""
    suffix = f"v{kind.count}i{kind.element.width}" if isinstance(kind, ir.VectorType) else f"i{kind.width}"
    function = builder.module.declare_intrinsic(f"{name}.{suffix}", [], ir.FunctionType(kind, [kind] * len(args)))
    return builder.call(function, args)
