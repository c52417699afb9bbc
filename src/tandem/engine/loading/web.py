"""HTTP for downloads: certificates, proxies, passwords in addresses, trying again. Knows no files and no indexes."""

from __future__ import annotations

import base64
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from tandem.core.errors import ConfigError, ModelError
from tandem.engine.loading.pip_settings import PipSettings

T = TypeVar("T")
TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)
MAX_FAILURES = 5
"""In a row, without a byte gained, before a fetch is given up."""


class Transient(Exception):
    """A failure that may pass: no answer, a cut connection, a busy server. Doesn't leave this package."""


class Refused(Exception):
    """An answer that trying again won't change. Doesn't leave this package."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Web:
    """Opens addresses the way pip would. `retry_delay_s` doubles with each failure in a row."""

    def __init__(self, settings: PipSettings, *, timeout_s: float = 30.0, retry_delay_s: float = 0.5) -> None:
        self._timeout_s = timeout_s
        self._retry_delay_s = retry_delay_s
        proxies = {"http": settings.proxy, "https": settings.proxy} if settings.proxy else None
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPSHandler(context=_tls(settings.cert)),
        )
        self._passwords: dict[str, str] = {}
        """Host → Authorization header, from addresses that named a user: files of an index often lie on its host."""

    def open(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """The response, to be closed by the caller. Raises `Transient`, `Refused`; `ModelError` for a certificate."""
        try:
            response: http.client.HTTPResponse = self._opener.open(self._request(url, headers), timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            raise _by_status(error.code, str(error.reason)) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise _untrusted(url, error.reason) from error
            raise Transient(str(error.reason)) from error
        except (OSError, http.client.HTTPException) as error:
            raise Transient(str(error) or type(error).__name__) from error
        return response

    def persist(self, url: str, attempt: Callable[[], T], gained: Callable[[], int] = lambda: 0) -> T:
        """Call `attempt` until it raises no `Transient`; give up after failures in a row in which `gained` stayed."""
        failures, before = 0, gained()
        while True:
            try:
                return attempt()
            except Transient as error:
                now = gained()
                failures, before = (1 if now > before else failures + 1), now
                if failures >= MAX_FAILURES:
                    raise ModelError(
                        f"{without_password(url)} can't be fetched: {error}."
                        " Is the network up, and are proxy and index set as for pip?"
                    ) from error
            time.sleep(self._retry_delay_s * 2 ** (failures - 1))

    def _request(self, url: str, headers: Mapping[str, str]) -> urllib.request.Request:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._passwords[host] = "Basic " + base64.b64encode(secret.encode()).decode()
        request = urllib.request.Request(without_password(url), headers=dict(headers))
        if host in self._passwords:
            # "Unredirected", so that the password stays with this host.
            request.add_unredirected_header("Authorization", self._passwords[host])
        return request


def without_password(url: str) -> str:
    """The address as it may be printed."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def receive(response: http.client.HTTPResponse, num_bytes: int) -> bytes:
    """At most `num_bytes` of the body, none at its end. Raises `Transient`."""
    try:
        return response.read(num_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise Transient(str(error) or type(error).__name__) from error


def _by_status(status: int, reason: str) -> Exception:
    text = f"it answered {status} {reason}"
    return Transient(text) if status in TRANSIENT_STATUS else Refused(status, text)


def _tls(cert: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cert)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"pip's certificate file {cert} can't be read: {error}.") from error


def _untrusted(url: str, error: ssl.SSLCertVerificationError) -> ModelError:
    return ModelError(
        f"The certificate of {urlsplit(url).hostname} isn't trusted ({error.verify_message});"
        " if that is a company's proxy, name its certificate file in PIP_CERT or SSL_CERT_FILE."
    )
