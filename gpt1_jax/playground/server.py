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

from gpt1_jax.playground.page import CSS, THEME

_PATIENCE_S = 2  # for what is being sent when the server ends


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
