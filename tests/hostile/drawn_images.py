"""Images of layers drawn at random: OCI layouts and what docker save writes, with odd documents at times."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

from holdfast_images.archive.manifests import host_architecture
from tests.hostile.drawn_tars import Drawing
from tests.support.images.archives import Form, archive, directory, member, symlink
from tests.support.images.extracting import descriptor_of, digest

OCI = "application/vnd.oci.image."
DOCKER = "application/vnd.docker."
VALUES: list[Any] = [
    None,
    "",
    "x",
    0,
    1,
    2,
    2.0,
    2.5,
    -1,
    True,
    [],
    {},
    [None],
    ["x"],
    {"x": 1},
    1 << 70,
    "2",
    "sha256:",
]
TYPES = [
    *(f"{OCI}index.v1+json", f"{OCI}manifest.v1+json", f"{OCI}config.v1+json", f"{OCI}layer.v1.tar"),
    *(f"{OCI}layer.v1.tar+gzip", f"{OCI}layer.nondistributable.v1.tar", f"{DOCKER}distribution.manifest.v2+json"),
    *(f"{DOCKER}distribution.manifest.list.v2+json", f"{DOCKER}container.image.v1+json", f"{OCI}manifest.v1+JSON"),
    *(f"{DOCKER}image.rootfs.diff.tar.gzip", f"{DOCKER}image.rootfs.diff.tar", "application/json", ""),
]
KEYS = [
    *("layers", "Layers", "LAYERS", "layer\u017f", "manifests", "Manifests", "config", "Config", "rootfs", "Rootfs"),
    *("diff_ids", "Diff_IDs", "diffIds", "type", "Type", "mediaType", "mediatype", "MediaType", "digest", "Digest"),
    *("size", "Size", "\u017fize", "schemaVersion", "schemaversion", "platform", "os", "OS", "architecture", "urls"),
    *("data", "annotations", "artifactType", "subject", "history", "created", "RepoTags", "repotags", "x", "variant"),
]


class Parts:
    """What an image consists of, before it is put together."""

    def __init__(self, rng: random.Random, layers: list[bytes]) -> None:
        self.rng = rng
        self.layers = layers
        self.blobs: dict[str, bytes] = {}
        self.config: Any = {
            "architecture": host_architecture(),
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        }
        if rng.random() < 0.5:
            self.config |= {"created": "2023-11-14T22:13:20Z", "history": [{"created_by": "x"} for _ in layers]}
        if rng.random() < 0.5:
            self.config["config"] = {
                "Env": ["A=b"],
                "Cmd": ["x"],
                "Entrypoint": None,
                "Labels": {"a": "b"},
                "User": "",
                "Volumes": None,
                "ExposedPorts": {"80/tcp": {}},
                "StopSignal": "SIGTERM",
                "WorkingDir": "/",
            }
        self.odd = rng.random() < 0.5
        """Whether some document gets an oddity."""
        self.left = rng.choice((1, 1, 1, 2))

    def text(self, document: Any) -> bytes:
        """The document as it is written; perhaps this is the odd one."""
        rng = self.rng
        if self.odd and self.left and rng.random() < 0.4:
            self.left -= 1
            document = json.loads(json.dumps(document))
            for _ in range(rng.choice((1, 1, 2))):
                rng.choice(ODDITIES)(rng, document)
                # What was drawn must not become part of itself, or of VALUES.
                document = json.loads(json.dumps(document))
            text = _written(rng, document)
            return rng.choice(WRITTEN_ODDLY)(rng, text) if rng.random() < 0.2 else text
        return json.dumps(document, indent=rng.choice((None, 1))).encode()

    def blob(self, content: bytes, media_type: str, **more: Any) -> dict[str, Any]:
        self.blobs[digest(content)] = content
        return descriptor_of(content, media_type, **more)


def drawn_image(rng: random.Random) -> tuple[bytes, str]:
    """An archive, and what skopeo calls its form."""
    known: dict[bytes, bytes] = {}
    layers = [
        Drawing(rng, layer=True, known=known).archive(rng.choice((0.0, 0.0, 0.05))) for _ in range(rng.randrange(1, 5))
    ]
    if rng.random() < 0.1:
        layers.append(layers[0])
    parts = Parts(rng, layers)
    form = rng.choice(("oci", "oci", "docker", "blobs", "both"))
    files = {"oci": _oci, "docker": _docker, "blobs": _docker, "both": _both}[form](parts, form)
    content = _packed(rng, files)
    if form != "oci" and rng.random() < 0.1:
        content = gzip.compress(content, 1)
    return content, "oci-archive" if form in {"oci", "both"} else "docker-archive"


def _oci(parts: Parts, form: str) -> dict[bytes, bytes]:
    rng = parts.rng
    style = rng.choice(("oci", "oci", "docker"))
    config_type = f"{OCI}config.v1+json" if style == "oci" else f"{DOCKER}container.image.v1+json"
    config = parts.blob(parts.text(parts.config), config_type)
    manifest: Any = {
        "schemaVersion": 2,
        "config": config,
        "layers": [_stored(parts, each, style) for each in parts.layers],
    }
    manifest_type = f"{OCI}manifest.v1+json" if style == "oci" else f"{DOCKER}distribution.manifest.v2+json"
    if style == "docker" or rng.random() < 0.7:
        manifest["mediaType"] = manifest_type
    found = parts.blob(parts.text(manifest), manifest_type)
    if rng.random() < 0.5:
        found["annotations"] = {"org.opencontainers.image.ref.name": "x"}
    if rng.random() < 0.3:
        found["platform"] = {"os": "linux", "architecture": host_architecture()}
    index: Any = {"schemaVersion": 2, "manifests": [found]}
    if rng.random() < 0.3:
        index["mediaType"] = f"{OCI}index.v1+json"
    if rng.random() < 0.2:
        nested = parts.blob(parts.text({"mediaType": f"{OCI}index.v1+json"} | index), f"{OCI}index.v1+json")
        index = {"schemaVersion": 2, "manifests": [nested]}
    files = {b"index.json": parts.text(index), b"oci-layout": parts.text({"imageLayoutVersion": "1.0.0"})}
    return files | {b"blobs/sha256/" + name[7:].encode(): content for name, content in parts.blobs.items()}


def _stored(parts: Parts, layer: bytes, style: str) -> dict[str, Any]:
    rng = parts.rng
    packed = rng.random() < 0.5
    plain, suffix = (f"{OCI}layer.v1.tar", "+gzip") if style == "oci" else (f"{DOCKER}image.rootfs.diff.tar", ".gzip")
    return parts.blob(gzip.compress(layer, 1, mtime=0) if packed else layer, plain + suffix if packed else plain)


def _docker(parts: Parts, form: str) -> dict[bytes, bytes]:
    rng = parts.rng
    files: dict[bytes, bytes] = {}
    names = []
    for number, layer in enumerate(parts.layers):
        hexadecimal = digest(layer)[7:]
        name = f"{number:064x}/layer.tar" if form == "docker" else f"blobs/sha256/{hexadecimal}"
        if form == "docker" and rng.random() < 0.2:
            name = f"{hexadecimal}.tar"
        files[name.encode()] = layer
        names.append(name)
    config = parts.text(parts.config)
    name = f"{digest(config)[7:]}.json" if form == "docker" else f"blobs/sha256/{digest(config)[7:]}"
    files[name.encode()] = config
    image = {"Config": name, "RepoTags": rng.choice((["demo:latest"], None, [])), "Layers": names}
    files[b"manifest.json"] = parts.text([image])
    if rng.random() < 0.2:
        files[b"repositories"] = parts.text({"demo": {"latest": "0" * 64}})
    return files


def _both(parts: Parts, form: str) -> dict[bytes, bytes]:
    """As docker save writes since version 25: one set of blobs, two documents."""
    state = parts.rng.getstate()
    files = _docker(parts, "blobs")
    parts.rng.setstate(state)
    config = next(
        content for name, content in files.items() if content not in parts.layers and name.startswith(b"blobs")
    )
    found = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}manifest.v1+json",
        "config": parts.blob(config, f"{OCI}config.v1+json"),
        "layers": [parts.blob(layer, f"{OCI}layer.v1.tar") for layer in parts.layers],
    }
    manifest = parts.blob(parts.text(found), f"{OCI}manifest.v1+json")
    files[b"index.json"] = parts.text({"schemaVersion": 2, "manifests": [manifest]})
    files[b"oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    return files | {b"blobs/sha256/" + name[7:].encode(): content for name, content in parts.blobs.items()}


def _packed(rng: random.Random, files: dict[bytes, bytes]) -> bytes:
    """The archive around it all; now and then in an unusual way."""
    start = rng.choice((b"", b"", b"", b"./"))
    form: Form = rng.choice(("ustar", "ustar", "pax", "gnu"))
    names = list(files)
    rng.shuffle(names)
    members = [directory(start + b"blobs/", form=form)] if rng.random() < 0.5 else []
    for name in names:
        if rng.random() < 0.02:
            members.append(symlink(start + name, rng.choice((b"x", *names)), form=form))
            continue
        members.append(member(start + name, files[name], form=form))
    if rng.random() < 0.03:
        members.append(
            member(rng.choice((b"x", b"rootfs/a", b"./index.json", *names)), rng.choice(list(files.values())))
        )
    return archive(*members)


# --- oddities of documents ----------------------------------------------------------------------------------

Oddity = Callable[[random.Random, Any], None]


def _objects(document: Any) -> list[Any]:
    found = []
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            found.append(value)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found


def _respelled(rng: random.Random, document: Any) -> None:
    chosen = rng.choice(_objects(document) or [{}])
    if chosen:
        key = rng.choice(list(chosen))
        other = rng.choice(
            (key.swapcase(), key.title(), key.upper(), key.replace("s", "\u017f"), key.replace("k", "\u212a"))
        )
        chosen[other] = chosen.pop(key) if rng.random() < 0.5 else rng.choice((chosen[key], *VALUES))


def _value(rng: random.Random, document: Any) -> None:
    chosen = rng.choice(_objects(document) or [{}])
    if chosen:
        chosen[rng.choice(list(chosen))] = rng.choice(VALUES)


def _key(rng: random.Random, document: Any) -> None:
    rng.choice(_objects(document) or [{}])[rng.choice(KEYS)] = rng.choice(VALUES)


def _missing(rng: random.Random, document: Any) -> None:
    chosen = rng.choice(_objects(document) or [{}])
    if chosen:
        del chosen[rng.choice(list(chosen))]


def _media_type(rng: random.Random, document: Any) -> None:
    rng.choice(_objects(document) or [{}])["mediaType"] = rng.choice(TYPES)


def _list(rng: random.Random, document: Any) -> None:
    lists = [value for each in _objects(document) for value in each.values() if isinstance(value, list)]
    lists += [document] if isinstance(document, list) else []
    if not lists:
        return
    chosen = rng.choice(lists)
    rng.choice((chosen.reverse, chosen.clear, lambda: chosen.extend(chosen[:1]), lambda: chosen.append(None)))()


def _written(rng: random.Random, document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def _twice(rng: random.Random, text: bytes) -> bytes:
    at = text.find(b'"')
    end = text.find(b",", at)
    return text if at < 0 or end < 0 else text[:at] + text[at:end] + b"," + text[at:]


WRITTEN_ODDLY: list[Callable[[random.Random, bytes], bytes]] = [
    lambda rng, text: b"\xef\xbb\xbf" + text,
    lambda rng, text: text + rng.choice((b" \n\t", b"x", b"{}", b"\0", b"\x0c")),
    lambda rng, text: rng.choice((b" \n", b"\x0b", b"\xc2\xa0")) + text,
    lambda rng, text: text.replace(b"2", b"2.0", 1),
    lambda rng, text: text.replace(b"2", b"0x2", 1),
    lambda rng, text: text.replace(b'"', b"'", 2),
    lambda rng, text: text.replace(b"layers", b"l\\u0061yers", 1),
    lambda rng, text: text.replace(b"linux", b"lin\xffux", 1),
    lambda rng, text: text.replace(b"linux", b"linux\\ud800", 1),
    lambda rng, text: text.replace(b": {", b": NaN, {", 1),
    lambda rng, text: text.replace(b"}", b",}", 1),
    lambda rng, text: text.decode("utf-8", "replace").encode("utf-16"),
    _twice,
]
ODDITIES: list[Oddity] = [_respelled, _respelled, _value, _key, _key, _missing, _media_type, _list]
