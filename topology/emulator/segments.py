"""Headers of packets, compiled: parsing them, and splitting super-packets into smaller ones."""

from __future__ import annotations

from typing import Any

from p2psync.topology.emulator import syscalls
from p2psync.topology.emulator.compiled import kernel, wide
from p2psync.topology.emulator.packet_memory import allocate, offset_of
from p2psync.topology.emulator.plane import Plane

_memcpy = syscalls.memcpy
#: Bytes of struct virtio_net_hdr before every packet: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
VNET_BYTES = 10
_NEEDS_CHECKSUM, _GSO_TCP4, _GSO_UDP = 1, 1, 5
_TCP = 6
_FIN, _SYN, _PSH, _ACK, _CWR = 0x01, 0x02, 0x08, 0x10, 0x80


@kernel
def _get16(memory: Any, at: int) -> int:
    return int((wide(memory[at]) << 8) | wide(memory[at + 1]))


@kernel
def _put16(memory: Any, at: int, value: int) -> None:
    memory[at] = (value >> 8) & 255
    memory[at + 1] = value & 255


@kernel
def _sum16(memory: Any, at: int, size: int, start: int) -> int:
    """Returns the ones' complement sum of big-endian 16-bit words, folded but not inverted."""
    total = start
    for i in range(at, at + size, 2):
        total += _get16(memory, i)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@kernel
def _rewrite_transport(memory: Any, packet: Any, ip: int, transport: int, first: int, is_last: bool) -> None:
    size = packet.length - (transport - ip)
    if memory[ip + 9] == _TCP:
        sequence = (_get16(memory, transport + 4) << 16) + _get16(memory, transport + 6) + first * packet.mss
        _put16(memory, transport + 4, (sequence >> 16) & 0xFFFF)
        _put16(memory, transport + 6, sequence & 0xFFFF)
        if first > 0:
            memory[transport + 13] &= 255 - _CWR
        if not is_last:
            memory[transport + 13] &= 255 - (_FIN | _PSH)
        check = transport + 16
    else:
        _put16(memory, transport + 4, size)
        check = transport + 6
    # The receiver's kernel expects the sum of the pseudo-header, and completes it where needed.
    _put16(memory, check, _sum16(memory, ip + 12, 8, wide(memory[ip + 9]) + size))


@kernel
def _rewrite_headers(plane: Plane, slot: int, first: int, count: int, is_last: bool) -> None:
    """Rewrites the headers of `slot` for `count` segments from segment `first` of the packet that it was copied
    from."""
    memory, packet = plane.memory, plane.packets[slot]
    vnet = offset_of(slot)
    ip = vnet + VNET_BYTES
    ip_bytes = 4 * wide(memory[ip] & 15)
    _put16(memory, ip + 2, packet.length)
    _put16(memory, ip + 4, (_get16(memory, ip + 4) + first) & 0xFFFF)
    _put16(memory, ip + 10, 0)
    _put16(memory, ip + 10, _sum16(memory, ip, ip_bytes, 0) ^ 0xFFFF)
    _rewrite_transport(memory, packet, ip, ip + ip_bytes, first, is_last)
    memory[vnet] = _NEEDS_CHECKSUM
    if count == 1:
        memory[vnet + 1] = 0
        memory[vnet + 4] = 0
        memory[vnet + 5] = 0
        packet.mss = 0
    memory[vnet + 2] = packet.header & 255
    memory[vnet + 3] = packet.header >> 8
    packet.segments = count
    packet.wire = packet.length + (count - 1) * packet.header


@kernel
def copy_segments(plane: Plane, slot: int, first: int, count: int) -> int:
    """Returns a new packet with `count` segments from segment `first` on; -1 without memory."""
    packets = plane.packets
    whole = packets[slot]
    begin = first * whole.mss
    end = min((first + count) * whole.mss, whole.length - whole.header)
    new = allocate(plane, VNET_BYTES + whole.header + end - begin)
    if new < 0:
        return -1
    packets[new] = whole
    packets[new].length = whole.header + end - begin
    source, target = plane.memory_at + offset_of(slot), plane.memory_at + offset_of(new)
    head = VNET_BYTES + whole.header
    _memcpy(target, source, head)
    _memcpy(target + head, source + head + begin, end - begin)
    _rewrite_headers(plane, new, first, count, first + count == whole.segments)
    return new


@kernel
def truncate(plane: Plane, slot: int, count: int) -> None:
    """Keeps the first `count` segments of a super-packet; fewer than it has."""
    packet = plane.packets[slot]
    packet.length = packet.header + count * packet.mss
    _rewrite_headers(plane, slot, 0, count, False)


@kernel
def parse(plane: Plane, slot: int, size: int, source: int) -> bool:
    """Fills in a packet's fields from its headers. Returns False for a packet to no host of this network."""
    memory, packet = plane.memory, plane.packets[slot]
    vnet = offset_of(slot)
    ip = vnet + VNET_BYTES
    if size < VNET_BYTES + 20 or memory[ip] >> 4 != 4 or memory[ip + 16] != 10 or memory[ip + 17] != 77:
        return False
    target = _get16(memory, ip + 18) - 1
    if target < 0 or target >= plane.tuns.size or target == source:
        return False
    packet.source, packet.target = source, target
    packet.length = size - VNET_BYTES
    packet.mss, packet.header, packet.segments = 0, 0, 1
    kind = memory[vnet + 1] & 0x7F
    if kind != 0:
        header = 4 * wide(memory[ip] & 15)
        if kind == _GSO_TCP4:
            header += wide(memory[ip + header + 12] >> 4) * 4
        elif kind == _GSO_UDP:
            header += 8
        else:
            return False
        mss = wide(memory[vnet + 4]) | (wide(memory[vnet + 5]) << 8)
        payload = packet.length - header
        if mss == 0 or payload <= 0:
            return False
        packet.mss, packet.header = mss, header
        packet.segments = (payload + mss - 1) // mss
    packet.wire = packet.length + (packet.segments - 1) * packet.header
    return True


@kernel
def is_dialling(plane: Plane, slot: int) -> bool:
    """Returns whether a packet requests a TCP connection."""
    memory = plane.memory
    ip = offset_of(slot) + VNET_BYTES
    flags = memory[ip + 4 * wide(memory[ip] & 15) + 13]
    return bool(memory[ip + 9] == _TCP and flags & (_SYN | _ACK) == _SYN)
