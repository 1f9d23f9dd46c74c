"""What may be asked of a flow: checked in its own steps, because a front end is not the only way to submit a job."""

from __future__ import annotations

import re

import msgspec

from holdfast_images.errors import InvalidName
from holdfast_images.flows.messages import Judging
from holdfast_images.model import (
    device_name,
    valid_bucket,
    valid_image_id,
    valid_key,
    valid_sha256,
    valid_snapshot_name,
)
from holdfast_images.source.locations import FileObject, HttpObject, Location, S3Object, location_of

LABEL_BYTES = 4096
_CONTROL = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029]")
_DIGITS = re.compile(r"[0-9]{1,8}")


def check_request(request: msgspec.Struct) -> None:
    """Raise InvalidName for a request that names what cannot be; whatever fields it has are checked."""
    values = msgspec.structs.asdict(request)
    if "image_id" in values:
        valid_image_id(values["image_id"])
    if "s3_key" in values:
        _check_label(values["s3_key"])
    if values.get("bucket"):
        valid_bucket(values["bucket"])
    if values.get("snapshot_name"):
        valid_snapshot_name(values["snapshot_name"])
    if "checksum" in values:
        valid_sha256(values["checksum"])
    if "device_id" in values:
        _check_device(values["device_id"], values["device_name"])
    if values.get("device_size", 0) < 0 or values.get("device_size", 0) % 512:
        raise InvalidName(f"a device of {values['device_size']} bytes cannot be", hint="give a multiple of 512 bytes")
    judging, location = values.get("judging"), values.get("location")
    if isinstance(judging, Judging) and judging.sha256 is not None:
        valid_sha256(judging.sha256)
    if isinstance(location, S3Object | HttpObject | FileObject):
        _check_location(location)


def _check_label(text: str) -> None:
    """What the catalog calls an object: its key, or its URL."""
    if "://" not in text:
        valid_key(text)
        return
    if len(text.encode("utf-8", "surrogatepass")) > LABEL_BYTES or _CONTROL.search(text) or not text.isprintable():
        raise InvalidName(f"the key {text[:200]!r} is no URL", hint="name the object by its key or its URL")


def _check_location(location: Location) -> None:
    match location:
        case S3Object():
            valid_bucket(location.bucket)
            valid_key(location.key)
        case HttpObject():
            if _CONTROL.search(location.url) or not location.url.lower().startswith(("http://", "https://")):
                raise InvalidName(f"{str(location)[:200]!r} is no URL", hint="https://host/path")
        case FileObject():
            location_of(str(location))


def _check_device(device_id: str, name: str) -> None:
    if not _DIGITS.fullmatch(device_id) or name != device_name(int(device_id)):
        raise InvalidName(
            f"{name[:200]!r} is not the device with the id {device_id[:20]!r}",
            hint="ask for the ids that unpacking has answered",
        )
