"""What a URL means, and what is refused before any request."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidUrl
from penstock.url import Location, check_key

SCHEMES = ("s3", "gs", "az", "memory")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", Location("s3", "bucket")),
        ("s3://bucket/", Location("s3", "bucket")),
        ("s3://bucket/a/b", Location("s3", "bucket", "a/b")),
        ("s3://bucket/a/", Location("s3", "bucket", "a/")),
        ("S3://bucket/Key", Location("s3", "bucket", "Key")),
        ("gs://b-1.x_y/k", Location("gs", "b-1.x_y", "k")),
        ("gcs://bucket/k", Location("gs", "bucket", "k")),
        ("az://container/k", Location("az", "container", "k")),
        ("abfs://container/k", Location("az", "container", "k")),
        ("abfss://c@acc.dfs.core.windows.net/k", Location("az", "c", "k", "acc")),
        ("memory://name/k", Location("memory", "name", "k")),
        ("https://host:8443/a%20b", Location("https", "https://host:8443", "a b")),
        ("file:///data/set", Location("file", "/", "data/set")),
        ("file:///data/a%20b/", Location("file", "/", "data/a b/")),
        ("file://localhost/data", Location("file", "/", "data")),
        ("/data/set", Location("file", "/", "data/set")),
        ("/data/../set", Location("file", "/", "set")),
        (Path("/data/set"), Location("file", "/", "data/set")),
        ("s3://bucket/100% of#it?", Location("s3", "bucket", "100% of#it?")),
    ],
)
def test_a_url_is_read_as_written(url, expected):
    assert Location.parse(url) == expected


@pytest.mark.parametrize(
    "url", ["gs://bucket/a/b", "s3://bucket/k", "gcs://bucket/k", "memory://m/k"]
)
def test_a_url_that_went_through_pathlib_is_repaired(url):
    mangled = Path(url)
    assert ":/" in str(mangled)
    assert "://" not in str(mangled)
    assert Location.parse(mangled) == Location.parse(url)
    assert Location.parse(str(mangled)) == Location.parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3://",
        "s3:///key",
        "ftp://host/x",
        "s4://bucket",
        "s3:bucket/key",
        "://bucket",
        "s3://bu cket/key",
        "s3://bucket//key",
        "s3://bucket/a/../b",
        "file://host/x",
        "https://user:password@host/x",
        "https://host/x?signature=abc",
    ],
)
def test_a_bad_url_says_what_a_good_one_looks_like(url):
    with pytest.raises(InvalidUrl) as caught:
        Location.parse(url)
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert "password" not in message.replace("user or password", "")
    assert "abc" not in message
    assert any(
        hint in message
        for hint in ("looks like", "rename", "remove it", "write file:///", "StoreConfig")
    )


def test_a_folder_with_a_percent_sign_survives_being_written_and_read():
    location = Location.parse("/data/100%41")
    assert str(location) == "file:///data/100%2541"
    assert Location.parse(str(location)) == location


def test_relative_paths_and_home_are_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Location.parse("data").path() == tmp_path / "data"
    assert Location.parse("~/data").path() == Path.home() / "data"


keys = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\x7f"),
    min_size=1,
    max_size=20,
).filter(lambda segment: segment not in (".", ".."))


@given(st.sampled_from(SCHEMES), st.lists(keys, min_size=1, max_size=5).map("/".join))
def test_a_location_survives_being_written_and_read(scheme, key):
    location = Location(scheme, "bucket", key)
    assert Location.parse(str(location)) == location
    check_key(key, of="test")


@given(
    st.lists(keys, min_size=1, max_size=3).map("/".join),
    st.sampled_from(["/{}", "{}/", "{}//x", "../{}", "{}/.", "{}\n"]),
)
def test_a_key_that_a_store_would_change_is_refused(key, form):
    with pytest.raises(InvalidUrl):
        check_key(form.format(key), of="test")


def test_a_key_longer_than_stores_allow_is_refused():
    check_key("é" * 512, of="test")
    with pytest.raises(InvalidUrl, match="1026 bytes"):
        check_key("é" * 513, of="test")
