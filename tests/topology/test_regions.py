"""Regions are found from realistic round-trip times: with jitter, detours and gaps."""

import numpy as np
import pytest

from p2psync.topology.regions import cluster

# Round-trip times between cities, in milliseconds, as public measurements show them.
CITIES = ("frankfurt", "virginia", "oregon", "tokyo", "sydney", "sao-paulo")
BETWEEN = np.array(
    [
        [0, 89, 142, 225, 290, 203],
        [89, 0, 67, 146, 200, 115],
        [142, 67, 0, 97, 140, 175],
        [225, 146, 97, 0, 105, 256],
        [290, 200, 140, 105, 0, 311],
        [203, 115, 175, 256, 311, 0],
    ]
)


def measured(truth: list[int], seed: int, *, missing: float = 0.0, last_mile: float = 2.0, jitter: float = 0.1):  # type: ignore[no-untyped-def]
    """Round-trip times in seconds between nodes in cities: a last mile of each, jitter of each measurement."""
    rng = np.random.default_rng(seed)
    own = rng.exponential(last_mile / 2, len(truth))
    rtt = BETWEEN[np.ix_(truth, truth)] + 0.4 + own[:, None] + own[None, :]
    rtt = rtt * (1 + rng.exponential(jitter, rtt.shape))
    rtt[rng.random(rtt.shape) < missing] = np.nan
    np.fill_diagonal(rtt, np.nan)
    return rtt / 1000


def same(found: np.ndarray, truth: list[int]) -> bool:
    """Returns whether two labellings are the same partition."""
    pairs = set(zip(found.tolist(), truth, strict=True))
    return len(pairs) == len(set(truth)) == len(set(found.tolist()))


@pytest.mark.parametrize("seed", range(20))
def test_cities_are_distinguished_through_jitter_and_last_miles(seed: int) -> None:
    truth = [k % 6 for k in range(30)]
    assert same(cluster(measured(truth, seed)), truth)


@pytest.mark.parametrize("seed", range(20))
def test_a_third_of_all_pairs_may_be_missing(seed: int) -> None:
    truth = [k % 5 for k in range(40)]
    assert same(cluster(measured(truth, seed, missing=0.33)), truth)


def test_uneven_regions_and_lone_nodes_are_found() -> None:
    truth = [0] * 12 + [1] * 2 + [2] + [3] * 5
    assert same(cluster(measured(truth, 3)), truth)


def test_hosts_behind_one_switch_are_one_region() -> None:
    rng = np.random.default_rng(0)
    assert set(cluster(rng.uniform(0.0001, 0.0015, (12, 12))).tolist()) == {0}


def test_nodes_that_are_all_far_from_each_other_are_regions_of_one() -> None:
    rng = np.random.default_rng(1)
    far = rng.uniform(0.08, 0.12, (5, 5))
    assert sorted(cluster(np.maximum(far, far.T)).tolist()) == [0, 1, 2, 3, 4]


def test_two_continents_of_cities_nearby_are_regions_by_city_or_continent_but_never_across() -> None:
    at = np.array([0, 8, 15, 100, 108, 115]).repeat(3)
    rtt = (np.abs(at[:, None] - at[None, :]) + 1.0) / 1000
    found = cluster(rtt)
    assert not set(found[:9].tolist()) & set(found[9:].tolist())


def test_one_node_halfway_does_not_chain_two_regions_together() -> None:
    at = np.array([0.0] * 5 + [50.0] * 5 + [25.0])
    found = cluster((np.abs(at[:, None] - at[None, :]) + 1) / 1000)
    assert found[0] != found[5]


def test_the_order_of_nodes_does_not_matter() -> None:
    truth = [k % 4 for k in range(16)]
    rtt = measured(truth, 7)
    order = np.random.default_rng(2).permutation(16)
    assert same(cluster(rtt[np.ix_(order, order)]), cluster(rtt)[order].tolist())


def test_a_node_without_any_measurement_is_a_region_of_its_own() -> None:
    rtt = measured([0, 0, 0, 1, 1, 1, 0], 5)
    rtt[6, :] = rtt[:, 6] = np.nan
    assert cluster(rtt).tolist() == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("count", [0, 1])
def test_few_nodes_are_one_region(count: int) -> None:
    assert cluster(np.zeros((count, count))).tolist() == [0] * count


def test_regions_are_found_though_each_of_many_nodes_timed_few_others() -> None:
    rng = np.random.default_rng(1)
    nodes, regions = 400, np.arange(400) % 8
    rtt = np.full((nodes, nodes), np.nan)
    for i in range(nodes):
        for j in rng.choice(nodes, 24, replace=False):
            if i != j:
                rtt[i, j] = (0.002 if regions[i] == regions[j] else 0.03 + 0.01 * abs(regions[i] - regions[j])) * (
                    1 + 0.2 * rng.random()
                )
    labels = cluster(rtt)
    # One or two nodes that measured no near node are regions of their own; no node is in a wrong region.
    assert len(set(labels.tolist())) <= 10
    assert len(set(zip(labels.tolist(), regions.tolist(), strict=True))) == len(set(labels.tolist()))
