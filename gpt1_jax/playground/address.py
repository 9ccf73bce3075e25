"""Where the page is, taken before anything is loaded: it knows nothing of Gradio, whose import takes seconds."""

from __future__ import annotations

import socket

from gpt1_jax.errors import InputError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
      InputError: there is no such address here, or the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except socket.gaierror as error:
        raise InputError(
            f"host={host}: there is no such address ({error.strerror}); 127.0.0.1 is this machine"
        ) from None
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"host={host}, port={port}: cannot listen there ({reason}); give another port, or 0 for a free one"
        ) from None


def address_of(listening: socket.socket) -> str:
    """Where the page is."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
