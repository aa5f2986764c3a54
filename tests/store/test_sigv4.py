"""Our signatures are botocore's, for any request we may send."""

from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import AccessKey, open_store
from penstock.store.sigv4 import UNSIGNED, canonical_path, canonical_query, sign

botocore_auth = pytest.importorskip("botocore.auth")
from botocore.awsrequest import AWSRequest  # noqa: E402 - only where botocore is
from botocore.credentials import Credentials  # noqa: E402

NOW = datetime(2026, 11, 15, 17, 2, 3, 456_789, tzinfo=UTC)
HOST = "127.0.0.1:8333"

segments = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
keys = st.one_of(
    st.sampled_from(
        ["a b", "a+b", "100%", "a%20b", "ä/ö", "x=y&z", "~user", "a//b", "*'()!", "日本"]
    ),
    st.lists(segments.filter(lambda s: s not in (".", "..")), min_size=1, max_size=4).map("/".join),
)
queries = st.lists(
    st.tuples(
        st.sampled_from(["uploadId", "uploads", "partNumber", "prefix", "X-odd", "a", "A"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    ),
    max_size=4,
    unique_by=lambda pair: pair[0],
)
values = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=20)
headers = st.dictionaries(
    st.sampled_from(
        ["range", "if-match", "content-md5", "X-Amz-Meta-Odd", "x-amz-checksum-crc32c"]
    ),
    values.filter(str.strip),
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["GET", "PUT", "POST", "HEAD", "DELETE"]),
    keys,
    queries,
    headers,
    st.builds(
        AccessKey,
        st.just("AKID"),
        st.text("abcXYZ019/+", min_size=1, max_size=40),
        st.one_of(st.none(), st.text("abcXYZ019/+=", min_size=1, max_size=80)),
    ),
)
def test_a_signature_is_botocores(method, key, query, extra, access):
    path = canonical_path(f"/bucket/{key}")
    encoded = canonical_query(query)
    url = f"http://{HOST}{path}" + (f"?{encoded}" if encoded else "")
    ours = sign(
        method,
        path,
        encoded,
        {"host": HOST, **extra},
        key=access,
        region="eu-central-1",
        now=NOW,
    )

    request = AWSRequest(method, url, headers={"host": HOST, **extra})
    request.context["timestamp"] = NOW.strftime("%Y%m%dT%H%M%SZ")
    signer = botocore_auth.S3SigV4Auth(
        Credentials(access.id, access.secret, access.token), "s3", "eu-central-1"
    )
    signer.payload = lambda _: UNSIGNED
    signer._modify_request_before_signing(request)
    theirs = signer.signature(
        signer.string_to_sign(request, signer.canonical_request(request)), request
    )
    assert ours["authorization"].rpartition("Signature=")[2] == theirs
    assert f"Credential={signer.scope(request)}, " in ours["authorization"]
    signed_names = signer.signed_headers(signer.headers_to_sign(request))
    assert f"SignedHeaders={signed_names}, " in ours["authorization"]
    assert ours["x-amz-date"] == request.context["timestamp"]
    assert ours.get("x-amz-security-token") == access.token


@given(keys)
def test_a_path_is_escaped_as_s3_wants_it(key):
    assert canonical_path(f"/{key}") == quote(f"/{key}", safe="/-_.~")


@given(queries)
def test_a_query_is_sorted_after_it_is_escaped(query):
    pairs = [pair.split("=") for pair in canonical_query(query).split("&")] if query else []
    assert pairs == sorted(pairs)
    assert len(pairs) == len(query)


@pytest.mark.parametrize("key", ["a b", "a+b", "100%", "a%20b", "ä ö/日本", "x=y&z?#", "*'()!~"])
def test_a_real_server_takes_the_signature_of_an_odd_key(object_server, store_url, key):
    store = open_store(store_url, object_server.config)
    data = bytes(3 << 20)  # large enough for the connections that sign for themselves
    store.put(key, data)
    assert store.get_object(key, expected_bytes=len(data)).data == data
    assert [meta.key for meta in store.list()] == [key]
