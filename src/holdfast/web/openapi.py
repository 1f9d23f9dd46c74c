"""The OpenAPI 3.1 document, made from the table of routes and the flows that are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias

import msgspec

from holdfast import __version__
from holdfast.core.flow import Flow
from holdfast.web.flows import RESERVED, JobOptions
from holdfast.web.problems import MEDIA_TYPE, Problem
from holdfast.web.routes import JSON, Call, Reply, Route, Services

Json: TypeAlias = dict[str, Any]

REF = "#/components/schemas/{name}"
SUBMIT = "submitJob"

PATH_PARAMETERS: Mapping[str, Json] = {
    "job_id": {"type": "string", "pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"},
    "flow": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": 100},
    "token": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": 100},
    "queue": {"type": "string", "pattern": "^(-|[A-Za-z0-9][A-Za-z0-9._-]*)$", "maxLength": 100},
}
REQUEST_HEADERS: Mapping[str, tuple[str, str | None, bool]] = {
    "If-Match": ("The ETag that was looked at; `*` for whatever it is now.", r'^(\*|"[!#-~]*")$', True),
    "Idempotency-Key": (
        "The same key with the same request gives the first answer again, for a day.",
        r"^[!#-\[\]-~]{1,255}$",
        False,
    ),
    "Prefer": ("`wait=30`: answer when it has ended, or after so many seconds.", None, False),
    "Last-Event-ID": ("Go on behind this event.", None, False),
}
"""Header, meaning, pattern (what does not fit is refused), required."""
RESPONSE_HEADERS: Mapping[str, str] = {
    "ETag": "Stands for what was looked at; for If-Match.",
    "Link": "The pages before and behind this one.",
    "Location": "Where to look for it.",
    "Retry-After": "Seconds to wait before asking again.",
    "Preference-Applied": "The preference that was heeded.",
    "Idempotency-Replayed": "true: this is the first answer to the key, given again.",
}

_JOB = {"job_id": "$response.body#/job_id"}
_LISTED = {"job_id": "$response.body#/rows/0/job/job_id"}
_SAME = {"job_id": "$request.path.job_id", "If-Match": "$response.header.ETag"}
LINKS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    SUBMIT: dict.fromkeys(("getJob", "getResult", "explainJob", "getJournal", "verifyJob"), _JOB),
    "submitBulk": {"getJob": _JOB, "getResult": _JOB},
    "listJobs": {"getJob": _LISTED, "getJournal": _LISTED},
    "getJob": dict.fromkeys(("cancelJob", "retryJob", "releaseJob", "forceJob", "rescheduleJob"), _SAME),
    "planRepair": {"applyRepair": {"If-Match": "$response.header.ETag"}},
    "listChanges": {"listChanges": {"after": "$response.body#/last"}},
}
"""What can be asked next with what an answer holds: operation → operation → parameters."""

ABOUT = """Everything that `holdfast` and its client can do, over HTTP.

Times are milliseconds since 1970, UTC. Lists are in pages: follow `Link`, or give `next` back as `after`. Counts stop
at a limit (`capped`). Errors are problems (RFC 9457) with a stable `code`, and a `hint` where there is something to do.
What acts on a job that was looked at takes its `ETag` as `If-Match`, and a `reason`."""


class _Schemas:
    """The schemas of all types that routes name; models of pydantic among them bring their own."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        self._kinds = list(dict.fromkeys(kinds))
        self.components: dict[str, Json] = {}
        found, components = msgspec.json.schema_components(self._kinds, schema_hook=self._model, ref_template=REF)
        self._of = dict(zip(self._kinds, found, strict=True))
        self.components |= components

    def of(self, kind: Any) -> Json:
        """The schema of a type, or a reference to it."""
        found: Json = self._of[kind]
        return found

    def _model(self, kind: Any) -> Json:
        describe = getattr(kind, "model_json_schema", None)
        if describe is None:
            return {}
        schema: Json = describe(ref_template=REF.format(name=f"{kind.__name__}.{{model}}"))
        for name, part in schema.pop("$defs", {}).items():
            self.components[f"{kind.__name__}.{name}"] = part
        return schema


def document(routes: Sequence[Route], flows: Iterable[Flow[Any, Any]] = ()) -> Json:
    """All of it. Each flow has a path of its own to submit its jobs, with its own type of request."""
    own = sorted((flow for flow in flows if not flow.name.startswith(RESERVED)), key=lambda flow: flow.name)
    schemas = _Schemas(_kinds(routes, own))
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, own)
    submit = next((route for route in routes if route.name == SUBMIT), None)
    for number, flow in enumerate(own if submit else ()):
        operation = _operation(submit, schemas, own) if submit else {}
        name = f"{SUBMIT}_{re.sub('[^A-Za-z0-9_]', '_', flow.name)}"
        is_taken = any(operation["operationId"] == name for path in paths.values() for operation in path.values())
        operation["operationId"] = f"{name}_{number}" if is_taken else name
        operation["summary"] = f"Add a job of {flow.name}."
        operation["parameters"] = [each for each in operation["parameters"] if each["in"] != "path"]
        body = f"Submit.{flow.name}"
        schemas.components[body] = _submit_schema(schemas, flow)
        operation["requestBody"] = _body({"$ref": REF.format(name=body)})
        paths[f"/v1/flows/{flow.name}/jobs"] = {"post": operation}
    used = schemas.components
    for kind in {route.query for route in routes if route.query is not None}:
        used.pop(_name_in(schemas.of(kind)), None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(used.items())),
            "responses": {"Problem": {"description": "A problem.", "content": {MEDIA_TYPE: _reference("Problem")}}},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": "holdfast token create"}},
        },
    }


def _kinds(routes: Sequence[Route], flows: Sequence[Flow[Any, Any]]) -> Iterator[Any]:
    yield Problem
    yield JobOptions
    for route in routes:
        yield from (kind for kind in (route.query, route.body, route.answer) if kind is not None)
    for flow in flows:
        yield flow.request_type


def _operation(route: Route, schemas: _Schemas, flows: Sequence[Flow[Any, Any]]) -> Json:
    operation: Json = {"operationId": route.name, "summary": route.summary, "tags": [route.tag]}
    about = [route.description, "" if route.scope is None else f"Takes the scope `{route.scope}`."]
    if any(about):
        operation["description"] = " ".join(filter(None, about))
    operation["parameters"] = list(_parameters(route, schemas, flows))
    if route.body is not None:
        operation["requestBody"] = _body(schemas.of(route.body))
    if route.scope is None:
        operation["security"] = []
    operation["responses"] = _responses(route, schemas)
    return operation


def _body(schema: Json) -> Json:
    return {"required": True, "content": {JSON: {"schema": schema}}}


def _parameters(route: Route, schemas: _Schemas, flows: Sequence[Flow[Any, Any]]) -> Iterator[Json]:
    for name in re.findall(r"\{(\w+)\}", route.path):
        schema = PATH_PARAMETERS.get(name, {"type": "string", "minLength": 1})
        if name == "flow" and flows:
            schema = {"type": "string", "enum": [flow.name for flow in flows]}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    if route.query is not None:
        described = schemas.components[_name_in(schemas.of(route.query))]
        for name, schema in described["properties"].items():
            required = name in described["required"]
            yield {"name": name, "in": "query", "required": required, "schema": _without_null(schema)}
    for name in route.takes:
        meaning, pattern, required = REQUEST_HEADERS[name]
        schema = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
        yield {"name": name, "in": "header", "required": required, "description": meaning, "schema": schema}


def _without_null(schema: Json) -> Json:
    """A parameter that is not given is left out, and has no null."""
    members = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf" and (name, value) != ("default", None)}
    if len(members) == 1:
        return {**members[0], **rest}
    return {**rest, "anyOf": members} if members else rest


def problem_statuses(route: Route) -> list[int]:
    """Every status of a problem that the route may answer."""
    found = {400, 406, 500, 503, *route.problems}
    if route.scope is not None:
        found |= {401, 403}
    if "{" in route.path:
        found.add(404)
    if route.body is not None:
        found |= {404, 413, 415, 422}
    return sorted(found)


def _responses(route: Route, schemas: _Schemas) -> Json:
    responses: Json = {}
    for status, meaning in {route.status: HTTPStatus(route.status).phrase, **route.also}.items():
        response: Json = {"description": meaning}
        if route.answer is not None:
            response["content"] = {route.media_type.partition(";")[0]: {"schema": schemas.of(route.answer)}}
        if route.gives:
            response["headers"] = {
                name: {"description": RESPONSE_HEADERS[name], "schema": {"type": "string"}} for name in route.gives
            }
        links = LINKS.get(route.name)
        if links:
            response["links"] = {
                name: {"operationId": name, "parameters": dict(parameters)} for name, parameters in links.items()
            }
        responses[str(status)] = response
    for status in problem_statuses(route):
        responses[str(status)] = {"$ref": "#/components/responses/Problem"}
    return responses


def _submit_schema(schemas: _Schemas, flow: Flow[Any, Any]) -> Json:
    options = schemas.components[_name_in(schemas.of(JobOptions))]
    return {
        "type": "object",
        "title": f"Submit {flow.name}",
        "properties": {"request": schemas.of(flow.request_type), **options["properties"]},
        "required": ["request"],
        "additionalProperties": False,
    }


def _name_in(reference: Json) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _reference(name: str) -> Json:
    return {"schema": {"$ref": REF.format(name=name)}}


# --- the document as it is served --------------------------------------------------------------------------


class Document:
    """The document of an application, made again when a flow has been registered since."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: tuple[str, ...] | None = None
        self._encoded = b""

    def encoded(self) -> bytes:
        """As JSON."""
        flows = self._services.engine.flows
        known = tuple(flows)
        if known != self._known:
            shown = [flow for name, flow in flows.items() if name not in self._services.reserved]
            self._encoded = msgspec.json.encode(document(self._services.routes, shown))
            self._known = known
        return self._encoded


def _openapi(call: Call) -> Reply:
    return Reply(body=call.service(Document).encoded())


ROUTES: Sequence[Route] = (
    Route(
        method="GET",
        path="/openapi.json",
        name="openapi",
        summary="This document.",
        tag="health",
        handler=_openapi,
        answer=dict[str, Any],
    ),
)
