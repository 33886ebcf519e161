"""Named settings of a whole swarm in virtual time, to be compared side by side: what does one mechanism give?

`POLICIES` holds all of them, `MECHANISMS` those that switch one mechanism off by its settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from p2psync.errors import UsageError
from p2psync.swarm.control.config import MeasureConfig
from p2psync.topology.virtual.swarm import VirtualOptions


@dataclass(frozen=True)
class Policy:
    """A change of the options of a swarm. meaning: in one line, for people."""

    meaning: str
    change: Callable[[VirtualOptions], VirtualOptions]


def _exchange(**settings: Any) -> Callable[[VirtualOptions], VirtualOptions]:
    """Returns a change of settings of the chunk exchange."""

    def change(options: VirtualOptions) -> VirtualOptions:
        swarm = replace(options.node.swarm, **settings)
        return replace(options, node=replace(options.node, swarm=swarm))

    return change


def _measure(part: str = "", **settings: Any) -> Callable[[VirtualOptions], VirtualOptions]:
    """Returns a change of settings of measuring and control, or of one part of them (a field of `MeasureConfig`)."""

    def change(options: VirtualOptions) -> VirtualOptions:
        old: MeasureConfig = options.node.measure
        new = replace(old, **({part: replace(getattr(old, part), **settings)} if part else settings))
        return replace(options, node=replace(options.node, measure=new))

    return change


def _without_slow_path_restarts(options: VirtualOptions) -> VirtualOptions:
    slow_path = replace(options.node.measure.paths.slow_path, slow=0.0)
    return _measure("paths", slow_path=slow_path)(options)


#: One mechanism each, switched off.
MECHANISMS: dict[str, Policy] = {
    "no-window": Policy("the publisher sends as fast as its children take it", _exchange(window_gain=1e6)),
    "no-path-limit": Policy("one path may fill the in-flight window", _exchange(path_gain=math.inf)),
    "no-slow-trees": Policy("slow trees take chunks to the end", _exchange(completion_part=0.0)),
    "no-stragglers": Policy("the window waits for every receiver", _exchange(straggler_share=math.inf)),
    "no-shares": Policy("a tree may be ahead of its share of the chunks", _exchange(ahead=math.inf)),
    "no-stall": Policy("a tree whose children have no room holds the others back", _exchange(stalled_after=math.inf)),
    "no-resend": Policy("a chunk that no peer holds is not sent down another tree", _exchange(resend_after=math.inf)),
    "no-repair": Policy("what a slow peer owes is requested of no second one", _exchange(short_wait=math.inf)),
    "no-free-parents": Policy("parents that pushed their part are asked for no more", _exchange(held_for=math.inf)),
    "no-backlog": Policy("peers with a queue of uploads are asked like all others", _exchange(idle_backlog=math.inf)),
    "no-path-pacing": Policy("paths that lose much are not paced", _measure("paths", max_loss=math.inf)),
    "no-startup-pacing": Policy("transfers start as fast as TCP likes", _measure("paths", queue_seconds=math.inf)),
    "no-slow-restarts": Policy("paths that bring far less than planned do not restart", _without_slow_path_restarts),
    "no-refresh": Policy("busy paths wait until BBR stops them", _measure("paths", refresh_seconds=math.inf)),
    "no-idle-restarts": Policy("idle connections do not restart", _measure("paths", idle_restart_seconds=math.inf)),
    "no-uplink-pacer": Policy("chunks are handed out as connections take them", _measure("uplink", binding=math.inf)),
    "no-degradation": Policy("no path is reported as degraded", _measure("estimates", degraded=0.0)),
    "no-crowding": Policy("flows over a full uplink show their paths", _measure("estimates", crowded=math.inf)),
    "no-ramp": Policy("a flow that just started counts", _measure("estimates", ramp_seconds=0.0, ramp_round_trips=0.0)),
    "no-waiting-invitations": Policy("busy peers decline invitations", _measure("probing", invitation_seconds=0.0)),
    "no-parent-probes": Policy("paths of the plan are not probed", _measure("probing", carried_share=0.0)),
    "no-probe-turns": Policy("all nodes of a region probe others at once", _measure("probing", rank_seconds=0.0)),
    "one-uplink-peer": Policy("an uplink is probed with one peer", _measure("probing", uplink_peers=1)),
    "one-downlink-peer": Policy("a downlink is probed with one peer", _measure("probing", downlink_peers=1)),
    "no-confirmation": Policy("a figure of one probe is sure", _measure("probing", confirmed_factor=math.inf)),
}  # fmt: skip

POLICIES: dict[str, Policy] = {
    "default": Policy("every node as it is installed", lambda options: options),
    **MECHANISMS,
    "no-probing": Policy("nodes measure what flows, and send no probes", _measure(probe=False)),
    "one-stream": Policy(
        "one connection to each peer", lambda options: replace(options, node=replace(options.node, streams=1))
    ),
    "true-plan": Policy("the hub plans from the network as it is", lambda options: replace(options, plan="true")),
    "no-plan": Policy("there is no plan: every chunk is requested", lambda options: replace(options, plan="none")),
}


def policy_named(name: str) -> Policy:
    """Returns a policy of `POLICIES`, or several at once: names with `+`. Raises `KeyError`."""
    parts = [POLICIES[part] for part in name.split("+")]

    def change(options: VirtualOptions) -> VirtualOptions:
        for part in parts:
            options = part.change(options)
        return options

    return parts[0] if len(parts) == 1 else Policy("; ".join(part.meaning for part in parts), change)


def chosen_policies(text: str, everything: Iterable[str]) -> list[str]:
    """Returns the names that `--policy` lists, with commas. everything: those of `all`. Raises `UsageError`."""
    if text == "all":
        return list(everything)
    chosen = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    unknown = [part for name in chosen for part in name.split("+") if part not in POLICIES]
    if unknown or not chosen:
        raise UsageError(
            f"--policy {(unknown or [text])[0]!r}: choose all, or of {', '.join(POLICIES)}; several at once: a+b"
        )
    return chosen
