"""Parts of the specifications of pushing: plans in a line, and a root and a relay that follow one."""

from __future__ import annotations

from p2psync.protocol.messages import Chunk, Subscribe
from p2psync.protocol.plan import NodePlan, TreePosition
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.trees import tag_of
from tests.exchange.exchange_parts import Bench
from tests.swarm.swarm_parts import CHUNK, chunk_data

#: Two chunks at a time for each peer.
CONFIG = ExchangeConfig(
    window_least=1000,
    window_most=4000,
    surplus_most=8000,
    flush_limit=2 * CHUNK,
    push_room=1,
    request_timeout=5.0,
    horizon=0.5,
)


def root_plan(*children: str, revision: int = 1, shares: tuple[int, ...] = ()) -> NodePlan:
    """The trainer's plan: in tree i it pushes to `children[i]`, names joined by "+" where there are several."""
    peers = sorted({name for names in children for name in names.split("+")})
    parts = list(shares) or [1] * len(children)
    positions = [
        TreePosition(-1, [peers.index(name) for name in names.split("+")], 0, float(part))
        for names, part in zip(children, parts, strict=True)
    ]
    return NodePlan(revision, peers, parts, positions)


def relay_plan(*trees: tuple[str, str], revision: int = 1) -> NodePlan:
    """A relay's plan: (parent, children joined by "+", or "") of each tree."""
    peers = sorted({name for parent, children in trees for name in [parent, *filter(None, children.split("+"))]})
    positions = [
        TreePosition(peers.index(parent), [peers.index(name) for name in filter(None, children.split("+"))], 1, 1.0)
        for parent, children in trees
    ]
    return NodePlan(revision, peers, [1] * len(positions), positions)


def root(*children: str, chunks: int = 8, shares: tuple[int, ...] = (), config: ExchangeConfig = CONFIG) -> Bench:
    """A trainer that was told its plan; its peers are up and want everything."""
    bench = Bench(chunks, config=config)
    for name in sorted({name for names in children for name in names.split("+")}):
        bench.peer(name)
        bench.say(name, Subscribe(bench.short, True))
    bench.swarm.follow(root_plan(*children, shares=shares), 0.0)
    bench.actions()
    return bench


def relay(*trees: tuple[str, str], chunks: int = 8, node: str = "", config: ExchangeConfig = CONFIG) -> Bench:
    """An actor that was told its plan and wants everything; all whom the plan names are up."""
    bench = Bench(chunks, config=config, node=node)
    bench.swarm.follow(relay_plan(*trees), 0.0)
    for name in sorted({name for parent, children in trees for name in [parent, *filter(None, children.split("+"))]}):
        bench.peer(name)
    bench.fetch_all()
    return bench


def push(bench: Bench, name: str, index: int, *, tree: int = 0, revision: int = 1, now: float = 0.0) -> None:
    """A chunk comes down a tree."""
    bench.say(name, Chunk(bench.short, index, chunk_data(index), tag_of(revision, tree)), now)
