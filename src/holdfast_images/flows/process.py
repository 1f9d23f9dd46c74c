"""process-image: download, unpack and activate as one job; and every flow that a worker of images runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast import Flow, Pipeline
from holdfast_images.flows.activate import activate_flow
from holdfast_images.flows.download import download_flow
from holdfast_images.flows.messages import PROCESS, ProcessRequest, key_of_stage, to_activate, to_download, to_unpack
from holdfast_images.flows.remove import deactivate_flow, remove_flow
from holdfast_images.flows.steering import refuse_bad_request
from holdfast_images.flows.unpack import unpack_flow
from holdfast_images.flows.workshop import Workshop

QUEUE_LIMITS = {"downloads": 5, "unpacking": 2}


def process_flow(shop: Workshop) -> Pipeline[ProcessRequest]:
    """The pipeline, done with the parts of this workshop. Equal requests at the same time share their stages."""
    return (
        Pipeline(shop.flow_name(PROCESS), request=ProcessRequest)
        .then(
            download_flow(shop),
            name="download",
            request=lambda view: to_download(refuse_bad_request(view.request)),
            key=lambda view: key_of_stage(refuse_bad_request(view.request), "download"),
        )
        .then(
            unpack_flow(shop),
            name="unpack",
            request=lambda view: to_unpack(view.request, view.previous),
            key=lambda view: key_of_stage(view.request, "unpack"),
        )
        .then(
            activate_flow(shop),
            name="activate",
            request=lambda view: to_activate(view.request, view.previous),
            key=lambda view: key_of_stage(view.request, "activate"),
        )
    )


def all_flows(shop: Workshop) -> list[Flow[Any, Any]]:
    """Everything that a worker of images runs, the stages of the pipeline included."""
    process = process_flow(shop)
    return [process, *process.stages.values(), deactivate_flow(shop), remove_flow(shop)]


def queue_limits(shop: Workshop) -> Mapping[str, int]:
    """How many jobs of each queue may run at once."""
    return {shop.queue_name(name): limit for name, limit in QUEUE_LIMITS.items()}
