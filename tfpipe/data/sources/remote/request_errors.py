"""The meaning of a failed request: the server's status, whether another try may succeed, and the reason for a message.

Every request goes through these functions, of single files as of packed data and tar shards. The errors are those of
fsspec's file systems, and are known by name, since aiohttp, botocore and gcsfs are optional packages.
"""

import asyncio
from http import HTTPStatus

# Statuses below 500 after which another try may succeed.
MAY_PASS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
# Errors of aiohttp and botocore for a server that is not reached, and for a connection that fails or breaks off.
NOT_REACHED = {"ClientConnectorError", "EndpointConnectionError", "ConnectTimeoutError", "ConnectionRefusedError"}
LOST = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", *NOT_REACHED}
# aiohttp's errors about what it cannot read in a response; their number is aiohttp's own, not the server's status.
UNREADABLE = {"HttpProcessingError"}


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


def is_missing(error: Exception) -> bool:
    """Returns whether the server says that there is no such file."""
    return status_of(error) == HTTPStatus.NOT_FOUND


def status_of(error: Exception) -> int | None:
    """Returns the HTTP status that the server sent, as an error or its cause states it; None if it sent none."""
    if _broke_off(error):
        return None
    for source in (error, error.__cause__):
        # Attributes of the errors of aiohttp, gcsfs, botocore and huggingface_hub.
        for status in (getattr(source, "status", None) or getattr(source, "code", None), _response(source)):
            if isinstance(status, int):
                return status
    if isinstance(error, FileNotFoundError):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.FORBIDDEN if isinstance(error, PermissionError) else None


def reason(error: Exception, timeout_s: float) -> str:
    """Returns why a request failed, which had `timeout_s` seconds."""
    status = status_of(error)
    if status is not None:
        known = status in set(HTTPStatus)
        text = f"HTTP status {status}{f' ({HTTPStatus(status).phrase})' if known else ''}"
        # An object store's message adds information; those of other servers only repeat the status.
        return f"{text}: {error}" if isinstance(error.__cause__, Exception) and _response(error.__cause__) else text
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if _is(error, NOT_REACHED):
        return f"the server cannot be reached: {text}"
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return f"no answer within {timeout_s:g} s"
    return text


def _broke_off(error: Exception) -> bool:
    """Returns whether no whole response came, whatever number the error has."""
    return _is(error, LOST | UNREADABLE) or _is(error.__cause__, UNREADABLE)


def _is(error: BaseException | None, kinds: set[str]) -> bool:
    return not kinds.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _response(error: BaseException | None) -> int | None:
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(response, "status_code", None)
