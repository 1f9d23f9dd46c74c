"""Every test of devices runs on every backend, every test of the catalog on every database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_images.catalog.catalog import Catalog
from holdfast_images.devices.protocol import Devices
from tests.support.images.catalog_places import PLACES, CatalogPlace, make_place
from tests.support.images.device_backends import BACKENDS, open_backend


@pytest.fixture(params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def devices(backend_name: str, tmp_path: Path) -> Iterator[Devices]:
    yield open_backend(backend_name, tmp_path)
    # Read-only directories would stay behind where the tests are not run by root.
    for directory, names, _ in os.walk(tmp_path):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> CatalogPlace:
    return make_place(request.param, tmp_path)


@pytest.fixture
def catalog(place: CatalogPlace) -> Iterator[Catalog]:
    with Catalog.open(place.url) as catalog:
        yield catalog
