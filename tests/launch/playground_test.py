"""`launch/playground.py`: it serves this machine alone, ends when told to, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from gpt1_jax import InputError, playground
from gpt1_jax.playground.address import address_of, listen

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_it_serves_until_it_is_told_to_end(pretrained, tmp_path, signum, status):
    command = [sys.executable, "launch/playground.py", f"--checkpoint={pretrained}", "--port=0"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TMPDIR": str(tmp_path)}
    environment.pop("GRADIO_TEMP_DIR", None)
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said = []
        while "the page is" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
            said.append(line)
        assert said[0].startswith(f"{pretrained}: language model; ")
        assert re.search(r"[\d,]+ parameters; 2 layers, 4 heads; n_ctx=32; on .*cpu:0", said[0], re.I)
        address = re.search(r"http://127\.0\.0\.1:\d+", line)[0]
        with urllib.request.urlopen(address, timeout=60) as page:
            text = page.read().decode()
        assert page.status == 200
        assert "gpt1-jax playground" in text
        heartbeat = urllib.request.urlopen(f"{address}/gradio_api/heartbeat/abc", timeout=60)  # as every open page has
        begun = time.monotonic()
        process.send_signal(signum)
        rest, errors = process.communicate(timeout=60)
        heartbeat.close()
        assert time.monotonic() - begun < 30
    finally:
        process.kill()
    assert process.returncode == status
    assert ("ended" in rest) == (signum == signal.SIGINT)
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_without_gradio_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(InputError, match=r"pip install 'gpt1-jax\[demo\]'"):
        playground.run(["anything"])


def test_a_port_that_is_taken_is_said_at_once():
    with listen("127.0.0.1", 0) as taken:
        port = int(address_of(taken).rsplit(":", 1)[1])
        with pytest.raises(InputError, match=f"port={port}: cannot listen there"):
            playground.run(["anything"], port=port)
    with pytest.raises(InputError, match=r"host=no\.such\.host\.invalid: there is no such address"):
        listen("no.such.host.invalid", 0)
    with pytest.raises(InputError, match=r"host=192\.0\.2\.1, port=0: cannot listen there"):
        listen("192.0.2.1", 0)
