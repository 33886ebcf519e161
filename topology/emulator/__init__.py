"""A WAN on one machine: a network namespace per host, and one process that carries packets between them.

    with Emulator(load(Path("wan.toml")), congestion="bbr") as network:
        server = network.run("eu-0", ["iperf3", "-s"])
        client = network.run("us-1", ["iperf3", "-c", network.address("eu-0")])
        network.set_link("eu", "us", rate=10)
        print(network.counters().links["us>eu"])

Real programs use real TCP, with each host's rates, and each region pair's shared rate, delay, loss and buffer. Needs
root, `ip` and /dev/net/tun, but no queueing disciplines such as netem. No packet leaves the namespaces.
"""

from p2psync.topology.emulator import namespaces, runs
from p2psync.topology.emulator.emulator import Emulator, bring_up, take_down, why_not
from p2psync.topology.emulator.messages import Counter, Counters
from p2psync.topology.emulator.network import EmulatedNetwork
from p2psync.topology.emulator.scenario import CommandOutcome, Scenario

__all__ = [
    "CommandOutcome",
    "Counter",
    "Counters",
    "EmulatedNetwork",
    "Emulator",
    "Scenario",
    "bring_up",
    "namespaces",
    "runs",
    "take_down",
    "why_not",
]
