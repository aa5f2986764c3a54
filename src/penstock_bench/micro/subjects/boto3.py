"""boto3: `get_object` on a pool of threads, and its transfer manager as it comes."""

import io
from collections.abc import Sequence

import boto3
from botocore.config import Config
from typing_extensions import Buffer

from penstock_bench.micro.subjects.protocol import Take, Target
from penstock_bench.micro.subjects.threads import Crew

__all__ = ["Boto3"]


class Boto3:
    """One client shared by all threads, with a connection for each."""

    def __init__(self, target: Target, keys: Sequence[str], *, threads: int) -> None:
        self._bucket = target.bucket
        self._keys = keys
        self._crew = Crew(threads)
        self._client = boto3.client(
            "s3",
            endpoint_url=target.endpoint,
            region_name=target.region,
            aws_access_key_id=target.access_key_id,
            aws_secret_access_key=target.secret_access_key,
            config=Config(max_pool_connections=threads, s3={"addressing_style": "path"}),
        )

    def read_many(self, count: int, take: Take) -> None:
        def read_one(item: tuple[int, str]) -> None:
            index, key = item
            take(index, self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())

        self._crew.each(enumerate(self._keys[:count]), read_one)

    def read(self, key: str) -> Buffer:
        sink = io.BytesIO()
        self._client.download_fileobj(self._bucket, key, sink)
        return sink.getbuffer()

    def write(self, key: str, source: bytes) -> None:
        self._client.upload_fileobj(io.BytesIO(source), self._bucket, key)

    def close(self) -> None:
        self._crew.close()
