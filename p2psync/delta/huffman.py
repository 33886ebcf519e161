"""Canonical Huffman codes of at most 8 bits: lengths by count, codes by length, tables for a reader."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psync.delta.kernels import kernel

#: Longest code.
MAX_BITS = 8


@kernel
def code_lengths(counts: NDArray[np.int64], limit: int, lengths: NDArray[np.uint8]) -> None:
    """Huffman code lengths, none above `limit`, of symbols with these counts; 0 of those that do not occur."""
    order = np.empty(counts.size, np.int64)
    weights = np.empty(2 * counts.size, np.int64)
    parents = np.empty(2 * counts.size, np.int64)
    flat = 0
    while True:
        n = 0
        for symbol in range(counts.size):
            lengths[symbol] = 0
            if counts[symbol]:
                weight = ((counts[symbol] - 1) >> flat) + 1
                k = n
                while k and weights[k - 1] > weight:
                    weights[k], order[k] = weights[k - 1], order[k - 1]
                    k -= 1
                weights[k], order[k] = weight, symbol
                n += 1
        if n < 2:
            for k in range(n):
                lengths[order[k]] = 1
            return
        deepest = _grow(weights, parents, n)
        if deepest <= limit:
            for k in range(n):
                lengths[order[k]] = parents[k]
            return
        flat += 1


@kernel
def _grow(weights: NDArray[np.int64], parents: NDArray[np.int64], n: int) -> int:
    """From n rising weights: each one's depth in the tree, in `parents`; returns the deepest."""
    leaf, node = 0, n
    for made in range(n, 2 * n - 1):
        weights[made] = 0
        for _ in range(2):
            if leaf < n and (node >= made or weights[leaf] <= weights[node]):
                pick = leaf
                leaf += 1
            else:
                pick = node
                node += 1
            weights[made] += weights[pick]
            parents[pick] = made
    parents[2 * n - 2] = 0
    deepest = 0
    for k in range(2 * n - 3, -1, -1):
        parents[k] = parents[parents[k]] + 1
        deepest = max(deepest, parents[k])
    return deepest


@kernel
def assign_codes(lengths: NDArray[np.uint8], book: NDArray[np.uint32]) -> bool:
    """The code of each symbol, with its length from bit 16 on; False if there are more codes than fit.

    Codes are canonical: by length, then by symbol, counted up; their bits are then turned round, first bit lowest.
    """
    code = 0
    for size in range(1, MAX_BITS + 1):
        code <<= 1
        for symbol in range(lengths.size):
            if lengths[symbol] == size:
                turned = 0
                for k in range(size):
                    turned |= ((code >> k) & 1) << (size - 1 - k)
                book[symbol] = turned | size << 16
                code += 1
        if code > 1 << size:
            return False
    return True


@kernel
def fill_codes(book: NDArray[np.uint32], lengths: NDArray[np.uint8], table: NDArray[np.uint16]) -> None:
    """The table that gives for the next bits the symbol: the code's length in 4 bits, then the symbol."""
    for symbol in range(lengths.size):
        size = int(lengths[symbol])
        if size:
            for place in range(int(book[symbol]) & 0xFFFF, table.size, 1 << size):
                table[place] = size | symbol << 4
