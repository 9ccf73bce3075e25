"""A bucket on this machine: gcp-storage-emulator, with what it lacks for TensorStore."""

import contextlib
import http
import logging
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def bucket() -> Iterator[str]:
    """Starts the emulator; all that TensorStore, gcsfs and Google's client ask of Google goes to it. Gives gs://bucket."""
    with pytest.MonkeyPatch.context() as patch:
        # Read when gcsfs is imported: it would ask a service that the emulator lacks.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setenv("NO_GCE_CHECK", "true")  # there are no credentials to be looked for
        patch.setenv("GOOGLE_CLOUD_PROJECT", "none")
        server = pytest.importorskip("gcp_storage_emulator.server", reason="needs the extra [test]")
        pytest.importorskip("gcsfs", reason="needs the extra [gcs]")
        _add_generations(patch)
        logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
        emulator = server.create_server("localhost", 0, in_memory=True, default_bucket="bucket")
        emulator.start()
        try:
            emulator._api._httpd.handle_error = lambda *_: None  # of connections that a client closes
            for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
                patch.setenv(name, f"http://localhost:{emulator._api._httpd.server_address[1]}")
            yield "gs://bucket"
        finally:
            emulator.stop()


def _add_generations(patch: pytest.MonkeyPatch) -> None:
    """TensorStore reads an object's generation, and writes only if it is still the same."""
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects

    download, upload = objects.download, objects._media_upload

    def generation(storage: Any, bucket: str, name: str) -> str:
        try:
            return storage.get_file_obj(bucket, name)["generation"]
        except NotFound:
            return "0"

    def tell_generation(request: Any, response: Any, storage: Any) -> None:
        download(request, response, storage)
        names = request.params["bucket_name"], request.params["object_id"]
        response["x-goog-generation"] = generation(storage, *names)

    def upload_if_same(request: Any, response: Any, storage: Any) -> None:
        expected = request.query.get("ifGenerationMatch")
        names = request.params["bucket_name"], request.query["name"][0]
        if expected and expected[0] != generation(storage, *names):
            response.status = http.HTTPStatus.PRECONDITION_FAILED
            return
        upload(request, response, storage)

    patch.setattr(objects, "download", tell_generation)
    patch.setattr(objects, "_media_upload", upload_if_same)
