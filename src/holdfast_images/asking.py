"""From what somebody names, a key or a URL, to what is asked of process-image."""

from __future__ import annotations

import msgspec

from holdfast_images.errors import InvalidName
from holdfast_images.flows.messages import Judging, ProcessRequest
from holdfast_images.model import image_id_of, valid_image_id, valid_key, valid_sha256, valid_snapshot_name
from holdfast_images.settings import Settings
from holdfast_images.source.locations import HttpObject, Location, S3Object, location_of, origin_of, without_secrets


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """An object, and what the catalog and the journal call it: nothing in it is secret."""

    location: Location
    s3_key: str
    bucket: str


def request_of(
    settings: Settings,
    source: Source,
    *,
    image_id: str | None = None,
    snapshot_name: str | None = None,
    sha256: str | None = None,
    verify: bool = False,
    refresh: bool = False,
) -> ProcessRequest:
    """What is asked of process-image under these settings; InvalidName if it cannot be meant."""
    return ProcessRequest(
        s3_key=source.s3_key,
        bucket=source.bucket,
        image_id=valid_image_id(image_id) if image_id else image_id_of(*origin_of(source.location)),
        location=source.location,
        snapshot_name=valid_snapshot_name(snapshot_name) if snapshot_name else "",
        judging=Judging(
            policy=settings.policy,
            keep_setuid=settings.keep_setuid,
            sha256=valid_sha256(sha256) if sha256 else None,
            verify=verify,
            refresh=refresh,
        ),
    )


def source_of(settings: Settings, *, key: str | None = None, url: str | None = None) -> Source:
    """The object that is meant: by its key in the bucket of the settings, or by a URL. InvalidName if it is none.

    The catalog calls an object in that bucket by its key, however it is asked for, and any other by its URL.
    """
    if url is None:
        if not key:
            raise InvalidName("no image is named", hint="give --s3-key and --bucket, or --source")
        if not settings.bucket:
            raise InvalidName("no bucket is given", hint="--bucket, HOLDFAST_BUCKET or S3_BUCKET; or use --source")
        location = location_of(bucket=settings.bucket, key=valid_key(key), settings=settings.source)
        return Source(location=location, s3_key=key, bucket=settings.bucket)
    if key:
        raise InvalidName("both a key and a URL are given", hint="give one of --s3-key and --source")
    location = location_of(url, settings=settings.source)
    if isinstance(location, HttpObject) and location.signature is not None:
        raise InvalidName(
            f"the URL {location} has a signature or token in it, which a job must not keep",
            hint="use s3://bucket/key with credentials, or fetch it and use file:///path",
        )
    plain = without_secrets(location)
    if isinstance(plain, S3Object):
        name = plain.key if plain.bucket == settings.bucket else str(plain)
        return Source(location=plain, s3_key=name, bucket=plain.bucket)
    return Source(location=plain, s3_key=plain.url if isinstance(plain, HttpObject) else str(plain), bucket="")
