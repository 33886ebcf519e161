"""Versions on the requests of a vLLM server: a proxy in front of it that knows the live version.

    python version_proxy.py --server http://127.0.0.1:8000 --join http://TRAINER:7070 --trust ed25519:… --port 8001

With --join the server is told to join the run, and is conducted from here, over its own routes: it was started with
VLLM_SERVER_DEV_MODE=1, and only this proxy, which passes on nothing but /v1/, is to be reached from elsewhere. Without
--join the server conducts itself (VLLM_PLUGINS=p2psync). It goes on until SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from contextlib import AsyncExitStack

from p2psync.actor.rollout_proxy import ProxyEngine
from p2psync.actor.rollout_server import RolloutServer
from p2psync.actor.vllm.work import EngineVersion, server_status
from p2psync.engines.vllm.conductor import ConductedCommit, HTTPControls, conducting


def told(swap: ConductedCommit) -> None:
    """A commit."""
    print(f"version {swap.version} after a pause of {1e3 * swap.pause_seconds:.1f} ms", flush=True)


async def run(args: argparse.Namespace) -> None:
    """Serve."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        status = server_status(args.server)
        if args.join is not None:
            controls = HTTPControls(args.server)
            await controls.join(hub_url=args.join, trust=args.trust, store=args.store, region=args.region)
            await stack.enter_async_context(conducting(controls, on_commit=told))
            status = controls.status
        engine = await stack.enter_async_context(ProxyEngine(args.server))
        proxy = RolloutServer(EngineVersion(status), engine)
        stack.push_async_callback(proxy.stop)
        port = await proxy.start(args.host, args.port)
        print(f"the proxy is at http://{args.host}:{port}", flush=True)
        await ended.wait()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="URL of the vLLM server")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--join", help="the trainer's hub")
    parser.add_argument("--trust", action="append", default=[], help="the trainer's public key")
    parser.add_argument("--store", default="", help="directory of chunks on the server's machine")
    parser.add_argument("--region", default="")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
