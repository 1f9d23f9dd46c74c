"""process-image: download, unpack and activate as one job; and every flow that a worker of images runs."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from holdfast import Flow, Pipeline, PipelineView
from holdfast_images.flows.activate import activate_flow
from holdfast_images.flows.download import download_flow
from holdfast_images.flows.finished import snapshot_name_of
from holdfast_images.flows.messages import Judging, ProcessRequest, to_activate, to_download, to_unpack
from holdfast_images.flows.remove import deactivate_flow, remove_flow
from holdfast_images.flows.unpack import unpack_flow
from holdfast_images.flows.workshop import Workshop

QUEUE_LIMITS = {"downloads": 5, "unpacking": 2}

View = PipelineView[ProcessRequest]


def process_flow(shop: Workshop) -> Pipeline[ProcessRequest]:
    """The pipeline, done with the parts of this workshop. Equal requests at the same time share their stages."""
    return (
        Pipeline(shop.flow_name("process-image"), request=ProcessRequest)
        .then(
            download_flow(shop),
            name="download",
            request=lambda view: to_download(view.request),
            key=lambda view: _key(view, "download"),
        )
        .then(
            unpack_flow(shop),
            name="unpack",
            request=lambda view: to_unpack(view.request, view.previous),
            key=lambda view: _key(view, "unpack"),
        )
        .then(
            activate_flow(shop),
            name="activate",
            request=lambda view: to_activate(view.request, view.previous),
            key=lambda view: _key(view, "activate"),
        )
    )


def all_flows(shop: Workshop) -> list[Flow[Any, Any]]:
    """Everything that a worker of images runs, the stages of the pipeline included."""
    process = process_flow(shop)
    return [process, *process.stages.values(), deactivate_flow(shop), remove_flow(shop)]


def key_of(request: ProcessRequest) -> str:
    """Equal requests are one job while it is unfinished; one that asks for stricter rules is another."""
    return f"{request.image_id}/{snapshot_name_of(request)}/{_mark(request.judging)}"


def _key(view: View, stage: str) -> str:
    request = view.request
    if stage == "activate":
        return f"{request.image_id}/{snapshot_name_of(request)}"
    return f"{request.image_id}/{_mark(request.judging)}"


def _mark(judging: Judging) -> str:
    return hashlib.sha256(msgspec.json.encode(judging)).hexdigest()[:12]
