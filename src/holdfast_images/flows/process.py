"""process-image: download, unpack and activate as one job; and every flow that a worker of images runs."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from holdfast import Flow, Pipeline, PipelineView
from holdfast_images.flows.activate import activate_flow
from holdfast_images.flows.download import download_flow
from holdfast_images.flows.messages import ActivateRequest, DownloadRequest, Judging, ProcessRequest, UnpackRequest
from holdfast_images.flows.remove import deactivate_flow, remove_flow
from holdfast_images.flows.unpack import unpack_flow
from holdfast_images.flows.workshop import Workshop
from holdfast_images.model import default_snapshot_name

QUEUE_LIMITS = {"downloads": 5, "unpacking": 2}
STAGES = ("download", "unpack", "activate")

View = PipelineView[ProcessRequest]


def process_flow(shop: Workshop) -> Pipeline[ProcessRequest]:
    """The pipeline, done with the parts of this workshop. Equal requests at the same time share their stages."""
    return (
        Pipeline(shop.flow_name("process-image"), request=ProcessRequest)
        .then(download_flow(shop), name="download", request=_download, key=lambda view: _key(view, "download"))
        .then(unpack_flow(shop), name="unpack", request=_unpack, key=lambda view: _key(view, "unpack"))
        .then(activate_flow(shop), name="activate", request=_activate, key=lambda view: _key(view, "activate"))
    )


def all_flows(shop: Workshop) -> list[Flow[Any, Any]]:
    """Everything that a worker of images runs, the stages of the pipeline included."""
    process = process_flow(shop)
    return [process, *process.stages.values(), deactivate_flow(shop), remove_flow(shop)]


def key_of(request: ProcessRequest) -> str:
    """Equal requests are one job while it is unfinished; one that asks for stricter rules is another."""
    name = request.snapshot_name or default_snapshot_name(request.image_id)
    return f"{request.image_id}/{name}/{_mark(request.judging)}"


def _key(view: View, stage: str) -> str:
    request = view.request
    if stage == "activate":
        return f"{request.image_id}/{request.snapshot_name or default_snapshot_name(request.image_id)}"
    return f"{request.image_id}/{_mark(request.judging)}"


def _mark(judging: Judging) -> str:
    return hashlib.sha256(msgspec.json.encode(judging)).hexdigest()[:12]


def _download(view: View) -> DownloadRequest:
    request = view.request
    return DownloadRequest(
        s3_key=request.s3_key,
        image_id=request.image_id,
        bucket=request.bucket,
        location=request.location,
        judging=request.judging,
    )


def _unpack(view: View) -> UnpackRequest:
    downloaded = view.responses["download"]
    return UnpackRequest(
        image_id=downloaded.image_id,
        local_path=downloaded.local_path,
        checksum=downloaded.checksum,
        entries=downloaded.entries,
        total_bytes=downloaded.total_bytes,
        judging=view.request.judging,
    )


def _activate(view: View) -> ActivateRequest:
    unpacked = view.responses["unpack"]
    return ActivateRequest(
        image_id=unpacked.image_id,
        device_id=unpacked.device_id,
        device_name=unpacked.device_name,
        snapshot_name=view.request.snapshot_name,
    )
