"""The images view, and what can be done there: plain forms, each with what it will do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import HoldfastError
from holdfast.web import Call, PageRoute, Reply, Scope
from holdfast.web.page.frame import Notice
from holdfast_images.errors import InvalidName, UnknownImage
from holdfast_images.web import view
from holdfast_images.web.access import ImageAccess, image_of, note_deed
from holdfast_images.web.images import ImageRoutes
from holdfast_images.web.maintenance import MaintenanceRoutes, refuse_large
from holdfast_images.web.view import ImagesShown, ImageWanted

DONE: Mapping[str, str] = {
    "process": "It is on its way: a worker fetches, checks, unpacks and snapshots it.",
    "there": "It was there already, whole and unchanged.",
    "snapshot": "The snapshot is on its way.",
    "remove": "It is being removed; what is mounted or open stays.",
    "release": "The lock is released.",
}


class ProcessForm(msgspec.Struct, frozen=True, kw_only=True):
    """An image to be processed: a key, or a URL."""

    source: str = ""
    image_id: str = ""
    sha256: str = ""
    refresh: bool = False


class DeedForm(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, and why."""

    reason: str = ""
    name: str = ""
    force: bool = False
    plan: str = ""


class ImagePages:
    """The views and actions."""

    def __init__(self, access: ImageAccess, routes: ImageRoutes, maintenance: MaintenanceRoutes) -> None:
        self._access = access
        self._routes = routes
        self._maintenance = maintenance

    # --- looking ---

    def show(self, call: Call) -> Reply:
        """All images; the drawer is closed."""
        return self._view(call, self._shown(call))

    def show_one(self, call: Call) -> Reply:
        """All images, one of them in the drawer."""
        return self._view(call, self._shown(call, image_of(call)))

    def _shown(self, call: Call, image_id: str | None = None) -> ImagesShown:
        images = self._access.images(call)
        detail = self._routes.detail(images, image_id) if image_id is not None else None
        wanted = call.query if isinstance(call.query, ImageWanted) else ImageWanted()
        return ImagesShown(images, call.views, wanted, detail=detail)

    def _view(self, call: Call, shown: ImagesShown, **more: Any) -> Reply:
        done = DONE.get(shown.wanted.done)
        notice = Notice("info", done) if done else None
        return _render(call, "images.html", {"notice": notice, "v": shown, "findings": None, **more})

    # --- doing ---

    def ask_process(self, call: Call) -> Reply:
        """Which image?"""
        bucket = self._access.settings.bucket
        return _render(call, "image_form.html", {"action": "process", "bucket": bucket, "image_id": "", "detail": None})

    def process(self, call: Call) -> Reply:
        """Have it processed."""
        form: ProcessForm = call.body
        images = self._access.images(call)
        named = {"source": form.source} if "://" in form.source else {"key": form.source}
        request = images.request(
            **named,  # type: ignore[arg-type] # the two are texts
            image_id=form.image_id or None,
            sha256=form.sha256 or None,
            refresh=form.refresh,
        )
        self._access.refuse_source(call.principal, request.location)
        if images.find(request) is not None:
            return _to(call, f"/images/{request.image_id}", "there")
        images.submit(request)
        return _to(call, f"/images/{request.image_id}", "process")

    def ask_snapshot(self, call: Call) -> Reply:
        """What shall it be called?"""
        return self._ask(call, "snapshot")

    def snapshot(self, call: Call) -> Reply:
        """Have one more snapshot made."""
        images, image_id = self._access.images(call), image_of(call)
        images.prepare()
        images.detached.snapshot(image_id, call.body.name)
        return _to(call, f"/images/{image_id}", "snapshot")

    def ask_remove(self, call: Call) -> Reply:
        """What goes with it?"""
        return self._ask(call, "remove")

    def remove(self, call: Call) -> Reply:
        """Have it removed."""
        images, image_id = self._access.images(call), image_of(call)
        form: DeedForm = call.body
        reason = _reason(form)
        images.prepare()
        images.detached.remove(image_id, force=form.force)
        note_deed(call, f"removes image {image_id}{' and its snapshots' if form.force else ''}: {reason}")
        return _to(call, f"/images/{image_id}", "remove")

    def _ask(self, call: Call, action: str) -> Reply:
        image_id = image_of(call)
        detail = self._routes.detail(self._access.images(call), image_id)
        if detail.image is None and action == "remove":
            raise UnknownImage(f"image {image_id} is not in the catalog of this host", hint="look at it again later")
        return _render(
            call, "image_form.html", {"action": action, "image_id": image_id, "detail": detail, "bucket": None}
        )

    def verify(self, call: Call) -> Reply:
        """What of it is not as it is recorded."""
        images, image_id = self._access.images(call), image_of(call)
        refuse_large(images, image_id)
        with self._access.long("verification"):
            findings = images.verify(image_id, deep=True)
        return self._view(call, self._shown(call, image_id), findings=findings)

    def plan(self, call: Call) -> Reply:
        """What gc would remove."""
        shown = self._shown(call)
        with self._access.long("collection"):
            shown.plan = self._maintenance.planned(shown.images)
        return self._view(call, shown)

    def collect(self, call: Call) -> Reply:
        """Carry the plan out, if it is still the same."""
        form: DeedForm = call.body
        reason, images = _reason(form), self._access.images(call)
        done = self._maintenance.carry_out(call, images, (form.plan,), reason=reason)
        title = f"{len(done.removed)} removed, {view.size(done.bytes)} given back."
        stays = " ".join(f"{each.action.subject} stays: {each.reason}." for each in done.kept[:10])
        shown = self._shown(call)
        notice = Notice("warn" if done.kept else "succeeded", title, stays)
        return self._view(call, shown, notice=notice)

    def ask_release(self, call: Call) -> Reply:
        """Who holds it?"""
        image_id = image_of(call)
        lock = next((one for one in self._shown(call).locks if one.image_id == image_id), None)
        if lock is None:
            raise UnknownImage(f"image {image_id} is not locked", hint="see which are: /images")
        return _render(
            call, "image_form.html", {"action": "release", "image_id": image_id, "detail": lock, "bucket": None}
        )

    def release(self, call: Call) -> Reply:
        """Release its lock."""
        form: DeedForm = call.body
        reason, image_id = _reason(form), image_of(call)
        self._access.images(call).locks.release([image_id], force=form.force)
        note_deed(call, f"released the lock of image {image_id}: {reason}")
        return _to(call, "/images", "release")

    # --- the table ---

    def table(self) -> Sequence[PageRoute]:
        """The routes."""
        read, submit, operate = Scope.READ, Scope.SUBMIT, Scope.OPERATE
        return [
            _page("GET", "/images", self.show, read),
            _page("GET", "/images/{image_id}", self.show_one, read),
            _page("GET", "/image/process", self.ask_process, submit),
            _page("POST", "/image/process", self.process, submit, ProcessForm),
            _page("GET", "/images/{image_id}/snapshot", self.ask_snapshot, submit),
            _page("POST", "/images/{image_id}/snapshot", self.snapshot, submit, DeedForm),
            _page("GET", "/images/{image_id}/remove", self.ask_remove, operate),
            _page("POST", "/images/{image_id}/remove", self.remove, operate, DeedForm),
            _page("POST", "/images/{image_id}/verify", self.verify, operate, DeedForm),
            _page("GET", "/image/gc", self.plan, operate),
            _page("POST", "/image/gc", self.collect, operate, DeedForm),
            _page("GET", "/images/{image_id}/release", self.ask_release, operate),
            _page("POST", "/images/{image_id}/release", self.release, operate, DeedForm),
        ]


def _page(method: str, path: str, handler: Callable[[Call], Reply], scope: Scope, form: Any = None) -> PageRoute:
    name = f"page-{method.lower()}{path.replace('/', '-').replace('{', '').replace('}', '')}"
    return PageRoute(method=method, path=path, name=name, handler=handler, scope=scope, query=ImageWanted, form=form)


def _render(call: Call, template: str, values: Mapping[str, Any]) -> Reply:
    renderer = call.services.renderer
    assert renderer is not None  # a page is served by the one that renders it
    helpers = {"size": view.size, "track": view.track_of, "said": view.said_of, "HoldfastError": HoldfastError}
    return renderer.render(call, template, {**helpers, **values})


def _to(call: Call, path: str, done: str) -> Reply:
    return Reply(status=303, headers={"Location": f"{call.link(path)}?done={done}"})


def _reason(form: DeedForm) -> str:
    if not form.reason.strip():
        raise InvalidName("this needs a reason", hint="say why: it goes into the server's log")
    return form.reason.strip()[:500]
