"""What images add to the API and to the page, for one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast import HoldfastError
from holdfast.web import Extension, NavEntry
from holdfast_images import errors
from holdfast_images.manager import ImageManager
from holdfast_images.settings import Settings
from holdfast_images.web.access import ImageAccess
from holdfast_images.web.images import ImageRoutes
from holdfast_images.web.maintenance import MaintenanceRoutes
from holdfast_images.web.page import ImagePages

STATUSES: Mapping[type[HoldfastError], int] = {
    errors.ImageError: 500,
    errors.InvalidName: 400,
    errors.SourceRefused: 403,
    errors.TooLarge: 422,
    errors.TryAgain: 503,
    errors.SourceUnavailable: 502,
    errors.ImageBusy: 409,
    errors.DeviceBusy: 409,
    errors.Permanent: 422,
    errors.ObjectNotFound: 404,
    errors.AccessDenied: 502,
    errors.SourceUntrusted: 502,
    errors.NoSpace: 507,
    errors.PoolUnusable: 409,
    errors.ForeignData: 409,
    errors.DeviceLost: 409,
    errors.CatalogConflict: 409,
    errors.CatalogUnusable: 503,
    errors.UnknownImage: 404,
    errors.ImageElsewhere: 409,
    errors.NotInstalled: 503,
}
"""The status of a class is that of its nearest ancestor here."""


def image_flows(place: str | Path, settings: Settings) -> Sequence[str]:
    """The flows of images, whose jobs are not submitted by their names: a request of one names files and policies."""
    return [flow.name for flow in ImageManager.open(place, settings).flows]


def image_extension(place: str | Path, settings: Settings) -> Extension:
    """The routes and views of the images at a place. Opens nothing; InvalidName if `api_sources` is wrong."""
    access = ImageAccess(place, settings)
    _ = access.prefixes
    images, maintenance = ImageRoutes(access), MaintenanceRoutes(access)
    return Extension(
        name="images",
        routes=(*images.table(), *maintenance.table()),
        pages=ImagePages(access, images, maintenance).table(),
        nav=(NavEntry(title="Images", path="/images"),),
        reserved=image_flows(place, settings),
        templates=("holdfast_images.web", "templates"),
        statuses=STATUSES,
    )
