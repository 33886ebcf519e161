"""A second implementation of profile `tight` of docs/reference/formats.md in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import reference
import zstandard

from p2psync.delta.tensors import TableRow

Steps = dict[tuple[int, int], int]
#: Returns a row's history, or None: for each unit whether it is known, and whether its last step was negative.
HistoryLookup = Callable[[int], Sequence[Sequence[int]] | None]


def read_chunk(
    data: bytes,
    rows: Sequence[TableRow],
    block_units: int,
    base: Callable[[int], Sequence[int]],
    history: HistoryLookup = lambda row: None,
) -> list[Steps]:
    """Returns for each block, in rising order, the steps, as {(row, unit): step}."""
    if data[1] == 1:
        return reference.read_chunk(data, rows, block_units)
    assert data[:2] in (b"\x70\x02", b"\x70\x03")
    given = rows, block_units, base
    if data[1] == 2:
        meta, symbols, rest = cut(data, 3)
        found = read_part(meta, symbols, *given, lambda row, unit: True)
    else:
        meta, symbols, known_meta, known_symbols, signs, rest = cut(data, 6)

        def known(row: int, unit: int) -> bool:
            bits = history(row)
            return bits is not None and bits[0][unit] == 1

        found = read_part(meta, symbols, *given, lambda row, unit: not known(row, unit))
        steps = read_part(known_meta, known_symbols, *given, known, signed=not signs)
        found = join(found, apply_signs(steps, signs, history) if signs else steps, min(block_units, 1 << 20))
    if rest:
        found += reference.read_chunk(b"\x70\x01" + rest, rows, block_units)
    return sorted(found, key=min)


def cut(data: bytes, count: int) -> list[bytes]:
    at, lengths, parts = 2, [], []
    for _ in range(count):
        length, at = varint(data, at)
        lengths.append(length)
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    assert at == len(data)
    return parts


def read_part(
    meta: bytes,
    symbols: bytes,
    rows: Sequence[TableRow],
    block_units: int,
    base: Callable[[int], Sequence[int]],
    selected: Callable[[int, int], bool],
    *,
    signed: bool = True,
) -> list[Steps]:
    """Returns for each block the steps of the units that are `selected`."""
    found: list[Steps] = []
    if not meta:
        return found
    tables, headers = streams(meta)
    window, shifts, owners, extra_owners = read_tables(tables)
    for row, start, units, sizes, first, last in read_block_headers(headers, rows, block_units, len(shifts)):
        old = [int(unit) for unit in base(row)[start : start + units]]
        bits = Bits(symbols[first:last])
        while bits.take(1) == 0:
            pass
        bits.state = bits.take(11)
        units_of: list[list[int]] = [[] for _ in sizes]
        for unit in range(start, start + units):
            if selected(row, unit):
                units_of[class_of(old[unit - start], window)].append(unit)
        steps: Steps = {}
        for c, size in enumerate(sizes):
            index = -1
            for _ in range(size):
                gap, step = read_change(bits, shifts[c], owners[c], extra_owners[c], signed)
                index += gap + 1
                steps[row, units_of[c][index]] = step
        assert bits.at == 8 * len(bits.data)
        assert bits.state == 0
        found.append(dict(sorted(steps.items())))
    return found


def apply_signs(blocks: list[Steps], signs: bytes, history: HistoryLookup) -> list[Steps]:
    """Apply the signs to blocks whose steps are all positive."""
    rice, continues = divmod(signs[0], 2)
    count, at = varint(signs, 1)
    bits, number, residuals = Bits(signs[at:]), -1, set()
    for _ in range(count):
        high = 0
        while bits.take(1):
            high += 1
        number += (high << rice) + bits.take(rice) + 1
        residuals.add(number)
    signed_blocks, passed = [], 0
    for steps in blocks:
        signed_blocks.append({})
        for (row, unit), step in steps.items():
            bits_of = history(row)
            assert bits_of is not None
            same_direction = continues == 1 if passed not in residuals else continues == 0
            down = (bits_of[1][unit] == 1) == same_direction
            signed_blocks[-1][row, unit] = -step % 65536 if down else step
            passed += 1
    return signed_blocks


def join(others: list[Steps], known: list[Steps], span: int) -> list[Steps]:
    """The blocks of both parts; blocks of one range are joined."""
    found: dict[tuple[int, int], Steps] = {}
    for steps in others + known:
        row, unit = min(steps)
        found.setdefault((row, unit // span), {}).update(steps)
    return list(found.values())


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def streams(data: bytes) -> list[bytes]:
    at, directory = 0, []
    for _ in range(2):
        length, at = varint(data, at)
        stored, at = varint(data, at) if length else (0, at)
        directory.append((length, stored))
    out = []
    for length, stored in directory:
        raw = data[at : at + (stored or length)]
        at += len(raw)
        out.append(zstandard.ZstdDecompressor().decompress(raw) if stored else raw)
        assert len(out[-1]) == length
    assert at == len(data)
    return out


def read_tables(data: bytes) -> tuple[list[int], list[int], list[list[int]], list[list[int]]]:
    window = [data[0]] + [data[1 + k // 2] >> 4 * (k % 2) & 15 for k in range(16)]
    at, shifts, owners, extra_owners = 9, [], [], []
    for _ in range(max(window[1:]) + 1):
        shift, used = data[at : at + 2]
        at += 2
        levels = [0] * 144
        for kind in range(3):
            level = 0
            for bucket in range(used):
                level = (level + data[at]) % 256
                levels[48 * kind + bucket] = level
                at += 1
        extra = data[at]
        shifts.append(shift)
        owners.append(spread(levels))
        extra_owners.append(spread(list(data[at + 1 : at + 1 + extra])))
        at += 1 + extra
    assert at == len(data)
    return window, shifts, owners, extra_owners


def spread(levels: list[int]) -> list[int]:
    """The symbol of each state; empty if no symbol has a level."""
    weights = [(4 + (level - 2) % 4) * 2 ** ((level - 2) // 4) if level > 1 else 0 for level in levels]
    left = 2048 - sum(level > 0 for level in levels)
    owners, place, done = [-1] * 2048, 0, 0
    for symbol, level in enumerate(levels):
        before, done = done, done + weights[symbol]
        if level:
            for _ in range(1 + done * left // sum(weights) - before * left // sum(weights)):
                owners[place % 2048] = symbol
                place += 1283
    assert place in (0, 2048 * 1283)
    return owners


def read_block_headers(
    data: bytes, rows: Sequence[TableRow], block_units: int, classes: int
) -> list[tuple[int, int, int, list[int], int, int]]:
    headers, at, row, index, sizes, end = [], 0, 0, -1, [0] * classes, 0
    while at < len(data):
        step, at = varint(data, at)
        offset, at = varint(data, at)
        index = offset if step else index + 1 + offset
        row += step
        for c in range(classes):
            change, at = varint(data, at)
            sizes[c] += change // 2 if change % 2 == 0 else -(change + 1) // 2
        size, at = varint(data, at)
        span = min(block_units, 1 << 20)
        units = min(span, rows[row].spec.count - index * span)
        headers.append((row, index * span, units, list(sizes), end, end + size))
        end += size
    return headers


def class_of(unit: int, window: list[int]) -> int:
    return window[1 + min(max((unit >> 7 & 255) - window[0], 0), 15)]


class Bits:
    """The bits of bytes, the lowest of each byte first."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.state = data, 0, 0

    def take(self, count: int) -> int:
        value = 0
        for k in range(count):
            value |= (self.data[self.at >> 3] >> (self.at & 7) & 1) << k
            self.at += 1
        return value

    def symbol(self, owners: list[int]) -> int:
        """Read a symbol: returns the state's symbol and computes the next state."""
        symbol = owners[self.state]
        # Of the symbol's states this is number so many, and it has so many in all.
        number, count = owners[: self.state].count(symbol), owners.count(symbol)
        bits = 11 - (count + number).bit_length() + 1
        self.state = ((count + number) << bits) - 2048 + self.take(bits)
        return symbol


def read_change(bits: Bits, shift: int, owners: list[int], extra_owners: list[int], signed: bool) -> tuple[int, int]:
    sign, near = bits.take(signed), bits.take(shift)
    kind, bucket = divmod(bits.symbol(owners), 48)
    if bucket == 47:
        bucket += bits.take(20 - shift)
    magnitude = kind + 1
    if kind == 2:
        extra = bits.symbol(extra_owners)
        b = (extra + 1) // 2
        if b and signed:
            low, sign = 2 * bits.take(b - 1) + sign, int(extra % 2 == 0)
            magnitude = 2 + (1 << b) + low
        elif b:
            magnitude = 2 + (1 << b) + bits.take(b)
        else:
            magnitude = 3
    return (bucket << shift) + near, (-magnitude if sign else magnitude) % 65536
