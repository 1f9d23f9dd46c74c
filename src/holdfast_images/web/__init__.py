"""The images over HTTP and on the page: an extension of `holdfast.web`. Needs the extras `serve` and `images`."""

from holdfast_images.web.extension import image_extension

__all__ = ["image_extension"]
