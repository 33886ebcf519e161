"""Networks of places drawn from a seed, and topologies written as TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2psync.errors import UsageError
from p2psync.topology.model import load
from p2psync.topology.network import from_topology
from p2psync.topology.places import KINDS, MAX_DELAY_MS, MAX_LOSS, draw_places
from p2psync.topology.planner import make_plan
from p2psync.topology.toml_text import topology_toml

EXAMPLES = Path(__file__).parents[2] / "examples" / "topologies"
SEEDS = range(200)


def test_a_seed_gives_one_network() -> None:
    assert draw_places(3) == draw_places(3)
    assert draw_places(3) != draw_places(4)


def test_drawn_networks_are_whole_and_span_every_kind_delay_and_loss() -> None:
    kinds: set[str] = set()
    delays, losses = [], []
    for seed in SEEDS:
        topology = draw_places(seed)
        topology.check()
        network = from_topology(topology)
        assert 3 <= network.size <= 12
        assert network.dialable[network.trainer]
        assert network.reachable().all()
        kinds |= {name.rstrip("0123456789") for name in topology.region}
        delays += [link.delay_ms for link in topology.link]
        losses += [link.loss for link in topology.link]
    assert kinds == set(KINDS)
    assert min(delays) < 10 and 290 < max(delays) <= MAX_DELAY_MS
    assert min(losses) < 0.001 and 0.012 < max(losses) <= MAX_LOSS


def test_a_plan_comes_near_the_bound_of_drawn_networks() -> None:
    assert min(make_plan(from_topology(draw_places(seed))).ratio for seed in range(12)) > 0.95


def test_too_few_hosts_are_refused() -> None:
    with pytest.raises(UsageError, match="2 hosts"):
        draw_places(0, hosts=2)


@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_network_is_read_back_as_it_was_written(tmp_path: Path, seed: int) -> None:
    (tmp_path / "drawn.toml").write_text(topology_toml(draw_places(seed)))
    assert load(tmp_path / "drawn.toml") == draw_places(seed)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_read_back_as_it_was_written(tmp_path: Path, path: Path) -> None:
    (tmp_path / "again.toml").write_text(topology_toml(load(path)))
    assert load(tmp_path / "again.toml") == load(path)
