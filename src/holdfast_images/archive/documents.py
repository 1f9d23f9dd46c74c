"""The documents of OCI layouts and docker-save archives, with every field that is known and its type.

What is not looked at must be of its type all the same: programs that declare it refuse the document otherwise. Fields
that nobody declares are ignored, as everywhere. Null is taken where Go's decoder leaves the field as it was.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

Annotations = dict[str, str | None]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Integer = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Text = str | None
Flag = bool | None
Texts = list[str | None] | None
Set = dict[str, dict[str, Any] | None] | None
"""The keys of an object of empty objects."""
Command = Texts
"""A list only. Docker reads a text as a command of one word, and writes none; who reads OCI's types refuses it."""


class Platform(msgspec.Struct, frozen=True):
    """What an image runs on."""

    os: str = ""
    architecture: str = ""
    variant: Text = ""
    os_version: Text = msgspec.field(name="os.version", default=None)
    os_features: Texts = msgspec.field(name="os.features", default=None)


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A blob, as a manifest or an index names it."""

    media_type: str
    digest: str
    size: Integer
    platform: Platform | None = None
    urls: Texts = None
    annotations: Annotations | None = None
    data: bytes | None = None
    """A copy of the blob, in base64."""
    artifact_type: Text = None


class Layout(msgspec.Struct, frozen=True, rename="camel"):
    """oci-layout."""

    image_layout_version: str


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """index.json, or an index among the blobs."""

    schema_version: int
    manifests: list[Descriptor]
    media_type: str | None = None
    artifact_type: Text = None
    subject: Descriptor | None = None
    annotations: Annotations | None = None
    config: Any = None
    layers: Any = None
    fs_layers: Any = None
    history: Any = None

    @property
    def of_another_kind(self) -> tuple[object, ...]:
        """What only other documents have."""
        return self.config, self.layers, self.fs_layers, self.history


class ImageManifest(msgspec.Struct, frozen=True, rename="camel"):
    """The manifest of one image."""

    schema_version: int
    config: Descriptor
    layers: list[Descriptor]
    media_type: str | None = None
    artifact_type: Text = None
    subject: Descriptor | None = None
    annotations: Annotations | None = None
    manifests: Any = None
    fs_layers: Any = None
    history: Any = None

    @property
    def of_another_kind(self) -> tuple[object, ...]:
        """What only other documents have."""
        return self.manifests, self.fs_layers, self.history


class RootFilesystem(msgspec.Struct, frozen=True):
    """The layers, by what they are once decompressed."""

    type: str
    diff_ids: list[str]


class Past(msgspec.Struct, frozen=True):
    """How a layer came to be."""

    created: Moment | None = None
    created_by: Text = ""
    author: Text = ""
    comment: Text = ""
    empty_layer: Flag = False


class HealthCheck(msgspec.Struct, frozen=True, rename="pascal"):
    """How Docker asks whether a container is well; durations in nanoseconds."""

    test: Texts = None
    interval: Integer | None = None
    timeout: Integer | None = None
    start_period: Integer | None = None
    start_interval: Integer | None = None
    retries: Integer | None = None


class ContainerSettings(msgspec.Struct, frozen=True, rename="pascal"):
    """How a container of the image is to be started. Nothing here starts one."""

    user: Text = None
    exposed_ports: Set = None
    env: Texts = None
    entrypoint: Command = None
    cmd: Command = None
    volumes: Set = None
    working_dir: Text = None
    labels: Annotations | None = None
    stop_signal: Text = None
    args_escaped: Flag = None
    # Those of Docker alone.
    hostname: Text = None
    domainname: Text = None
    attach_stdin: Flag = None
    attach_stdout: Flag = None
    attach_stderr: Flag = None
    tty: Flag = None
    open_stdin: Flag = None
    stdin_once: Flag = None
    healthcheck: HealthCheck | None = None
    image: Text = None
    network_disabled: Flag = None
    mac_address: Text = None
    on_build: Texts = None
    stop_timeout: Integer | None = None
    shell: Command = None


class Configuration(msgspec.Struct, frozen=True):
    """An image's configuration, as OCI and Docker write it."""

    rootfs: RootFilesystem
    architecture: str = ""
    os: str = ""
    variant: Text = ""
    os_version: Text = msgspec.field(name="os.version", default=None)
    os_features: Texts = msgspec.field(name="os.features", default=None)
    created: Moment | None = None
    author: Text = ""
    config: ContainerSettings | None = None
    history: list[Past] | None = None
    # Those of Docker alone.
    id: Text = None
    parent: Text = None
    comment: Text = None
    container: Text = None
    container_config: ContainerSettings | None = None
    docker_version: Text = None
    size: Integer | None = None


class SavedImage(msgspec.Struct, frozen=True, rename="pascal"):
    """One image of docker-save's manifest.json."""

    config: str
    layers: list[str]
    repo_tags: Texts = None
    parent: Text = None
    layer_sources: dict[str, Descriptor] | None = None
