"""Routes of the house: is it alive, what is in it, queues, workers, findings, repairs, stalls, bulk actions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import __version__
from holdfast.views import Overview
from holdfast.web.routes import Call, Reply, Route


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Is the server there?"""

    status: str
    version: str = __version__


def _livez(_call: Call) -> Reply:
    return Reply(body=Health(status="alive"))


def _readyz(call: Call) -> Reply:
    call.engine.store.last_change()
    return Reply(body=Health(status="ready"))


def _stats(call: Call) -> Reply:
    return Reply(body=call.views.overview())


ROUTES: Sequence[Route] = (
    Route(
        method="GET",
        path="/livez",
        name="livez",
        summary="Is the process alive? Asks nothing of the store.",
        tag="health",
        handler=_livez,
        scope=None,
        answer=Health,
    ),
    Route(
        method="GET",
        path="/readyz",
        name="readyz",
        summary="Can the store be read?",
        tag="health",
        handler=_readyz,
        scope=None,
        answer=Health,
        problems=(503,),
    ),
    Route(
        method="GET",
        path="/v1/stats",
        name="stats",
        summary="The house at a glance: jobs by state, queues, workers, findings, throughput.",
        tag="house",
        handler=_stats,
        answer=Overview,
    ),
)
