"""The page: a tab to generate, one to classify, one for attention; `reading` and `answers` say what they show."""

from __future__ import annotations

import atexit
import functools
import html
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

# Read when Gradio is imported, and by what it imports: nothing here calls home, and nothing stays behind.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
if "GRADIO_TEMP_DIR" not in os.environ:
    os.environ["GRADIO_TEMP_DIR"] = tempfile.mkdtemp(prefix="gpt1_jax_playground_")
    atexit.register(shutil.rmtree, os.environ["GRADIO_TEMP_DIR"], ignore_errors=True)

import gradio as gr

from gpt1_jax.errors import InputError, counted
from gpt1_jax.playground import markup
from gpt1_jax.playground.answers import classify
from gpt1_jax.playground.models import Loaded
from gpt1_jax.playground.reading import MAX_NEW_TOKENS, attention, continue_text

_FONTS = ("system-ui", "sans-serif")  # those of the machine that looks: none is fetched
THEME = gr.themes.Default(primary_hue="blue", font=_FONTS, font_mono=("ui-monospace", "monospace"))
CSS = markup.CSS
_ON_DEVICE: dict[str, Any] = {"concurrency_id": "device", "concurrency_limit": 1, "show_progress": "minimal"}
"""Of whatever computes: one request after another, whoever sent it."""

_NO_HEAD = """
This model has no task head: it continues text. To have it classify, fine-tune it on rows with labels,

```
python launch/finetune.py --config=configs/finetune.py:custom --config.task.train=reviews.csv \\
    --config.task.fields.text=review --config.task.label=sentiment --init_from={name} --workdir=runs/reviews
```

and start this page with `--checkpoint=runs/reviews`. `configs/finetune.py` has all kinds of tasks.
"""


def build(models: Sequence[Loaded]) -> gr.Blocks:
    """The page for these models; at least one."""
    by_name = {loaded.name: loaded for loaded in models}
    names = list(by_name)
    with gr.Blocks(title="gpt1-jax playground", analytics_enabled=False) as page:
        gr.Markdown("# gpt1-jax playground")
        name = gr.Dropdown(names, value=names[0], label="Model", visible=len(names) > 1, elem_id="model")
        about = gr.Markdown(_about(models[0]), elem_id="about")
        name.change(lambda name: _about(by_name[name]), name, about, api_visibility="private", queue=False)
        with gr.Tab("Generate"):
            _generate_tab(by_name, name)
        with gr.Tab("Classify"):
            _classify_tab(models, name)
        with gr.Tab("Attention"):
            _attention_tab(by_name, name)
    return page


def _about(loaded: Loaded) -> str:
    return f"<small>`{loaded.name}`: {html.escape(loaded.describe())}</small>"


def _told(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the page, with bad input told in it, and not in the log."""

    @functools.wraps(function)
    def told(*args: Any) -> Any:
        try:
            return function(*args)
        except InputError as error:
            # Gradio shows a message as HTML, and it may quote what was typed.
            told = html.escape(str(error), quote=False)
            raise gr.Error(told, title="This cannot be done", duration=30, print_exception=False) from None

    return told


def _generate_tab(by_name: dict[str, Loaded], name: gr.Dropdown) -> None:
    prompt = gr.Textbox(label="Prompt", placeholder="Empty begins a new document", lines=3, elem_id="prompt")
    with gr.Row():
        max_new_tokens = gr.Slider(
            0, MAX_NEW_TOKENS, 40, step=1, label="New tokens, at most", info="0 tells of the prompt alone"
        )
        temperature = gr.Slider(0, 2, 1, step=0.05, label="Temperature", info="0 takes the likeliest token always")
    with gr.Accordion("More", open=False), gr.Row():
        top_k = gr.Textbox(label="Top k", info="Draws from the k likeliest tokens; empty: from all")
        top_p = gr.Slider(0.01, 1, 1, step=0.01, label="Top p", info="Then from those that hold this probability")
        seed = gr.Textbox(label="Seed", info="Repeats a text; empty: another one each time")
    button = gr.Button("Generate", variant="primary", elem_id="generate")
    shown = gr.HTML(elem_id="continuation")

    @_told
    def generate(
        name: str,
        prompt: str,
        max_new_tokens: float,
        temperature: float,
        top_k: str | None,
        top_p: float,
        seed: str | None,
    ) -> str:
        result = continue_text(
            _chosen(by_name, name),
            prompt,
            max_new_tokens=_whole("max_new_tokens", max_new_tokens),
            temperature=temperature,
            top_k=_whole_or_none("top_k", top_k),
            top_p=top_p,
            seed=_whole_or_none("seed", seed),
        )
        return markup.continuation(result)

    inputs = [name, prompt, max_new_tokens, temperature, top_k, top_p, seed]
    gr.on([button.click, prompt.submit], generate, inputs, shown, api_name="generate", **_ON_DEVICE)


def _classify_tab(models: Sequence[Loaded], name: gr.Dropdown) -> None:
    """A form for each model, of which the chosen one's is seen."""
    forms = []
    for i, loaded in enumerate(models):
        with gr.Column(visible=i == 0) as form:
            if loaded.model.readout is None:
                gr.Markdown(_NO_HEAD.format(name=loaded.name))
            else:
                _form(loaded, "classify" if len(models) == 1 else f"classify_{i}")
        forms.append(form)
    names = [loaded.name for loaded in models]
    if len(forms) > 1:
        seen = lambda name: [gr.Column(visible=name == own) for own in names]  # noqa: E731
        name.change(seen, name, forms, api_visibility="private", queue=False)


def _form(loaded: Loaded, api_name: str) -> None:
    fields = list(loaded.fields)
    boxes = []
    for field, own in loaded.fields.items():
        many = field == "answers"
        boxes.append(
            gr.Textbox(
                label=own,
                info="One answer a line, as many as there are; blank lines do not count" if many else None,
                lines=4 if many else 2,
                elem_classes=["field"],
            )
        )
    button = gr.Button("Classify", variant="primary", elem_classes=["classify"])
    score_range = loaded.model.task_readout.score_range
    label = gr.Label(label="Score" if score_range else "Probabilities", elem_classes=["answer"])
    note = gr.HTML(elem_classes=["note"])

    @_told
    def answer(*texts: str) -> tuple[Any, str]:
        result = classify(loaded, dict(zip(fields, texts, strict=True)))
        notes = []
        if score_range is not None:
            notes.append("Scores go from {:g} to {:g}.".format(*score_range))
        if result.n_cut:
            cut, n_ctx = counted(result.n_cut, "token"), loaded.model.config.n_ctx
            notes.append(f"The example is longer than the model reads (n_ctx={n_ctx}): {cut} were left out.")
        told = f'<div class="gpt gpt-note">{html.escape(" ".join(notes))}</div>' if notes else ""
        return (dict(result.probabilities) if result.score is None else f"{result.score:.2f}"), told

    button.click(answer, boxes, [label, note], api_name=api_name, **_ON_DEVICE)


def _attention_tab(by_name: dict[str, Loaded], name: gr.Dropdown) -> None:
    first = next(iter(by_name.values()))
    text = gr.Textbox(label="Text", lines=2, elem_id="attended")
    with gr.Row():
        layer = gr.Dropdown(_layers(first), value=0, label="Layer", elem_id="layer")
        head = gr.Dropdown(_heads(first), value=_MEAN, label="Head", elem_id="head")
    button = gr.Button("Show attention", variant="primary", elem_id="attend")
    shown = gr.HTML(elem_id="map")

    @_told
    def attend(name: str, text: str, layer: float, head: float) -> str:
        one = None if head == _MEAN else _whole("head", head)
        return markup.attention_map(attention(_chosen(by_name, name), text, _whole("layer", layer), one))

    def choices(name: str) -> list[Any]:
        loaded = by_name[name]
        return [gr.Dropdown(_layers(loaded), value=0), gr.Dropdown(_heads(loaded), value=_MEAN), ""]

    inputs = [name, text, layer, head]
    gr.on([button.click, text.submit], attend, inputs, shown, api_name="attention", **_ON_DEVICE)
    for picker in (layer, head):
        picker.input(attend, inputs, shown, api_visibility="private", **_ON_DEVICE)
    name.change(choices, name, [layer, head, shown], api_visibility="private", queue=False)


_MEAN = -1


def _layers(loaded: Loaded) -> list[tuple[str, int]]:
    n = loaded.model.config.n_layer
    ends = {0: " (bottom)", n - 1: " (top)"}
    return [(f"{i + 1}{ends.get(i, '') if n > 1 else ''}", i) for i in range(n)]


def _heads(loaded: Loaded) -> list[tuple[str, int]]:
    return [("mean of all", _MEAN), *((str(i + 1), i) for i in range(loaded.model.config.n_head))]


def _chosen(by_name: dict[str, Loaded], name: str) -> Loaded:
    if name not in by_name:
        raise InputError(f"model={name!r} is none of {list(by_name)}")
    return by_name[name]


def _whole(name: str, value: Any) -> int:
    """A number as the browser sends it, 40.0 for 40, or as it was typed."""
    try:
        if (number := float(value)).is_integer():
            return int(value) if isinstance(value, str) else int(number)
    except (ValueError, TypeError):
        pass
    raise InputError(f"{name}={value!r} must be a whole number")


def _whole_or_none(name: str, value: str | None) -> int | None:
    """The number that was typed in a box that may be empty."""
    return None if value is None or not str(value).strip() else _whole(name, value)
