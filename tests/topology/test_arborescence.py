"""The cheapest arborescence equals the best one of an exhaustive search."""

from itertools import product

import numpy as np
import pytest

from p2psync.topology.arborescence import cheapest_arborescence


def spans(parents: tuple[int, ...], root: int) -> bool:
    """Returns whether parents lead from every node to the root."""
    for node in range(len(parents)):
        seen = set()
        while node != root:
            if node in seen:
                return False
            seen.add(node)
            node = parents[node]
    return True


def tried(cost: np.ndarray, root: int) -> float:
    """The least cost of all arborescences."""
    nodes = range(len(cost))
    choices = [[root] if v == root else [u for u in nodes if u != v] for v in nodes]
    return min(
        sum(cost[parents[v], v] for v in nodes if v != root) for parents in product(*choices) if spans(parents, root)
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_arborescence_has_the_least_cost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, root = int(rng.integers(2, 6)), 0
    root = int(rng.integers(size))
    cost = rng.integers(0, 6, (size, size)).astype(float)
    parents = cheapest_arborescence(cost, root)
    assert parents[root] == -1
    assert spans(tuple(parents.tolist()), root)
    assert sum(cost[parents[v], v] for v in range(size) if v != root) == tried(cost, root)


def test_missing_arcs_are_not_used() -> None:
    cost = np.full((5, 5), np.inf)
    for u, v in ((0, 3), (3, 1), (1, 4), (4, 2), (2, 1), (2, 4)):
        cost[u, v] = 1.0
    cost[4, 2], cost[2, 1], cost[2, 4] = 0.0, 0.0, 0.0
    assert cheapest_arborescence(cost, 0).tolist() == [-1, 3, 4, 0, 1]


def test_nested_cycles_are_expanded() -> None:
    rng = np.random.default_rng(5)
    at = rng.random(60)
    # Arcs between near nodes are cheap in both directions: groups form cycles, and groups of groups do.
    cost = np.abs(at[:, None] - at[None, :]) * (1 + 0.01 * rng.random((60, 60)))
    assert spans(tuple(cheapest_arborescence(cost, 7).tolist()), 7)
