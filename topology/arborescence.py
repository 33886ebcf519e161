"""The cheapest arborescence of a dense digraph (Chu and Liu 1965, Edmonds 1967; with Tarjan's path growing)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from p2psync.topology.network import Floats, Ints

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    return cast(_F, numba.njit(nogil=True, cache=True)(function))


_UNSEEN, _ON_PATH, _DONE = 0, 1, 2


@_compiled
def cheapest_arborescence(cost: Floats, root: int) -> Ints:
    """Returns the parent of each node (int64; -1 at the root) in the spanning arborescence of least total cost; O(n²).

    cost: float64 nodes × nodes, from row to column; inf where there is no arc. Every node must be reachable from the
    root. Equal costs give equal trees.
    """
    n = cost.shape[0]
    size = 2 * n
    weight = np.full((size, size), np.inf)
    weight[:n, :n] = cost
    # The original arc behind each arc between contracted nodes.
    tail = np.zeros((size, size), np.int64)
    head = np.zeros((size, size), np.int64)
    for u in range(n):
        for v in range(n):
            tail[u, v], head[u, v] = u, v
    active = np.zeros(size, np.bool_)
    active[:n] = True
    state = np.full(size, _UNSEEN, np.int64)
    state[root] = _DONE
    # The contracted node that contains each node.
    contraction = np.full(size, -1, np.int64)
    chosen_tail = np.full(size, -1, np.int64)
    chosen_head = np.full(size, -1, np.int64)
    least = np.zeros(size)
    path = np.zeros(size, np.int64)
    nodes = n
    for start in range(n):
        if state[start] != _UNSEEN or not active[start]:
            continue
        path[0], length = start, 1
        state[start] = _ON_PATH
        while True:
            v = path[length - 1]
            u = -1
            for x in range(nodes):
                if active[x] and x != v and (u < 0 or weight[x, v] < weight[u, v]):
                    u = x
            chosen_tail[v], chosen_head[v], least[v] = tail[u, v], head[u, v], weight[u, v]
            if state[u] == _DONE:
                for k in range(length):
                    state[path[k]] = _DONE
                break
            if state[u] == _UNSEEN:
                state[u] = _ON_PATH
                path[length] = u
                length += 1
                continue
            new = nodes
            nodes += 1
            while True:
                length -= 1
                k = path[length]
                active[k] = False
                contraction[k] = new
                for x in range(new):
                    if weight[x, k] - least[k] < weight[x, new]:
                        weight[x, new] = weight[x, k] - least[k]
                        tail[x, new], head[x, new] = tail[x, k], head[x, k]
                    if weight[k, x] < weight[new, x]:
                        weight[new, x] = weight[k, x]
                        tail[new, x], head[new, x] = tail[k, x], head[k, x]
                if k == u:
                    break
            active[new] = True
            state[new] = _ON_PATH
            path[length] = new
            length += 1
    return _expand(n, nodes, root, active, contraction, chosen_tail, chosen_head)


@_compiled
def _expand(
    n: int, nodes: int, root: int, active: Ints, contraction: Ints, chosen_tail: Ints, chosen_head: Ints
) -> Ints:
    """Returns the parents in the original graph: the arc into a contracted node enters one of its members, and replaces
    that member's arc."""
    parents = np.full(n, -1, np.int64)
    stack = np.zeros(2 * nodes, np.int64)
    length = 0
    for x in range(nodes):
        if active[x] and x != root:
            stack[length] = x
            length += 1
    while length > 0:
        length -= 1
        top = stack[length]
        k = chosen_head[top]
        parents[k] = chosen_tail[top]
        while k != top:
            whole = contraction[k]
            for x in range(nodes):
                if contraction[x] == whole and x != k:
                    stack[length] = x
                    length += 1
            k = whole
    return parents
