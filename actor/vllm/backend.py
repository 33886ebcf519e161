"""The weight-transfer backend `p2psync` in vLLM's workers.

At the start each rank learns where the checkpoint's units lie in its parameters (`p2psync.engines.vllm`). Rank 0 then
runs the engine's node of the swarm in a thread of its own. The node fetches and decodes while requests run, and sends
the edits to the other ranks. A version that all ranks have prepared is committed by vLLM's `update_weights`, which
calls all ranks when none of them computes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.v1.worker.worker_base import WorkerBase

from p2psync.actor.node import ActorConfig, ActorNode
from p2psync.actor.vllm.refusals import check_supported
from p2psync.arguments import as_public_keys
from p2psync.delta.tensors import TensorKind, TensorSpec, Units
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.vllm.commit_handoff import CommitHandoff
from p2psync.engines.vllm.commit_notifier import CommitNotifier
from p2psync.engines.vllm.derived_tensors import DerivedTensors, check_not_emptied
from p2psync.engines.vllm.engine import LiveEngine
from p2psync.engines.vllm.equal_tensors import find_equal_tensors
from p2psync.engines.vllm.live_map import check_whole
from p2psync.engines.vllm.loader_probe import learn_live_map
from p2psync.engines.vllm.nonfinite_caches import clear_nonfinite
from p2psync.engines.vllm.rank_writer import RankWriter
from p2psync.engines.vllm.ranks import EngineRanks
from p2psync.engines.vllm.registered_tensors import RegisteredTensors
from p2psync.environment import VLLM_NAMES, VLLM_PREFIX, Environment
from p2psync.errors import EngineError, P2PSyncError, UnvouchedError, UsageError
from p2psync.net.addresses import advertised_hosts, check_url, listen_host
from p2psync.net.background import BackgroundLoop
from p2psync.observe.events import Committed, Event, Trouble

logger = logging.getLogger("vllm.p2psync")

_COMMIT, _DONE, _LATE = 1, 2, 3
_EXIT_CODE = 70
_POLL_SECONDS = 0.05


@dataclass
class P2PSyncInitInfo(WeightTransferInitInfo):
    """The options by which an engine joins the swarm; see `p2psync.actor.node.ActorConfig`.

    hub_url: the hub to join. trust: public keys (text) whose manifests are believed. store: directory of chunks; by
    default a temporary one, which is lost with the process. port: 0 any, −1 dial out only.
    """

    hub_url: str
    trust: list[str] = field(default_factory=list)
    store: str = ""
    host: str = ""
    port: int = 0
    advertise: str = ""
    region: str = ""
    token: str | None = None


@dataclass
class P2PSyncUpdateInfo(WeightTransferUpdateInfo):
    """The version to make live: `version` or a later one; −1: whatever is staged now.

    wait: seconds to wait until it is staged; nothing is generated meanwhile.
    """

    version: int = -1
    wait: float = 0.0


class P2PSyncWeightTransferEngine(WeightTransferEngine[P2PSyncInitInfo, P2PSyncUpdateInfo]):
    """The backend in one rank's worker."""

    init_info_cls = P2PSyncInitInfo
    update_info_cls = P2PSyncUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        """Learns the live map. Raises `EngineError`, with the reason, if this engine cannot be kept exact."""
        super().__init__(config, vllm_config, device, model)
        begun = time.perf_counter()
        self._trouble = ""
        self._refused = ""
        self._last: Committed | None = None
        self._commits = 0
        self._node: ActorNode | None = None
        self._loop: BackgroundLoop | None = None
        self._temporary: str | None = None
        self._path = check_supported(vllm_config)
        self._ranks = EngineRanks(self._rank(), vllm_config.parallel_config.world_size)
        self._notifier = CommitNotifier()
        self._handoff = CommitHandoff(self._notifier.notify)
        check_not_emptied(model)
        registered = RegisteredTensors(model)
        parameters = registered.distinct_tensors()
        with Checkpoint.open(self._path) as checkpoint:
            specs = [spec for spec in checkpoint.specs if spec.kind == TensorKind.TENSOR]
            live = learn_live_map(registered.load, parameters, specs, checkpoint.units)
            registered.check_untouched()
            dropped = check_whole(self._ranks.gather_maps(live))
            derived = DerivedTensors(model, [parameters[live.parameters[number]] for number in live.used()])
            self._ranks.writer = RankWriter(live, list(parameters.values()), derived=derived)
            self._engine = self._engine_of(checkpoint, specs, dropped) if self._ranks.rank == 0 else None
        if self._ranks.rank:
            self._ranks.follow(self._record_trouble)
        WorkerBase.p2psync_status = _status  # type: ignore[attr-defined]
        WorkerBase.p2psync_member = _member  # type: ignore[attr-defined]
        pieces = sum(len(held) for held in live.held)
        logger.info(
            "p2psync: %d tensors lie in %d pieces on rank %d, %d live units come from none; left out by the loader: "
            "%s; converted copies that commits make again: %s; learned in %.1f s",
            len(specs), pieces, self._ranks.rank, live.constant, [s.name for s in dropped] or "nothing",
            derived.copies or "none", time.perf_counter() - begun,
        )  # fmt: skip
        if os.environ.get(f"{VLLM_PREFIX}JOIN"):
            self.init_transfer_engine(_from_environment())

    # ---- what vLLM calls -------------------------------------------------------------------------------------------

    def init_transfer_engine(self, init_info: P2PSyncInitInfo) -> None:
        """Joins the swarm. Raises `P2PSyncError` for an error that does not pass by itself."""
        if self._engine is None:
            return
        if self._node is not None:
            raise UsageError("this engine is in a swarm already: shut the transfer engine down first")
        engine = self._engine
        store = Path(init_info.store) if init_info.store else self._temporary_store()
        config = ActorConfig(
            hub_url=init_info.hub_url,
            trusted=as_public_keys(init_info.trust, "trust"),
            store=store,
            host=init_info.host,
            port=init_info.port if init_info.port >= 0 else None,
            advertise=init_info.advertise,
            region=init_info.region,
            token=init_info.token,
        )
        digest = engine.digest().hex() if engine.position is None else ""
        self._loop = loop = BackgroundLoop("p2psync-vllm")
        try:
            self._node = loop.run(lambda: ActorNode(config, lambda _: engine, local_digest=digest, on_event=self._hear))
            loop.call(self._node.start())
            loop.call(self._notifier.open())
        except BaseException:
            self._node = None
            loop.close()
            raise
        threading.Thread(target=self._watch, name="p2psync-watch", daemon=True).start()

    def start_weight_update(self) -> None:
        """Does nothing: weights change in `update_weights` alone."""

    def finish_weight_update(self) -> None:
        """Does nothing."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """See `P2PSyncUpdateInfo`."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: P2PSyncUpdateInfo) -> None:
        """Commits. Raises `EngineError` if the version was not staged in time or could not be written; the version
        that was live before then stays live."""
        if self._refused:
            raise EngineError(self._refused)
        deadline = time.monotonic() + update_info.wait
        while True:
            decision = self._ranks.broadcast_decision(self._decide(update_info.version, deadline))
            if decision == _DONE:
                return
            if decision == _LATE:
                why = self._trouble or "try again"
                raise EngineError(f"version {update_info.version} is not staged yet: {why}")
            self._commit()
            if update_info.version < 0:
                return

    def status(self) -> dict[str, Any]:
        """Returns this rank's status, for the conductor of commits. The key "bell" has the notifier's address."""
        position = self._engine.position if self._engine is not None else None
        return {
            "rank": self._ranks.rank,
            "run": position.run if position is not None else "",
            "epoch": position.epoch if position is not None else 0,
            "version": position.version if position is not None else None,
            "digest": position.digest.hex() if position is not None else "",
            "commits": self._commits,
            "staged": self._handoff.version,
            "bell": self._notifier.address,
            "prefix_caching": bool(self.vllm_config.cache_config.enable_prefix_caching),
            "external_cache": self.vllm_config.kv_transfer_config is not None,
            "trouble": self._trouble,
            "refused": self._refused,
            "changed": self._last.changed if self._last is not None else 0,
            "pause_seconds": self._last.pause_seconds if self._last is not None else 0.0,
            "stage_seconds": self._last.stage_seconds if self._last is not None else 0.0,
            "fetched_bytes": self._last.fetched_bytes if self._last is not None else 0,
        }

    def member(self) -> dict[str, Any]:
        """Returns this engine's membership of the hub, under which work is claimed (`p2psync.actor.vllm.work`).

        joined: whether it was told to join, which only rank 0 is. lease: None while it has none. Keep it secret:
        whoever knows a lease can end it.
        """
        lease = self._node.runner.core.membership.lease if self._node is not None else None
        return {"rank": self._ranks.rank, "joined": self._node is not None, "lease": lease}

    def shutdown(self) -> None:
        """Leaves the swarm; the weights stay as they are. Again: no effect."""
        if self._node is not None and self._loop is not None:
            self._handoff.close()
            self._loop.call(self._notifier.close())
            self._loop.call(self._node.stop())
            self._loop.close()
            self._node = self._loop = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _decide(self, version: int, deadline: float) -> int:
        """Decides, at rank 0, whether to commit, or the version is live, or late."""
        if self._engine is None:
            return _DONE
        while True:
            live = self._engine.position
            if version >= 0 and live is not None and live.version >= version:
                return _DONE
            # A version may also go live without a commit: the weights in memory can turn out to be it.
            left = deadline - time.monotonic()
            if self._handoff.wait(min(_POLL_SECONDS, max(0.0, left))):
                return _COMMIT
            if left <= 0:
                return _DONE if version < 0 else _LATE

    def _commit(self) -> None:
        self._commits += 1  # also if it fails: the weights were written
        nonfinite = self._ranks.writer.nonfinite
        try:
            if self._engine is not None:
                self._handoff.take()
            else:
                self._ranks.write()
        except UnvouchedError as error:
            self.refuse(str(error))
            raise
        # Non-finite weights of one rank reach the caches of all.
        if self._ranks.is_true_anywhere(nonfinite > 0):
            layers = self.vllm_config.compilation_config.static_forward_context.values()
            caches = [getattr(layer, "kv_cache", None) for layer in layers]
            cleared = clear_nonfinite(caches, self.vllm_config.cache_config.cache_dtype)
            logger.warning(
                "p2psync: the version before had weights that are not finite (%d on this rank); %d values that it left "
                "in the cache were cleared", nonfinite, cleared,
            )  # fmt: skip

    def refuse(self, reason: str) -> None:
        """Stops serving these weights.

        A worker process ends, and vLLM's health check fails. In a process of the user every forward pass raises
        `EngineError`.
        """
        if self._refused:
            return
        self._refused = reason
        self._notifier.notify()
        logger.error("p2psync: %s; nothing is served from these weights any more", reason)

        def never(*args: object) -> None:
            raise EngineError(f"{reason}; restart the engine")

        self.model.register_forward_pre_hook(never)
        if multiprocessing.parent_process() is not None:
            logging.shutdown()
            os._exit(_EXIT_CODE)

    def _engine_of(self, checkpoint: Checkpoint, specs: list[TensorSpec], dropped: list[TensorSpec]) -> LiveEngine:
        weights: dict[TensorSpec, Units] = {spec: np.array(checkpoint.units(spec)) for spec in specs}
        equal_tensors = find_equal_tensors(dropped, weights)
        for spec in dropped:
            if spec not in equal_tensors:
                logger.warning("p2psync: the model's loader leaves out %s, now and in every version", spec.name)
        return LiveEngine(self._ranks, weights, checkpoint.blobs(), self._handoff, self.refuse, equal_tensors)

    def _rank(self) -> int:
        return int(self.parallel_config.rank)

    def _temporary_store(self) -> Path:
        self._temporary = tempfile.mkdtemp(prefix="p2psync-vllm-")
        return Path(self._temporary)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Committed):
            self._last, self._trouble = event, ""
        elif isinstance(event, Trouble):
            self._record_trouble(event.line())
        logger.info("p2psync: %s", event.line())

    def _record_trouble(self, trouble: str) -> None:
        self._trouble = trouble

    def _watch(self) -> None:
        """Waits for an error after which the node cannot continue, and logs it; the weights stay as they are."""
        loop, node = self._loop, self._node
        if loop is None or node is None:
            return
        try:
            loop.call(node.until_broken())
        except P2PSyncError as error:
            self._record_trouble(str(error))
            logger.error("p2psync: this engine gets no more versions: %s", error)
        except BaseException:  # the loop was closed
            return


def _status(worker: Any) -> dict[str, Any]:
    """Runs `collective_rpc("p2psync_status")`."""
    return _engine(worker).status()


def _member(worker: Any) -> dict[str, Any]:
    """Runs `collective_rpc("p2psync_member")`."""
    return _engine(worker).member()


def _engine(worker: Any) -> P2PSyncWeightTransferEngine:
    engine = worker.weight_transfer_engine
    if not isinstance(engine, P2PSyncWeightTransferEngine):
        raise UsageError("this engine does not use the backend p2psync")
    return engine


def _from_environment() -> P2PSyncInitInfo:
    """Reads the options to join from the environment. Raises `UsageError` that names an invalid variable."""
    given = Environment(VLLM_PREFIX, os.environ, lambda line: logger.warning("p2psync: %s", line))
    given.tell_unknown(VLLM_NAMES)
    an_address = "it should be a host name or an address without a port"
    return P2PSyncInitInfo(
        hub_url=given.checked("JOIN", check_url, "it should be a hub's address like http://host:port"),
        trust=[key for key in given.text("TRUST").split(",") if key],
        store=given.text("STORE"),
        host=given.checked("HOST", listen_host, an_address),
        port=given.number("PORT", 0, -1, 65535),
        advertise=given.checked("ADVERTISE", advertised_hosts, f"{an_address}, by which others reach this machine"),
        region=given.text("REGION"),
        token=given.text("TOKEN") or None,
    )
