"""From the documents of an OCI layout or a docker-save archive to the one image in it, every digest checked.

What is not looked at must be of its type all the same: programs that declare it refuse the document otherwise. Fields
that nobody declares are ignored, as everywhere. Null is taken where Go's decoder leaves the field as it was.
"""

from __future__ import annotations

import hashlib
import os
import re
from datetime import datetime
from typing import Annotated, Any

import msgspec

from holdfast_images.archive.entry import ArchiveFinding, ArchiveSeverity, Limits, Reason, printable
from holdfast_images.archive.members import Member, Members, decode
from holdfast_images.errors import ImageRefused

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

    schema_version: Integer
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

    schema_version: Integer
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


NESTED = 4
"""Indexes inside of indexes."""
DESCRIPTORS = 1000
"""In all of them together."""

_MACHINES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
}
_INDEXES = {
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
}
_MANIFESTS = {
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
}
_CONFIGURATIONS = {"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"}
_LAYERS = {
    "application/vnd.oci.image.layer.v1.tar": "none",
    "application/vnd.oci.image.layer.v1.tar+gzip": "gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "none",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "zstd",
}
COMPRESSIONS_OF_LAYERS = frozenset(_LAYERS.values())
_LENGTHS = {"sha256": 64, "sha512": 128}
_DIGEST_IN_NAME = re.compile(r"(?:blobs/sha256/|sha256:)?([0-9a-f]{64})(?:\.json)?")


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's place in the archive. `content` is its digest once decompressed."""

    name: str
    member: Member
    content: str
    compression: str | None = None
    """What its media type says; None where nothing says it."""
    stored: str
    """The digest of its stored bytes."""
    proven: bool
    """Its stored bytes were compared with a digest; otherwise only the decompressed ones can be."""


class Selected(msgspec.Struct, frozen=True, kw_only=True):
    """The one image of an archive."""

    layers: tuple[Layer, ...]
    findings: tuple[ArchiveFinding, ...] = ()


def host_architecture() -> str:
    """What images call the machine this runs on."""
    machine = os.uname().machine
    return _MACHINES.get(machine, machine)


def select_oci(members: Members, limits: Limits, architecture: str) -> Selected:
    """The image of an OCI layout that runs on this architecture."""
    if members.document("oci-layout", Layout).image_layout_version.split(".")[0] != "1":
        raise ImageRefused(Reason.BAD_MANIFEST, "the layout is of another version than 1")
    index = members.document("index.json", Index)
    _expect_one_kind(index.of_another_kind)
    _expect_same_type(index.media_type, _INDEXES)
    candidates = _candidates(members, index)
    descriptor = _choose(candidates, architecture)
    manifest = decode(_blob(members, descriptor), ImageManifest, descriptor.digest)
    _expect_one_kind(manifest.of_another_kind)
    _expect_same_type(manifest.media_type, {descriptor.media_type})
    _expect(manifest.schema_version == 2, "the manifest is of another version than 2")
    _expect_media_type(manifest.config, _CONFIGURATIONS)
    configuration = decode(_blob(members, manifest.config), Configuration, manifest.config.digest)
    contents = _contents(configuration, len(manifest.layers), limits)
    layers = tuple(
        _oci_layer(members, layer, content) for layer, content in zip(manifest.layers, contents, strict=True)
    )
    return Selected(layers=layers, findings=_platform_findings(configuration, architecture))


def select_docker(members: Members, limits: Limits, architecture: str) -> Selected:
    """The image of a docker-save archive."""
    images = members.document("manifest.json", list[SavedImage])
    _expect(bool(images), "manifest.json names no image")
    if len(images) > 1:
        tags = ", ".join(tag for image in images[:10] for tag in ((image.repo_tags or [])[:1] or ["<untagged>"]) if tag)
        raise ImageRefused(
            Reason.AMBIGUOUS_IMAGE,
            f"there are {len(images)} images in it: {_shown(tags)}",
            hint="save one image at a time",
        )
    saved = images[0]
    configuration = decode(_saved_configuration(members, saved.config), Configuration, saved.config)
    contents = _contents(configuration, len(saved.layers), limits)
    layers = tuple(_saved_layer(members, name, content) for name, content in zip(saved.layers, contents, strict=True))
    return Selected(layers=layers, findings=_platform_findings(configuration, architecture))


# --- OCI -----------------------------------------------------------------------------------------------------


def _candidates(members: Members, index: Index) -> list[Descriptor]:
    """Every image that the index and those inside of it name, once."""
    found: dict[str, Descriptor] = {}
    waiting = [(descriptor, 1) for descriptor in index.manifests]
    seen = 0
    while waiting:
        descriptor, depth = waiting.pop()
        seen += 1
        if seen > DESCRIPTORS or depth > NESTED:
            raise ImageRefused(Reason.BAD_MANIFEST, "there are too many indexes, or too many inside of each other")
        if descriptor.media_type in _INDEXES:
            inner = decode(_blob(members, descriptor), Index, descriptor.digest)
            _expect_one_kind(inner.of_another_kind)
            _expect_same_type(inner.media_type, {descriptor.media_type})
            waiting += [(each, depth + 1) for each in inner.manifests]
        elif descriptor.media_type in _MANIFESTS:
            found.setdefault(descriptor.digest, descriptor)
        else:
            _expect_media_type(descriptor, _MANIFESTS)
    return list(found.values())


def _choose(candidates: list[Descriptor], architecture: str) -> Descriptor:
    if len(candidates) == 1:
        return candidates[0]
    fitting = [
        each
        for each in candidates
        if each.platform is None or (each.platform.os == "linux" and each.platform.architecture == architecture)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise ImageRefused(
            Reason.NO_PLATFORM,
            f"none of the {len(candidates)} images in it is for linux/{architecture}",
            hint=f"export the image for linux/{architecture}",
        )
    raise ImageRefused(
        Reason.AMBIGUOUS_IMAGE,
        f"{len(fitting)} images in it could be meant",
        hint="export one image, for one platform, at a time",
    )


def _oci_layer(members: Members, descriptor: Descriptor, content: str) -> Layer:
    _expect_media_type(descriptor, set(_LAYERS))
    same_algorithm = descriptor.digest.partition(":")[0] == content.partition(":")[0]
    if _LAYERS[descriptor.media_type] == "none" and same_algorithm:
        _compare(descriptor.digest, content, descriptor.digest)
    return Layer(
        name=descriptor.digest,
        member=_verified(members, descriptor),
        content=content,
        compression=_LAYERS[descriptor.media_type],
        stored=descriptor.digest,
        proven=True,
    )


def _blob(members: Members, descriptor: Descriptor) -> bytes:
    _verified(members, descriptor)
    return members.proven(_blob_name(descriptor.digest), descriptor.digest)


def _verified(members: Members, descriptor: Descriptor) -> Member:
    """The blob, after its size and digest were found to be those told."""
    name = _blob_name(descriptor.digest)
    algorithm = descriptor.digest.partition(":")[0]
    if descriptor.data is not None:
        # Some readers take this copy instead of the blob.
        _compare(f"{algorithm}:{hashlib.new(algorithm, descriptor.data).hexdigest()}", descriptor.digest, "its data")
    member = members.find(name)
    if member.size != descriptor.size:
        raise ImageRefused(
            Reason.DIGEST_MISMATCH, f"{descriptor.digest} has {member.size} bytes instead of {descriptor.size}"
        )
    _compare(members.digest(member, algorithm), descriptor.digest, descriptor.digest)
    return member


def _blob_name(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    if len(value) != _LENGTHS.get(algorithm) or not re.fullmatch(r"[0-9a-f]+", value):
        raise ImageRefused(Reason.BAD_MANIFEST, f"{_shown(digest[:200])} is no digest by sha256 or sha512")
    return f"blobs/{algorithm}/{value}"


# --- docker-save ---------------------------------------------------------------------------------------------


def _saved_configuration(members: Members, name: str) -> bytes:
    members.find(name)  # a name that leads elsewhere is told as that
    named = _DIGEST_IN_NAME.fullmatch(name)
    if named is None:
        raise ImageRefused(Reason.BAD_MANIFEST, f"the configuration {_shown(name)} is not named by its digest")
    return members.proven(name, f"sha256:{named[1]}")


def _saved_layer(members: Members, name: str, content: str) -> Layer:
    member = members.find(name)
    blob = re.fullmatch(r"blobs/sha256/([0-9a-f]{64})", name)
    stored = members.digest(member)
    if blob:
        _compare(stored, f"sha256:{blob[1]}", name)
    proven = stored == content or bool(blob)
    return Layer(name=_shown(name[:200]), member=member, content=content, stored=stored, proven=proven)


# --- both ----------------------------------------------------------------------------------------------------


def _contents(configuration: Configuration, layers: int, limits: Limits) -> list[str]:
    """The digests of the decompressed layers, one for each."""
    if layers > limits.layers:
        raise ImageRefused(Reason.TOO_MANY_LAYERS, f"it has {layers} layers, {limits.layers} are allowed")
    _expect(layers > 0, "the image has no layers")
    contents = configuration.rootfs.diff_ids
    _expect(configuration.rootfs.type == "layers", "the root file system is not made of layers")
    _expect(len(contents) == layers, f"the configuration knows {len(contents)} layers, the manifest {layers}")
    for content in contents:
        _blob_name(content)
    return contents


def _platform_findings(configuration: Configuration, architecture: str) -> tuple[ArchiveFinding, ...]:
    if configuration.os not in {"", "linux"}:
        raise ImageRefused(Reason.NO_PLATFORM, f"the image is for {_shown(configuration.os[:100])}, not for Linux")
    if configuration.architecture in {"", architecture}:
        return ()
    detail = f"the image is for {_shown(configuration.architecture[:100])}, this machine is {architecture}"
    finding = ArchiveFinding(
        code=Reason.NO_PLATFORM, severity=ArchiveSeverity.WARNING, path="", offset=None, detail=detail
    )
    return (finding,)


def _expect(condition: bool, otherwise: str) -> None:  # noqa: FBT001 - an assertion about somebody else's document
    if not condition:
        raise ImageRefused(Reason.BAD_MANIFEST, otherwise)


def _expect_one_kind(of_another: tuple[object, ...]) -> None:
    """A document with the keys of two kinds (manifest, index, manifest of schema 1) is either, as its reader likes."""
    if any(value is not None for value in of_another):
        raise ImageRefused(Reason.AMBIGUOUS_IMAGE, "a document has the keys of two kinds of manifest or index")


def _expect_same_type(said: str | None, named: set[str]) -> None:
    """A document that says of itself to be something else than what it is named as is either, as its reader likes."""
    if said is not None and said not in named:
        raise ImageRefused(Reason.AMBIGUOUS_IMAGE, f"a document says of itself to be {_shown(said[:200])}")


def _expect_media_type(descriptor: Descriptor, known: set[str]) -> None:
    if descriptor.media_type not in known:
        raise ImageRefused(
            Reason.UNSUPPORTED_MEDIA_TYPE,
            f"{_shown(descriptor.digest[:200])} is {_shown(descriptor.media_type[:200])}",
            hint="layers have to be in the archive, as tar, tar+gzip or tar+zstd",
        )


def _compare(found: str, expected: str, name: str) -> None:
    if found != expected:
        raise ImageRefused(Reason.DIGEST_MISMATCH, f"{_shown(name)} has the digest {found}")


def _shown(text: str) -> str:
    return printable(text.encode("utf-8", "surrogatepass"))
