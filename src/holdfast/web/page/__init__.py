"""The page: five views of the engine as HTML, made on the server; every read works without script."""

from holdfast.web.page.site import Site

__all__ = ["Site"]
