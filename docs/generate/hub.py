"""The hub's HTTP interface: an OpenAPI file and a page, from one table of routes and the code's own structs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import Metric

from docs.generate.prose import NOTE, cell, doc, table
from p2psync.membership import records, work
from p2psync.membership.hub import HubConfig
from p2psync.net import dial_back, hub_wire
from p2psync.net.dial_back import DialBack, DialedBack
from p2psync.net.hub import HubService
from p2psync.protocol.plan import NodePlan
from p2psync.trainer.ledger.config import LedgerConfig
from p2psync.trainer.ledger.routes import MEDIA_TYPE, TOKEN_HEADER, LedgerRoutes
from p2psync.trainer.ledger.service import mount

JSON = "application/json"
BYTES = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class Route:
    """One route. takes, gives: structs, or a media type of plain bytes. query, headers: name and meaning."""

    method: str
    path: str
    does: str
    takes: Any = None
    gives: Any = None
    media: str = JSON
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    ledger: bool = False
    open: bool = False


_WORK_TOKEN = (TOKEN_HEADER, "the framework's token, from STORE/rollouts.token")
ROUTES = (
    Route(method="POST", path="/v1/join", does="Joins, or joins again.", takes=records.Join, gives=records.Lease),
    Route(
        method="POST",
        path="/v1/renew",
        does="Renews a lease and tells what the node runs and measured. A commit is acknowledged so.",
        takes=records.Renew,
        gives=records.Lease,
    ),
    Route(method="POST", path="/v1/leave", does="Gives a lease back. The answer is {}.", takes=records.Leave),
    Route(
        method="POST",
        path="/v1/dial-back",
        does="Dials the asker's port, and says whether it was reached.",
        takes=DialBack,
        gives=DialedBack,
    ),
    Route(method="GET", path="/v1/challenge", does="Gives a nonce for one claim.", gives=records.Challenge),
    Route(
        method="POST", path="/v1/claim", does="A trainer takes the run.", takes=records.RunClaim, gives=records.Claimed
    ),
    Route(
        method="POST",
        path="/v1/announce",
        does="The trainer adds signed manifests to the lineage and retires others.",
        takes=records.Announce,
        gives=records.Announced,
        headers=((hub_wire.CLAIM_HEADER, "the claim's token; raises the bound on the body"),),
    ),
    Route(
        method="GET",
        path="/v1/view",
        does="Gives the members, the run and the lineage; waits until they differ from what the asker knows.",
        gives=records.View,
        query=(
            ("instance", "the hub's instance that the asker knows"),
            ("revision", "the revision that the asker knows; -1: none"),
            ("wait", f"seconds to wait for a change, at most {hub_wire.MAX_LONG_POLL_SECONDS:.0f}"),
            ("lease", "the asker's lease"),
            ("changes", "1: tell only what changed since `revision`, where the hub still knows that"),
        ),
        headers=(("Accept-Encoding", "`zstd`: the answer may be packed"),),
    ),
    Route(
        method="GET",
        path="/v1/plan",
        does="Gives the node's own part of the plan.",
        gives=NodePlan,
        query=(("lease", "the asker's lease"),),
    ),
    Route(
        method="GET", path="/v1/manifests/{id}", does="Gives a signed manifest's bytes by its id (hex).", gives=BYTES
    ),
    Route(method="GET", path="/v1/status", does="Tells people about the swarm.", gives=records.Status),
    Route(method="GET", path="/metrics", does="Gives figures for Prometheus.", gives="text/plain"),
    Route(method="GET", path="/healthz", does="Tells that the hub lives: `ok`.", gives="text/plain", open=True),
    Route(
        method="POST",
        path="/v1/work/lease",
        does="A member claims items of rollout work; waits for work.",
        takes=work.LeaseWork,
        gives=work.WorkGrant,
        ledger=True,
    ),
    Route(
        method="POST",
        path="/v1/work/result",
        does=f"A member hands a result in: at most {work.MAX_RESULT_BYTES >> 20} MiB of plain bytes.",
        takes=BYTES,
        gives=work.Receipt,
        headers=((work.RESULT_HEADER, "a `ResultHead` as MessagePack, base64url"),),
        ledger=True,
    ),
    Route(
        method="POST",
        path="/v1/work/put",
        does="The framework puts items in.",
        takes=work.PutWork,
        gives=work.PutReply,
        media=MEDIA_TYPE,
        headers=(_WORK_TOKEN,),
        ledger=True,
    ),
    Route(
        method="POST",
        path="/v1/work/take",
        does="The framework takes results.",
        takes=work.TakeWork,
        gives=work.TakeReply,
        media=MEDIA_TYPE,
        headers=(_WORK_TOKEN,),
        ledger=True,
    ),
    Route(
        method="POST",
        path="/v1/work/commit",
        does="The framework commits a step: the results that it took for it are gone.",
        takes=work.CommitStep,
        gives=work.CommitReply,
        media=MEDIA_TYPE,
        headers=(_WORK_TOKEN,),
        ledger=True,
    ),
)


def real_routes() -> set[tuple[str, str]]:
    """Method and path of every route that a trainer's hub with a ledger serves."""
    app, _ = _served()
    return {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }


def real_metrics() -> list[Metric]:
    """Every figure of `/metrics` of a trainer's hub with a ledger."""
    _, hub = _served()
    hub.metrics.count("/healthz", 200)
    return sorted(hub.metrics.registry.collect(), key=lambda metric: metric.name)


def _served() -> tuple[web.Application, HubService]:
    hub = HubService(HubConfig(trusted=frozenset({bytes(32)})))
    app = hub.build_app()
    service = mount(app, hub, LedgerConfig())
    LedgerRoutes(service, "token").add(app)
    return app, hub


def _content(kind: Any, media: str, schemas: dict[Any, Any]) -> dict[str, Any]:
    if isinstance(kind, str):
        shape = {"type": "string"} if kind.startswith("text") else {"type": "string", "format": "binary"}
        return {kind: {"schema": shape}}
    return {media: {"schema": schemas[kind]}}


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "done"}
    if route.gives is not None:
        answer["content"] = _content(route.gives, route.media, schemas)
    found: dict[str, Any] = {
        "summary": route.does,
        "tags": ["ledger" if route.ledger else "hub"],
        "responses": {"200": answer, "default": {"$ref": "#/components/responses/ErrorReply"}},
    }
    parameters = [("path", "id", "64 hex digits")] if "{id}" in route.path else []
    parameters += [("query", name, said) for name, said in route.query]
    parameters += [("header", name, said) for name, said in route.headers]
    if parameters:
        found["parameters"] = [
            {"in": where, "name": name, "description": said, "required": where == "path", "schema": {"type": "string"}}
            for where, name, said in parameters
        ]
    if route.takes is not None:
        found["requestBody"] = {"required": True, "content": _content(route.takes, route.media, schemas)}
    if route.open:
        found["security"] = []
    return found


def openapi() -> dict[str, Any]:
    """The OpenAPI description of the hub, as JSON would hold it."""
    kinds = [kind for route in ROUTES for kind in (route.takes, route.gives) if isinstance(kind, type)]
    kinds = list(dict.fromkeys([*kinds, work.ResultHead, records.ErrorReply]))
    kinds = [kind for kind in kinds if not issubclass(kind, str)]
    references, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, references, strict=True))
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "p2psync hub",
            "version": "1",
            "description": "The control plane of a p2psync swarm. Weights never pass through it.",
        },
        "security": [{}, {"joinToken": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                "ErrorReply": {
                    "description": "refused, with the name of an error and one line that says what to do",
                    "content": {JSON: {"schema": schemas[records.ErrorReply]}},
                }
            },
            "securitySchemes": {"joinToken": {"type": "http", "scheme": "bearer"}},
        },
    }


def openapi_file() -> str:
    """docs/reference/hub-openapi.json."""
    return json.dumps(openapi(), indent=1, ensure_ascii=False) + "\n"


PAGE = """# Hub HTTP API

{note}

The hub is the control plane: leases, claims, announcements, plans, and the [ledger](../guides/ledger.md) of rollout
work. Weights never pass through it. [hub-openapi.json](hub-openapi.json) describes the same interface as OpenAPI
3.1, with every struct.

- A trainer serves this interface at port 7070; `p2psync hub` serves all but the ledger by itself.
- Every request but `/healthz` bears `Authorization: Bearer TOKEN` where the hub was started with `--token`.
- Bodies are JSON, bytes in them base64. The framework's side of the ledger uses MessagePack.
- A request is at most {request} KiB, an announcement {announce} MiB, that of the trainer that holds the claim
  {claimant} MiB.
- No figure may be infinite or NaN.

## Routes

{routes}

## Refusals

An answer other than 200 holds an `ErrorReply`: `{{"error": "LeaseError", "message": "this lease has ended …; join
again"}}`.

{statuses}

A hub under load answers 429 with `Retry-After` (the ledger is full), or 503 (its disk refuses).

## Figures for Prometheus

`GET /metrics` gives these; the ledger's stand there where a ledger is served.

{metrics}

## Structs

{structs}
"""


def _name(kind: Any) -> str:
    if kind is None:
        return ""
    return f"`{kind}`" if isinstance(kind, str) else f"[`{kind.__name__}`](#{kind.__name__.lower()})"


def hub_page() -> str:
    """docs/reference/hub-api.md."""
    rows = [
        (
            f"{route.method} `{route.path}`",
            cell(route.does),
            _name(route.takes) or ", ".join(f"`{name}`" for name, _ in route.query),
            _name(route.gives),
        )
        for route in ROUTES
    ]
    known = hub_wire._STATUS | hub_wire._STATUS_HERE
    statuses = sorted((int(status), kind.__name__, doc(kind)) for kind, status in known.items())
    described = openapi()["components"]["schemas"]
    structs = []
    for name in sorted(described):
        homes = (records, work, dial_back)
        found = next((getattr(home, name) for home in homes if hasattr(home, name)), None)
        kind = found or (NodePlan if name == "NodePlan" else None)
        text = doc(kind) if kind is not None else str(described[name].get("description", ""))
        structs.append(f"### {name}\n\n{text}\n\n{_fields(described[name])}".rstrip())
    return PAGE.format(
        note=NOTE,
        request=hub_wire.MAX_REQUEST >> 10,
        announce=hub_wire.MAX_ANNOUNCE >> 20,
        claimant=hub_wire.MAX_CLAIMANT_ANNOUNCE >> 20,
        routes=table(("request", "does", "takes", "gives"), rows),
        statuses=table(
            ("status", "error", "meaning"), [(str(code), f"`{name}`", cell(text)) for code, name, text in statuses]
        ),
        metrics=table(
            ("figure", "kind", "meaning"),
            [(f"`{one.name}`", one.type, cell(one.documentation)) for one in real_metrics()],
        ),
        structs="\n\n".join(structs),
    )


def _shape(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_shape(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_shape(schema['items'])}"
    if schema.get("contentEncoding") == "base64":
        return "bytes"
    return str(schema.get("type", "any"))


def _fields(schema: dict[str, Any]) -> str:
    if "properties" in schema:
        needed = schema.get("required", [])
        rows = [
            (f"`{name}`", _shape(one), "required" if name in needed else cell(f"`{one.get('default')!r}`"))
            for name, one in schema["properties"].items()
        ]
        return table(("field", "type", "default"), rows)
    if "prefixItems" in schema:
        return "An array of: " + ", ".join(_shape(one) for one in schema["prefixItems"]) + "."
    return ""
