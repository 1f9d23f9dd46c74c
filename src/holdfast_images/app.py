"""The image manager in one object: what programs use, and what the command line is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import Engine, Flow
from holdfast_images.flows.messages import PROCESS, ProcessRequest, key_of
from holdfast_images.flows.process import QUEUE_LIMITS, all_flows
from holdfast_images.flows.workshop import Workshop
from holdfast_images.opening import opened_workshop
from holdfast_images.settings import Settings

NO_SETTINGS = Settings()


class Images:
    """The parts put together: the engine's jobs, the catalog, the devices and the flows between them."""

    def __init__(self, engine: Engine, shop: Workshop, settings: Settings) -> None:
        self.engine = engine
        self.shop = shop
        self.settings = settings
        self.catalog = shop.catalog
        self.devices = shop.devices
        self.flows = {flow.name: flow for flow in all_flows(shop)}

    @classmethod
    @contextmanager
    def open(cls, place: str | Path, settings: Settings = NO_SETTINGS, *, actor: str = "client") -> Iterator[Images]:
        """The image manager at a place (a state directory or a URL), which is made if it is not there."""
        with Engine.open(place, actor=actor) as engine, opened_workshop(place, settings) as shop:
            yield cls(engine, shop, settings)

    def flow(self, name: str) -> Flow[Any, Any]:
        """A flow by its plain name, whatever host is in it here."""
        return self.flows[self.shop.flow_name(name)]

    def submit(self, request: ProcessRequest) -> str:
        """Have an image processed; an equal request that is not finished yet is the same job."""
        return self.engine.submit(self.flow(PROCESS), request, key=key_of(request))

    def set_queue_limits(self) -> None:
        """Give the queues their limits, where nobody has."""
        known = {queue.name for queue in self.engine.store.queues() if queue.max_running is not None or queue.limit_by}
        for name, limit in queue_limits(self.shop).items():
            if name not in known:
                self.engine.queue(name, limit=limit)


def queue_limits(shop: Workshop) -> Mapping[str, int]:
    """How many jobs of each queue may run at once."""
    return {shop.queue_name(name): limit for name, limit in QUEUE_LIMITS.items()}
