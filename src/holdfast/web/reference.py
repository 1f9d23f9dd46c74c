"""The reference of the API, as Markdown, from the table of routes.

`python -m holdfast.web.reference` prints it; a test compares it with docs/reference/http-api.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast import errors
from holdfast.web.application import api_routes
from holdfast.web.openapi import document, problem_statuses
from holdfast.web.problems import REFUSALS, code_of, status_of
from holdfast.web.routes import Route


def reference(routes: Sequence[Route] | None = None) -> str:
    """All operations, by tag, and every code of a problem."""
    routes = api_routes() if routes is None else routes
    described = document(routes)
    lines: list[str] = []
    for tag in dict.fromkeys(route.tag for route in routes):
        lines += [f"## {tag.capitalize()}", ""]
        for route in (each for each in routes if each.tag == tag):
            lines += _section(route, described["paths"][route.path][route.method.lower()])
    return "\n".join([*lines, *_codes()])


def _section(route: Route, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {route.method} {route.path}"
    yield ""
    allowed = "for everybody" if route.scope is None else f"scope `{route.scope}`"
    yield f"`{route.name}`, {allowed}. {' '.join(filter(None, (route.summary, route.description)))}"
    yield ""
    rows = [row for row in _parts(route, operation) if row]
    yield "| | |"
    yield "|---|---|"
    yield from rows
    yield ""


def _parts(route: Route, operation: dict[str, Any]) -> Iterator[str]:
    for place, what in (("query", "query"), ("header", "headers")):
        names = [
            f"`{each['name']}`" + (" (required)" if each["required"] else "")
            for each in operation["parameters"]
            if each["in"] == place
        ]
        yield f"| {what} | {', '.join(names)} |" if names else ""
    yield f"| body | {_name(route.body, operation['requestBody'])} |" if route.body is not None else ""
    answers = [f"{status} {meaning}" for status, meaning in route.also.items()]
    kind = "nothing" if route.answer is None else _name(route.answer, operation["responses"][str(route.status)])
    yield f"| answers | {'; '.join([f'{route.status} {kind}', *answers])} |"
    yield f"| gives | {', '.join(f'`{each}`' for each in route.gives)} |" if route.gives else ""
    yield f"| problems | {', '.join(map(str, problem_statuses(route)))} |"


def _name(kind: Any, described: dict[str, Any]) -> str:
    """A type as the document names it."""
    [(media_type, content)] = described["content"].items()
    schema = content["schema"]
    name = schema.get("$ref", "").rpartition("/")[2] or schema.get("title") or getattr(kind, "__name__", "JSON")
    return f"`{name}`" if media_type == "application/json" else f"`{media_type}`"


def _codes() -> Iterator[str]:
    yield "## Codes of problems"
    yield ""
    yield "What is wrong with a request as such:"
    yield ""
    yield "| code | status | meaning |"
    yield "|---|---|---|"
    for code, (status, meaning) in sorted(REFUSALS.items()):
        yield f"| `{code}` | {status} | {meaning} |"
    yield ""
    yield "What the engine refuses; the classes are those of [errors](errors.md):"
    yield ""
    yield "| code | status | class | meaning |"
    yield "|---|---|---|---|"
    for kind in _classes():
        promise = (inspect.getdoc(kind) or "").splitlines()[0]
        yield f"| `{code_of(kind)}` | {status_of(kind)} | `{kind.__name__}` | {promise} |"


def _classes() -> Iterator[type[errors.HoldfastError]]:
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.HoldfastError):
            yield kind


if __name__ == "__main__":
    print(reference())
