"""Whom a TLS connection trusts, and what its failures mean."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from holdfast_images.errors import ImageError, InvalidName, SourceUnavailable, SourceUntrusted

AWS_BUNDLE = "AWS_CA_BUNDLE"
"""Only for S3, where AWS's own tools read it, and then nothing else is trusted."""
BUNDLE = "SSL_CERT_FILE"

# X509_V_ERR_… of OpenSSL. No file of authorities helps against these.
_WRONG_HOST = {62, 64}
_WRONG_TIME = {9, 10}
# The connection broke: the other side may be there again at the next try.
_PASSING = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def tls_context(environment: Mapping[str, str], *, aws: bool) -> ssl.SSLContext:
    """Trust what this host trusts, or what a variable names; InvalidName if that cannot be read."""
    if aws and (bundle := environment.get(AWS_BUNDLE)):
        with _readable(AWS_BUNDLE, bundle):
            path = os.path.expanduser(bundle)
            if os.path.isdir(path):
                return ssl.create_default_context(capath=path)
            return ssl.create_default_context(cafile=path)
    context = ssl.create_default_context()
    if bundle := environment.get(BUNDLE):
        # OpenSSL has read it, too, or passed over a file that is not there without a word.
        with _readable(BUNDLE, bundle):
            context.load_verify_locations(cafile=bundle)
    return context


@contextmanager
def _readable(variable: str, bundle: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "has no certificate in it" if isinstance(error, ssl.SSLError) else f"cannot be read: {error.strerror}"
        hint = f"correct {variable}, or unset it to trust what this host does"
        raise InvalidName(f"{variable} names {bundle}, which {reason}", hint=hint) from None


def tls_failure(
    error: ssl.SSLError, where: str, environment: Mapping[str, str], *, aws: bool, connecting: bool
) -> ImageError:
    """What an error of TLS means; `connecting`: nothing had been said yet. Only what may heal may be tried again."""
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"{where}: the server's certificate does not hold: {error.verify_message}"
        return SourceUntrusted(message, hint=_certificate_hint(error.verify_code, environment, aws=aws))
    reason = (error.reason or "").replace("_", " ").lower()
    if not connecting or isinstance(error, _PASSING) or not reason:
        return SourceUnavailable(f"{where}: TLS: {reason or error}")
    if reason in ("wrong version number", "record layer failure", "http request", "packet length too long"):
        return SourceUntrusted(
            f"{where}: the server does not speak TLS on this port ({reason})",
            hint="look at the port; a server without TLS is asked by http://, which must be allowed for other hosts",
        )
    return SourceUntrusted(
        f"{where}: the server and this host agree on no kind of TLS ({reason})",
        hint="TLS 1.2 or newer is wanted: see to the server, or to the name that it is asked by",
    )


def _certificate_hint(code: int, environment: Mapping[str, str], *, aws: bool) -> str:
    if code in _WRONG_HOST:
        return "ask the server by a name that its certificate has"
    if code in _WRONG_TIME:
        return "look at this host's clock; if that is right, the server needs a new certificate"
    variable = AWS_BUNDLE if aws and environment.get(AWS_BUNDLE) else BUNDLE
    if environment.get(variable):
        return (
            f"{variable} is set, and has not the authority that vouches for it: add that authority's certificate there"
        )
    return f"trust its authority on this host, or name its file in {BUNDLE}" + (f" or {AWS_BUNDLE}" if aws else "")
