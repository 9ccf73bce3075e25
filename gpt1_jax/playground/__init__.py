"""A page to try models on: generate, classify, see attention.

    from gpt1_jax import playground
    playground.run(["runs/books", "runs/reviews"])       # until Ctrl-C; needs gradio, the extra [demo]

Everything runs on this machine: the page has no share link, asks no other server for anything and writes no files.
Whoever reaches the address may use it, so it is this machine's own (127.0.0.1) unless another is given.

`address` takes the port, `models` loads, `reading` and `answers` compute, `markup` draws; `page` and `server` are all
that knows Gradio.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from gpt1_jax.errors import InputError

HOST, PORT = "127.0.0.1", 7860


def run(checkpoints: Sequence[str], *, host: str = HOST, port: int = PORT) -> None:
    """Serves the page until Ctrl-C; what it loads and where the page is goes to the standard output.

    Args:
      checkpoints: what `load_pretrained` reads; several may be chosen from on the page.
      host: the address to listen on; "0.0.0.0" for everybody who reaches this machine.
      port: 0 takes a free one.

    Raises:
      InputError: a checkpoint cannot be loaded, the port is taken, or Gradio is not installed.
    """
    if importlib.util.find_spec("gradio") is None:  # importing it is for `page`, which first says where its files go
        raise InputError("the playground needs gradio, which is not installed: pip install 'gpt1-jax[demo]'")
    from gpt1_jax.playground.address import address_of, listen
    from gpt1_jax.playground.models import load

    with listen(host, port) as listening:  # before what takes longer: the models, and importing Gradio
        models = load(checkpoints)
        from gpt1_jax.playground.page import build
        from gpt1_jax.playground.server import serving, wait

        for loaded in models:
            print(f"{loaded.name}: {loaded.describe()}", flush=True)
        with serving(build(models), listening) as thread:
            print(f"\nthe page is {address_of(listening)}   (Ctrl-C ends it)", flush=True)
            wait(thread)
    print("ended", flush=True)
