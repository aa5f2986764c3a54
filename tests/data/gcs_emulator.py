"""gcp-storage-emulator with the one request of GCS's XML dialect that our reads need: `python gcs_emulator.py PORT`.

The emulator itself sends an object without ETag and Last-Modified, compares no If-Match, and does not know an escaped
bucket. What is composed, listed and deleted through the JSON API is its own work.
"""

import sys
from base64 import b64decode
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from http.server import HTTPServer
from urllib.parse import unquote, urlsplit

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

JSON_PATHS = {"", "b", "batch", "download", "storage", "upload", "wipe"}


class Handler(RequestHandler):
    def do_GET(self):  # noqa: N802 - named by http.server
        bucket, _, key = unquote(urlsplit(self.path).path)[1:].partition("/")
        if bucket in JSON_PATHS:
            super().do_GET()
            return
        try:
            data = self.storage.get_file(bucket, key)
            about = self.storage.get_file_obj(bucket, key)
        except NotFound:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        etag = f'"{b64decode(about["md5Hash"]).hex()}"'
        if self.headers.get("If-Match", etag) != etag:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", {})
            return
        headers = {
            "ETag": etag,
            "Last-Modified": format_datetime(_time(about["updated"]), usegmt=True),
            "x-goog-hash": f"crc32c={about['crc32c']}",
        }
        self._answer(200, data, headers)

    def _answer(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _time(text):
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


class Server(HTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    storage = Storage(use_memory_fs=True)
    Server(("127.0.0.1", int(sys.argv[1])), partial(Handler, storage)).serve_forever()
