"""Who lists: this package's walk, its plain listing, and the alternatives that know S3."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import penstock
from penstock_bench.micro.subjects.protocol import Target

__all__ = ["LISTERS", "Lister"]


class Lister(Protocol):
    """Opened by its constructor, before the clock."""

    def find(self, prefix: str) -> Any:
        """All objects below the prefix, in whatever form it is that its users hold them."""
        ...

    def keys(self, found: Any) -> list[str]:
        """Their keys, in the order they were listed. After the clock."""
        ...


class Walk:
    """`penstock.list_objects`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._config = _config(target)

    def find(self, prefix: str) -> Any:
        return penstock.list_objects(self._target.url(prefix), config=self._config)

    def keys(self, found: Any) -> list[str]:
        return [meta.key for meta in found]


class Plain:
    """`Store.list`: one page after another."""

    def __init__(self, target: Target) -> None:
        self._url = f"s3://{target.bucket}"
        self._config = _config(target)

    def find(self, prefix: str) -> Any:
        # Opened anew, as `list_objects` does it.
        return list(penstock.open_store(self._url, self._config).list(prefix))

    def keys(self, found: Any) -> list[str]:
        return [meta.key for meta in found]


class S3MapDataset:
    """s3torchconnector's map-style dataset, which lists when it is first asked for its length."""

    def __init__(self, target: Target) -> None:
        import s3torchconnector

        self._make = s3torchconnector.S3MapDataset.from_prefix
        self._target = target
        self._client_config = s3torchconnector.S3ClientConfig(force_path_style=True)

    def find(self, prefix: str) -> Any:
        dataset = self._make(
            self._target.url(prefix),
            region=self._target.region,
            endpoint=self._target.endpoint,
            s3client_config=self._client_config,
        )
        len(dataset)
        return dataset

    def keys(self, found: Any) -> list[str]:
        return [item.key for item in found._dataset_bucket_key_pairs]  # noqa: SLF001 - it shows its keys nowhere else


class Paginator:
    """boto3's paginator of `list_objects_v2`."""

    def __init__(self, target: Target) -> None:
        import boto3
        from botocore.config import Config

        client = boto3.client(
            "s3",
            endpoint_url=target.endpoint,
            region_name=target.region,
            aws_access_key_id=target.access_key_id,
            aws_secret_access_key=target.secret_access_key,
            config=Config(s3={"addressing_style": "path"}),
        )
        self._bucket = target.bucket
        self._paginator = client.get_paginator("list_objects_v2")

    def find(self, prefix: str) -> Any:
        pages = self._paginator.paginate(Bucket=self._bucket, Prefix=prefix)
        return [entry for page in pages for entry in page.get("Contents", ())]

    def keys(self, found: Any) -> list[str]:
        return [entry["Key"] for entry in found]


LISTERS: Mapping[str, Callable[[Target], Lister]] = {
    "walk": Walk,
    "plain": Plain,
    "s3torchconnector": S3MapDataset,
    "boto3": Paginator,
}


def _config(target: Target) -> penstock.StoreConfig:
    return penstock.StoreConfig(
        endpoint=target.endpoint,
        region=target.region,
        credentials=penstock.AccessKey(target.access_key_id, target.secret_access_key),
    )
