"""An S3 in this process, by moto, which only `make test-full` installs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# What moto accepts, as s3fs takes it.
KEYS = {"key": "testing", "secret": "testing"}


@contextmanager
def s3(bucket: str) -> Iterator[tuple[str, Any]]:
    """Serves a bucket until the block ends; yields the store's address and boto3's client."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        keys = {"aws_access_key_id": KEYS["key"], "aws_secret_access_key": KEYS["secret"]}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        client.create_bucket(Bucket=bucket)
        yield endpoint, client
    finally:
        server.stop()
