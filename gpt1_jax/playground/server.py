"""The page's server: one port, from `serving` on to its end."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import fastapi
import gradio as gr
import uvicorn
from starlette.routing import Mount

from gpt1_jax.errors import InputError
from gpt1_jax.playground.page import CSS, THEME

_PATIENCE_S = 2  # for what is being sent when the server ends


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
      InputError: there is no such address here, or the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"host={host}, port={port}: cannot listen there ({reason}); give another port, or 0 for a free one"
        ) from None


def address_of(listening: socket.socket) -> str:
    """Where the page is."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def serving(page: gr.Blocks, listening: socket.socket) -> Iterator[threading.Thread]:
    """Where the page is served, by the thread that it gives; afterwards all that were connected are let go."""
    app = fastapi.FastAPI(openapi_url=None)
    gr.mount_gradio_app(
        app, page, path="/", theme=THEME, css=CSS, footer_links=[], run_history=False, ssr_mode=False, pwa=False
    )
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=_PATIENCE_S)
    mounted = [route.app for route in app.routes if isinstance(route, Mount)]
    [gradio_app] = [app for app in mounted if isinstance(app, gr.routes.App)]
    server = _Server(config, gradio_app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="playground", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        server.should_exit = True
        thread.join()


class _Server(uvicorn.Server):
    """Tells Gradio of the end: every open page keeps a connection, which it closes only then."""

    def __init__(self, config: uvicorn.Config, app: gr.routes.App) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.stop_event.set()
        await super().shutdown(sockets)


def wait(thread: threading.Thread) -> None:
    """Waits for the end of the thread, or for Ctrl-C. SIGTERM ends the program in order, with its usual exit status."""
    handlers = {  # a shell lets what it runs in the background ignore Ctrl-C
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: lambda signum, frame: sys.exit(128 + signum),
    }
    before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        thread.join()
    except KeyboardInterrupt:
        pass
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
