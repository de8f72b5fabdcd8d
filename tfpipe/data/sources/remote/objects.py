"""Objects of S3 by libcurl, which signs the requests: by s3fs, one takes 1.4 ms of CPU time (profiles/remote.md)."""

import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

from tfpipe.config import Remote
from tfpipe.data.sources.remote.file_systems import ByteRange, TooLong
from tfpipe.data.sources.remote.http_client import HttpClient
from tfpipe.data.sources.remote.request_errors import status_of
from tfpipe.errors import ConfigError

log = logging.getLogger(__name__)
# What requests by libcurl obey of s3fs's `client_kwargs` and `config_kwargs`; with more, s3fs makes the requests.
CLIENT = {"endpoint_url", "region_name"}
CONFIG = {"http_session_cls", "max_pool_connections", "region_name", "retries", "s3"}
FEWEST_FAILURES = 4
# Statuses of a request to another region than the bucket's, and the advice then.
OF_REGIONS = (HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.BAD_REQUEST)
MOVED = "s3://%s: s3fs makes its requests, at 1.4 ms of CPU time each, since they fail without: %s%s"
REGION = '; see that the bucket is in the region of data.remote.options {"client_kwargs": {"region_name": ...}}'
# Segments of a path that libcurl resolves and S3 does not.
DOTS = re.compile(r"(^|/)\.{1,2}(/|$)")


class Bucket(NamedTuple):
    """A bucket's address, and how requests for its objects are signed."""

    address: str
    """E.g. "https://bucket.s3.us-west-2.amazonaws.com/"."""
    signing: tuple[tuple[str, Any], ...]
    """Options of libcurl by their names."""


class S3Objects:
    """Translates requests for the bytes of objects; those that s3fs alone can make are left to it."""

    def __init__(self, system: Any) -> None:
        self._system = system
        self._refused: set[str] = set()  # buckets that answered s3fs and not libcurl
        self._failures: dict[str, int] = {}  # in a row, by bucket
        kwargs = (system.client_kwargs.keys() - CLIENT) | (system.config_kwargs.keys() - CONFIG)
        self._is_plain = not (kwargs or system.req_kw or system.s3_additional_kwargs or system.version_aware)

    async def over_http(self, requests: Sequence[ByteRange]) -> list[ByteRange | None]:
        """Returns each request as libcurl makes it, None if it is left to s3fs."""
        places = [request.url.removeprefix("s3://").partition("/") for request in requests]
        buckets = {name: await self._bucket(name) for name in {name for name, *_ in places}}
        return [
            request._replace(url=bucket.address + quote(key, safe="/~"), signing=bucket.signing)
            if (bucket := buckets[name]) is not None and request.what == "bytes" and not DOTS.search(key)
            else None
            for request, (name, _, key) in zip(requests, places, strict=True)
        ]

    async def _bucket(self, name: str) -> Bucket | None:
        if not self._is_plain or name in self._refused or ":" in name:  # an access point's name has colons
            return None
        try:
            await self._system.set_session()
            client = await self._system.get_s3(name)
            scheme, store = client.meta.endpoint_url.rstrip("/").split("://")
            # Whether the bucket is a part of the host's name. The host itself may be that of all regions.
            url = await client.generate_presigned_url("get_object", {"Bucket": name, "Key": "key"})
            address = f"{scheme}://{name}.{store}/" if f"://{name}." in url else f"{scheme}://{store}/{name}/"
            if self._system.anon:
                return Bucket(address, ())
            key, secret, token = self._system.key, self._system.secret, self._system.token
            if key is None:  # a role's keys change
                key, secret, token, *_ = await (await self._system.session.get_credentials()).get_frozen_credentials()
        except Exception:  # s3fs meets it too, and its error is the one to tell
            return None
        headers = [f"x-amz-security-token: {token}"] if token else []
        login = ("USERPWD", f"{key}:{secret}"), ("HTTPHEADER", headers)
        return Bucket(address, (("AWS_SIGV4", f"aws:amz:{client.meta.region_name}:s3"), *login))

    def learn(self, url: str, error: Exception | None) -> None:
        """Learns how libcurl's request for an object ended: with None, or an error where s3fs has got the object.

        After FEWEST_FAILURES in a row its bucket is left to s3fs: a single one may pass.
        """
        name = url.split("/")[2]
        if error is None:
            self._failures.pop(name, None)
        elif not isinstance(error, TooLong) and name not in self._refused:
            self._failures[name] = self._failures.get(name, 0) + 1
            if self._failures[name] >= FEWEST_FAILURES:
                self._refused.add(name)
                log.warning(MOVED, name, error, REGION if status_of(error) in OF_REGIONS else "")


def open_client(config: Remote) -> HttpClient | None:
    """Returns libcurl for objects, with the proxies of the environment as s3fs has; None if pycurl is missing."""
    try:
        return HttpClient(config.model_copy(update={"options": {}}), objects=True)
    except ConfigError:
        return None
