"""Vector operations on groups of 64 units of 16 bits: the masks of their classes, and where a rank lies.

They are written in LLVM's own vector language, which every processor has some lowering for; the instructions that it
does not know (byte shuffles, the transposing of bits, pdep) have plain equivalents, and all ways give the same bits.

A *quad* is four groups. All arguments but ranks and masks are addresses.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

#: Most classes that a table may have.
MAX_CLASSES = 8
#: Scales that can be told apart: this many, in a row; a class for those below, and one for those above, included.
WINDOW = 16
GROUP, QUAD, RUN = 64, 256, 4096
#: Bytes from a table to the sums of the groups that are classified and compared.
SUMS_OFFSET = 64
#: Items that are looked at together, and so may be looked at after the last.
READ_AHEAD_ITEMS = 8

_I1, _I16, _I64, _BYTE = ir.IntType(1), ir.IntType(16), ir.IntType(64), ir.IntType(8)
_LANES = ir.VectorType(_I64, MAX_CLASSES)
_BYTES, _UNITS = ir.VectorType(_BYTE, GROUP), ir.VectorType(_I16, GROUP)
#: Table look-ups of bytes: what a processor must have, the instruction, and its bytes.
_SHUFFLES = (
    ("+avx512bw", "llvm.x86.avx512.pshuf.b.512", 64),
    ("+avx2", "llvm.x86.avx2.pshuf.b", 32),
    ("+ssse3", "llvm.x86.ssse3.pshuf.b.128", 16),
)


def _classifier(compare: bool) -> Any:
    """The operation that classifies a quad, and compares it with another if told so."""

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
        # Four sums of 16 bits in each lane, running on from the last of the quad before.
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
        the class up to the end of each group, counted on from the last of those at `before`. differ: for
        each group a u64, bit k for a unit k that is another than at `new`. Where units are compared, the groups
        are added to 64 lanes of u16 that stand `SUMS_OFFSET` bytes after the table, those at `new` to 64 after these.
        """
        return types.void(*[types.uint64] * 7), generate

    return operation


def _masks(builder: Any, units: Any, first: Any, table: Any, features: list[str]) -> Any:
    """The mask of each class of 64 units."""
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
    """Of 64 bytes of one bit each the words of that bit: bits within each eight bytes, then bytes."""
    function = builder.module.declare_intrinsic(
        "llvm.x86.vgf2p8affineqb.512", [], ir.FunctionType(_BYTES, [_BYTES, _BYTES, _BYTE])
    )
    unit = ir.Constant(_BYTES, [1 << (k % 8) for k in range(GROUP)])
    parts = builder.call(function, [unit, found, _BYTE(0)])
    return builder.bitcast(_shuffle(builder, parts, [8 * (k % 8) + k // 8 for k in range(GROUP)]), _LANES)


def _planes(builder: Any, found: Any) -> Any:
    """Of 64 classes in bytes the mask of each class: for each of a class's bits, the lanes where it is as it should."""
    mask = None
    for plane in range(3):
        bits = builder.and_(found, ir.Constant(_BYTES, [1 << plane] * GROUP))
        word = builder.bitcast(builder.icmp_unsigned("!=", bits, ir.Constant(_BYTES, [0] * GROUP)), _I64)
        flips = ir.Constant(_LANES, [0 if c >> plane & 1 else -1 for c in range(MAX_CLASSES)])
        part = builder.xor(_splat(builder, word, _LANES), flips)
        mask = part if mask is None else builder.and_(mask, part)
    return mask


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
    """Write the ends of a run, 16 quads of 8 classes of 4 groups, to `rows`: 8 classes, each 256 bytes after
    the one before, of 64 groups."""

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
    """`take_below(items, left, start, stop, tag, out) -> u64`: how many of `left` items, and of 8, have a rank (the low
    32 bits; they rise) below `stop`. All 8 are copied to `out`, less `start`, with `tag` added."""

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
    """Write to `counts`, u64, for each of the 64 u64 at `words` how many bits are set in those before it."""

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
    """Copy those of the 64 units at `units` whose bits are set in `mask` to `out`, in order; 64 units there are scratch
    from then on but for these."""

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
    """The same, unit by unit: stores without asking are cheaper than branches that nobody can predict."""
    for k in range(GROUP):
        _store(builder, _load(builder, builder.add(units, _I64(2 * k)), _I16), out)
        bit = builder.and_(builder.lshr(mask, _I64(k)), _I64(1))
        out = builder.add(out, builder.shl(bit, _I64(1)))
    return context.get_dummy_value()


@intrinsic  # type: ignore[untyped-decorator]
def select(typing_context: Any, mask: Any, class_index: Any) -> Any:
    """`select(mask, class_index) -> u64`: the place of set bit number `class_index` of `mask`, which has more than `class_index` set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mask, class_index = args
        if "+bmi2" not in context.codegen()._tm_features.split(","):
            return _search(builder, mask, class_index)
        pdep = builder.module.declare_intrinsic("llvm.x86.bmi.pdep.64", [], ir.FunctionType(_I64, [_I64, _I64]))
        only = builder.call(pdep, [builder.shl(_I64(1), class_index), mask])
        count = builder.module.declare_intrinsic("llvm.cttz", [_I64], ir.FunctionType(_I64, [_I64, _I1]))
        return builder.call(count, [only, _I1(1)])

    return types.uint64(types.uint64, types.uint64), generate


def _search(builder: Any, mask: Any, class_index: Any) -> Any:
    """The same by halves: skip the lower half of what is left where it has too few set bits."""
    place = _I64(0)
    for half in (32, 16, 8, 4, 2, 1):
        low = _call(builder, "llvm.ctpop", _I64, [builder.and_(mask, _I64((1 << half) - 1))])
        skip = builder.icmp_unsigned(">=", class_index, low)
        class_index = builder.sub(class_index, builder.select(skip, low, _I64(0)))
        step = builder.select(skip, _I64(half), _I64(0))
        mask, place = builder.lshr(mask, step), builder.add(place, step)
    return place


def _load(builder: Any, place: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(place, kind.as_pointer()), align=1)


def _store(builder: Any, value: Any, place: Any) -> None:
    builder.store(value, builder.inttoptr(place, value.type.as_pointer()), align=1)


def _order(order: Any) -> Any:
    lanes = list(order)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)


def _shuffle(builder: Any, vector: Any, order: Any) -> Any:
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _order(order))


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
