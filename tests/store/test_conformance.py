"""The conformance suite on every store there is: memory, file, s3, gs, and az where Node exists."""

import pytest

from penstock import open_store
from penstock.testing import ObjectServer
from penstock.testing.azurite import AzureServer
from penstock.testing.conformance import (
    ConditionalPutConformance,
    ConditionalReplaceConformance,
    FlatKeysConformance,
    StoreConformance,
    claims,
)


@pytest.fixture(scope="module")
def gcs_server():
    with ObjectServer(buckets=["train"], gcs=True) as server:
        yield server


@pytest.fixture(scope="module")
def azure_server():
    reason = AzureServer.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with AzureServer(containers=["train"]) as server:
        yield server


class TestMemory(
    StoreConformance, FlatKeysConformance, ConditionalPutConformance, ConditionalReplaceConformance
):
    @pytest.fixture
    def store(self):
        return open_store("memory://conformance")


class TestFile(StoreConformance, ConditionalPutConformance):
    @pytest.fixture
    def store(self, tmp_path):
        return open_store(tmp_path / "a folder with 100% odd#name")


class TestS3(
    StoreConformance, FlatKeysConformance, ConditionalPutConformance, ConditionalReplaceConformance
):
    @pytest.fixture
    def store(self, object_server):
        return open_store(object_server.url("train"), object_server.config)


class TestGcs(StoreConformance, FlatKeysConformance):
    """SeaweedFS answers GCS's XML dialect, generation preconditions excepted."""

    @pytest.fixture
    def store(self, gcs_server):
        return open_store(gcs_server.url("train"), gcs_server.config)


class TestAzure(
    StoreConformance, FlatKeysConformance, ConditionalPutConformance, ConditionalReplaceConformance
):
    @pytest.fixture
    def store(self, azure_server):
        return open_store(azure_server.url("train"), azure_server.config)


def test_every_claim_of_the_suite_is_stated_in_words():
    assert len(claims()) > 20
    assert all(text.endswith(".") for _, text in claims())
