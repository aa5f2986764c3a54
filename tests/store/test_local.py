"""What only a folder can get wrong."""

import pytest

from penstock import open_store
from penstock.errors import BucketNotFound, InvalidUrl, NotFound, Unsupported


def test_a_missing_folder_is_said_when_listed_and_made_when_written(tmp_path):
    store = open_store(tmp_path / "new")
    with pytest.raises(BucketNotFound, match="no such folder; create it"):
        list(store.list())
    with pytest.raises(NotFound, match="no such object"):
        store.get("key")
    assert not (tmp_path / "new").exists(), "reading makes nothing"
    store.put("a/key", b"1")
    assert (tmp_path / "new" / "a" / "key").read_bytes() == b"1"


def test_an_empty_folder_lists_nothing(tmp_path):
    assert list(open_store(tmp_path).list()) == []


@pytest.mark.parametrize("key", ["../outside", "a/../../outside", "..", "/etc/passwd"])
def test_no_key_leaves_the_root(tmp_path, key):
    (tmp_path / "outside").write_text("secret")
    store = open_store(tmp_path / "root")
    for call in (store.get, store.head, store.delete, lambda key: store.put(key, b"")):
        with pytest.raises(InvalidUrl):
            call(key)
    assert (tmp_path / "outside").read_text() == "secret"


def test_listing_is_sorted_by_bytes(tmp_path):
    store = open_store(tmp_path)
    keys = ["a/x", "a-b", "a0", "Z", "é", "z"]
    for key in keys:
        store.put(key, b"")
    assert [meta.key for meta in store.list()] == sorted(keys, key=str.encode)


def test_a_name_cannot_be_file_and_folder(tmp_path):
    store = open_store(tmp_path)
    store.put("a", b"1")
    with pytest.raises(InvalidUrl, match="same name on a local disk"):
        store.put("a/b", b"2")


def test_conditional_replace_is_refused(tmp_path):
    store = open_store(tmp_path)
    meta = store.put("a", b"1")
    with pytest.raises(Unsupported, match="put without if_match"):
        store.put("a", b"2", if_match=meta.etag)
    assert store.get("a") == b"1"
