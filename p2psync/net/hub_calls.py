"""One node's calls to the hub."""

from __future__ import annotations

from collections.abc import Callable

from p2psync.errors import LeaseError, P2PSyncError, TrustError
from p2psync.membership.client import CallJoin, CallPlan, CallRenew, HubCall
from p2psync.membership.records import Lease, View
from p2psync.net.node_context import NodeContext
from p2psync.observe.events import HubJoined, HubUnreachable
from p2psync.swarm.node import HubResult

#: How long one long poll of the view lasts (seconds). A longer one spares requests; proxies cut very long ones.
VIEW_WAIT_SECONDS = 20.0


class HubCalls:
    """on_reported: called after each join and renewal. on_view: called with each new view."""

    def __init__(self, node: NodeContext, on_reported: Callable[[], None], on_view: Callable[[View], None]) -> None:
        self._node, self._on_reported, self._on_view = node, on_reported, on_view
        self._is_unreachable = False
        self._was_member = False

    async def call(self, call: HubCall) -> None:
        """Makes a call, and gives the core its result."""
        try:
            result = await self._request(call)
            view = self._node.core.hub_answered(call, result, self._node.clock())
            self._answered(call, result)
            if view is not None:
                self._on_view(view)
        except P2PSyncError as error:
            self._failed(call, error)
        self._node.wake()

    async def _request(self, call: HubCall) -> HubResult:
        if isinstance(call, CallJoin):
            join = call.request
            return await self._node.hub.join(join.info, join.version, join.digest, run=join.run, epoch=join.epoch)
        if isinstance(call, CallRenew):
            return await self._renew(call)
        if isinstance(call, CallPlan):
            return await self._node.hub.plan(call.lease)
        known = call.instance, call.revision
        view = await self._node.hub.view(*known, VIEW_WAIT_SECONDS, call.lease, changes=not call.whole)
        return None if (view.instance, view.revision) == known else view

    async def _renew(self, call: CallRenew) -> Lease:
        request = call.request
        lease = await self._node.hub.renew(
            request.lease,
            request.version,
            request.digest,
            run=request.run,
            epoch=request.epoch,
            waits=request.waits,
            fetch_rate=request.fetch_rate,
            statistics=request.statistics,
            rejected=request.rejected,
            limit=call.limit,
        )
        if lease.refused:
            self._node.diagnostics.trouble(f"the hub renews the lease and leaves out: {lease.refused}", "refused")
        return lease

    def _answered(self, call: HubCall, result: HubResult) -> None:
        if isinstance(result, Lease):
            self._on_reported()
            if isinstance(call, CallJoin):
                self._is_unreachable, self._was_member = False, True
                self._node.diagnostics.emit(HubJoined(str(self._node.hub.url)))

    def _failed(self, call: HubCall, error: P2PSyncError) -> None:
        is_plan = isinstance(call, CallPlan)
        if isinstance(error, TrustError) and not self._was_member:
            self._node.tasks.break_node(error)  # a wrong join token: the hub will refuse it again
            return
        if is_plan:
            self._node.diagnostics.trouble(f"going on without this node's part of the plan: {error}")
        elif not isinstance(error, LeaseError):
            if not self._is_unreachable:
                self._node.diagnostics.emit(HubUnreachable(f"{error}; trying again, meanwhile with the peers at hand"))
            self._is_unreachable = True
        self._node.core.hub_answered(call, error, self._node.clock())
