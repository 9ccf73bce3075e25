"""Files in a bucket of an emulator, and what is said of buckets that cannot be used."""

import http.server
import json
import os
import sys
import threading
import types
from pathlib import Path

import pytest

from gpt1_jax import bucket
from gpt1_jax.errors import InputError


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("gs://bucket/run", "gs://bucket/run"),
        ("gs://bucket/runs/books/", "gs://bucket/runs/books"),
        (Path("gs://bucket/run"), "gs://bucket/run"),
        ("/gs/bucket", None),
        ("gs", None),
        ("s3://bucket/run", None),
    ],
)
def test_addresses(path, url):
    assert bucket.is_url(path) == (url is not None)
    if url:
        assert bucket.url_of(path) == url


@pytest.mark.parametrize(
    "path",
    ["gs://Bucket/run", "gs://bucket", "gs://b/run", "gs://bucket//run", "gs://", "gs:", "gs:///a/run", Path("gs://")],
)
def test_addresses_that_no_folder_has_are_refused(path):
    assert bucket.is_url(path)
    with pytest.raises(InputError, match="gs://bucket/folder"):
        bucket.url_of(path)


def test_files_go_there_and_back(gcs, tmp_path):
    url = f"{gcs}/files"
    assert bucket.list_files(url) == {}
    for name in ("a.txt", "inner/b.txt", "left/out/c.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        bucket.put(path, f"{url}/{name}")
    md5 = {name: bucket.md5_of(tmp_path / name) for name in ("a.txt", "inner/b.txt")}
    assert bucket.list_files(url, skip={"left"}) == md5
    assert len(bucket.list_files(url)) == 3
    bucket.get(f"{url}/inner/b.txt", tmp_path / "new" / "b.txt")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["b.txt"]
    assert (tmp_path / "new" / "b.txt").read_text() == "inner/b.txt"
    bucket.remove(f"{url}/a.txt")
    bucket.remove(f"{url}/a.txt")
    assert bucket.list_files(url, skip={"left", "inner"}) == {}
    assert bucket.md5_of(tmp_path / "nothing") == ""


def test_another_writer_is_seen(gcs, tmp_path):
    """A list that gcsfs keeps would hide what TensorStore writes, which does not tell it."""
    import requests

    (tmp_path / "a").write_text("a")
    bucket.put(tmp_path / "a", f"{gcs}/seen/a")
    assert list(bucket.list_files(f"{gcs}/seen")) == ["a"]
    upload = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/bucket/o?uploadType=media&name=seen/b"
    requests.post(upload, data=b"b", timeout=10).raise_for_status()
    assert sorted(bucket.list_files(f"{gcs}/seen")) == ["a", "b"]


def test_a_writable_folder_is_left_as_it_was(gcs):
    bucket.check_writable(f"{gcs}/probed")
    assert bucket.list_files(f"{gcs}/probed") == {}


def test_a_bucket_that_does_not_exist(gcs):
    with pytest.raises(InputError, match=r"there is no bucket 'elsewhere'.*gcloud storage buckets create"):
        bucket.check_writable("gs://elsewhere/run")


def test_without_gcsfs_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InputError, match=r"gs://bucket/run needs gcsfs: pip install 'gpt1-jax\[gcs\]'"):
        bucket.list_files("gs://bucket/run")


class _Forbidden(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"error": {"code": 403, "message": "no permission to create objects"}}).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def at_address(gcs, monkeypatch):
    """Sends gcsfs to another address, where it tries six times without the pauses, of half a minute together."""
    import fsspec
    import gcsfs.retry

    monkeypatch.setattr(gcsfs.retry, "random", types.SimpleNamespace(random=lambda: -100.0))

    def send(address):
        monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": address, "token": "anon"})

    return send


def test_a_bucket_that_is_closed_to_these_credentials(at_address):
    with http.server.HTTPServer(("localhost", 0), _Forbidden) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at_address(f"http://localhost:{server.server_address[1]}")
        with pytest.raises(InputError, match=r"no permission to create objects.*Storage Object User"):
            bucket.check_writable("gs://bucket/run")
        server.shutdown()


def test_a_bucket_out_of_reach(at_address, caplog):
    at_address("http://localhost:9")
    with pytest.raises(InputError, match=r"gs://bucket/run cannot be reached .*localhost:9"):
        bucket.check_writable("gs://bucket/run")
    assert not caplog.records  # gcsfs keeps its traces to itself
