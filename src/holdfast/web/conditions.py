"""Headers by which a client says under which condition and how it wants to be answered: If-Match, Prefer, Link."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from holdfast.web.problems import Refused
from holdfast.web.routes import Call

LONGEST_WAIT = 60.0
"""Seconds; who prefers to wait for longer asks again."""

_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|$)')
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,9})\"?\s*(?:$|[,;\s])", re.IGNORECASE)


def etag(head: str) -> dict[str, str]:
    """The ETag of a job: the hash that its journal ends with."""
    return {"ETag": f'"{head}"'}


def expected_heads(headers: Mapping[str, str]) -> tuple[str, ...]:
    """What If-Match names; none if it takes whatever there is. A problem if it is missing or cannot be read."""
    given = headers.get("if-match")
    if given is None:
        raise Refused(
            428,
            "precondition-required",
            "this needs an If-Match header with the ETag that was looked at",
            hint="GET it, look, and send its ETag; or If-Match: * for whatever it is now",
        )
    if given.strip() == "*":
        return ()
    found, position = list[str](), 0
    while position < len(given):
        match = _TAG.match(given, position)
        if match is None:
            raise Refused(400, "invalid-if-match", "If-Match is no list of entity tags", hint='such as "3f2a..."')
        # A weak tag never matches: it does not stand for one state.
        found.append("W/" if match[1] else match[2])
        position = match.end()
    if not found:
        raise Refused(400, "invalid-if-match", "If-Match names nothing", hint='such as "3f2a..."')
    return tuple(found)


def wait_preferred(headers: Mapping[str, str]) -> float | None:
    """For how many seconds a client prefers to wait; None if it does not."""
    found = _WAIT.search(headers.get("prefer", ""))
    return None if found is None else min(float(found[1]), LONGEST_WAIT)


def link_headers(call: Call, **cursors: str | None) -> dict[str, str]:
    """A Link header with the pages that there are, by relation."""
    others = [
        pair for pair in parse_qsl(call.query_string, keep_blank_values=True) if pair[0] not in ("after", "fragment")
    ]
    path = call.link(call.url_path)
    links = [
        f'<{path}?{urlencode([*others, ("after", cursor)])}>; rel="{relation}"'
        for relation, cursor in cursors.items()
        if cursor is not None
    ]
    return {"Link": ", ".join(links)} if links else {}
