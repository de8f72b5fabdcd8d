"""The meaning of a failed request: the server's status, whether another try may succeed, and the reason for a message.

Every request goes through these functions, of single files as of packed data and tar shards.
"""

import asyncio
import sys
from http import HTTPStatus

# Statuses below 500 after which another try may succeed.
MAY_PASS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
STATUSES = range(100, 600)
# botocore's errors for a server that is not reached.
BOTOCORE = ("botocore.exceptions", "EndpointConnectionError", "ConnectTimeoutError")


class StatusError(Exception):
    """An answer of the server that is an error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status


class ClientConnectorError(OSError):
    """A server that is not reached. Named as aiohttp's, as the next ones, so that messages are the same."""


class ClientConnectorCertificateError(ClientConnectorError, ValueError):
    """A server whose certificate is not trusted; asking again does not help."""


class ServerDisconnectedError(OSError):
    """A connection that ends before a response."""


class ClientPayloadError(OSError):
    """A response that breaks off or cannot be read."""


def may_pass(error: Exception) -> bool:
    """Returns whether a request that failed with `error` may succeed if it is repeated."""
    status = status_of(error)
    if status is not None:
        return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in MAY_PASS
    if isinstance(error, ValueError):  # an invalid URL or certificate
        return False
    return _broke_off(error) or isinstance(error, (OSError, asyncio.TimeoutError))


def status_of(error: Exception) -> int | None:
    """Returns the HTTP status that the server sent, as an error or its cause states it; None if it sent none."""
    if _broke_off(error):
        return None
    for source in (error, error.__cause__):
        # Attributes of the errors of aiohttp, gcsfs, botocore and huggingface_hub. Other numbers are no statuses.
        for status in (getattr(source, "status", None), getattr(source, "code", None), _response(source)):
            if isinstance(status, int) and status in STATUSES:
                return status
    if isinstance(error, FileNotFoundError):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.FORBIDDEN if isinstance(error, PermissionError) else None


def reason(error: Exception, timeout_s: float) -> str:
    """Returns why a request failed, which had `timeout_s` seconds."""
    status = status_of(error)
    if status is not None:
        is_standard = status in set(HTTPStatus)
        text = f"HTTP status {status}{f' ({HTTPStatus(status).phrase})' if is_standard else ''}"
        # An object store's message adds information; those of other servers only repeat the status.
        return f"{text}: {error}" if isinstance(error.__cause__, Exception) and _response(error.__cause__) else text
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    of_others = _of("aiohttp", "ClientConnectorError"), _of(*BOTOCORE)
    if isinstance(error, (ClientConnectorError, ConnectionRefusedError, of_others)):
        return f"the server cannot be reached: {text}"
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return f"no answer within {timeout_s:g} s"
    return text


def _broke_off(error: Exception) -> bool:
    """Returns whether no whole response came, whatever number the error has."""
    # aiohttp's errors about what it cannot read in a response have a number of its own, not the server's status.
    unreadable = _of("aiohttp.http_exceptions", "HttpProcessingError")
    lost = _of("aiohttp", "ClientConnectionError", "ClientPayloadError"), _of(*BOTOCORE, "HTTPClientError")
    return isinstance(error, (unreadable, lost)) or isinstance(error.__cause__, unreadable)


def _of(module: str, *names: str) -> tuple[type, ...]:
    """Returns classes of an optional package; none if it is not loaded, so that no error can be of them."""
    return tuple(getattr(sys.modules[module], name) for name in names) if module in sys.modules else ()


def _response(error: BaseException | None) -> int | None:
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(response, "status_code", None)
