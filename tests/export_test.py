"""An exported folder says what the model says, and takes texts, ids and errors as the package does."""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax import GPT1, GPT1Config, InputError, ReadOut, export, generate, load_pretrained, predict, save_pretrained
from gpt1_jax import tokenizers as all_tokenizers
from gpt1_jax.evaluate import encode_examples
from gpt1_jax.export import exporter, programs
from gpt1_jax.sampling import generate_tokens, window_start
from gpt1_jax.tasks.transforms import SpecialTokens, to_streams
from gpt1_jax.tokenizers import MissingTokenizer, Tokenizer

SIZE = {"n_ctx": 24, "n_embd": 32, "n_head": 4, "n_layer": 1}
CLOSE = {"rtol": 0, "atol": 1e-6}  # probabilities: another padding may be summed in another order

LONG = "a moving film , a clever story , a tender script , a dull ending , and then the music and the cast again . "
TASKS = {
    "classification": (ReadOut("classification", ("no", "yes", "maybe")), ["a warm film .", {"text": "dull !"}, LONG]),
    "last token": (ReadOut("classification", ("no", "yes"), read_at="last"), ["a warm film .", "dull !", LONG]),
    "entailment": (
        ReadOut("entailment", ("no", "yes")),
        [{"premise": LONG, "hypothesis": "a film"}, {"premise": "it is warm", "hypothesis": "it is not"}],
    ),
    "similarity": (
        ReadOut("similarity", ("no", "yes")),
        [{"text_a": LONG, "text_b": "a film"}, {"text_a": LONG, "text_b": LONG}, {"text_a": "so", "text_b": "it is"}],
    ),
    "points of a score": (
        ReadOut("similarity", score_range=(0, 5), score_points=6),
        [{"text_a": "a story", "text_b": "a film"}, {"text_a": "so", "text_b": "it is"}],
    ),
    "score": (ReadOut("classification", score_range=(1, 10)), ["a warm film .", "dull !"]),
    "multiple choice": (
        ReadOut("multiple_choice", ("A", "B", "C")),
        [
            {"context": LONG, "question": "what ?", "answers": ["the film", "the cast , the cast", "it"]},
            {"question": "what ?", "answers": ["the film", "it"]},
        ],
    ),
}
SLOW = ("last token", "similarity", "score")  # of each of their parts there is another with it


@pytest.fixture(scope="module")
def tokenizer(pretrained) -> Tokenizer:
    """SentencePiece, 380 pieces."""
    return all_tokenizers.load(pretrained)


def random_model(folder: Path, tokenizer: Tokenizer, readout: ReadOut | None = None, **changes) -> Path:
    """A model that says something else of every text."""
    n_special = 0 if readout is None or readout.read_at == "last" else 3
    model = GPT1(GPT1Config(vocab_size=tokenizer.vocab_size, n_special=n_special, **{**SIZE, **changes}), readout)
    params = random_params(model, scale=0.3 if readout else 0.1)
    if readout is None:  # without what is the same of every text, and with positions that matter, many tokens follow
        same = {"bias": np.zeros_like, "scale": np.ones_like}
        params = jax.tree_util.tree_map_with_path(lambda path, x: same.get(path[-1].key, np.asarray)(x), params)
        params["positions_embed"]["embedding"] *= 4
    save_pretrained(folder, model, params, tokenizer)
    return folder


def imported(path: Path) -> ModuleType:
    """The module at a path; of a folder its predict.py."""
    path = path / "predict.py" if path.is_dir() else path
    spec = importlib.util.spec_from_file_location(f"exported_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def language_model(tokenizer, tmp_path_factory) -> tuple[Path, Path]:
    """A language model, and the folder that it was exported to."""
    folder = tmp_path_factory.mktemp("lm")
    export.run(random_model(folder / "model", tokenizer), folder / "exported")
    return folder / "model", folder / "exported"


@pytest.fixture(scope="module")
def exported_task(tokenizer, tmp_path_factory) -> Callable[[str], tuple[Path, Path]]:
    """A model of one of `TASKS`, and the folder that it was exported to."""

    @functools.cache
    def make(task: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("task")
        export.run(random_model(folder / "model", tokenizer, TASKS[task][0]), folder / "exported")
        return folder / "model", folder / "exported"

    return make


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=pytest.mark.slow) if task in SLOW else task for task in TASKS]
)
def test_a_task_is_predicted_as_by_the_package(task, exported_task):
    (readout, examples), (source, folder) = TASKS[task], exported_task(task)
    expected_labels, expected = predict(*load_pretrained(source), examples)
    exported = imported(folder).load()
    n_cut = sum(encode_examples(*load_pretrained(source)[::2], [example]).n_cut for example in examples)
    expected_warning = pytest.warns(UserWarning, match=f"1 of {len(examples)} .* {n_cut} tokens were left out")
    with expected_warning if n_cut else contextlib.nullcontext():
        labels, probabilities = exported(examples, batch_size=2)  # short and long ones, one and two to a batch
    assert probabilities.shape == expected.shape
    if readout.score_range:
        np.testing.assert_allclose(labels, expected_labels, rtol=0, atol=1e-5)  # up to 10
    else:
        assert labels == expected_labels
        np.testing.assert_allclose(probabilities, expected, **CLOSE)


def test_text_is_continued_as_by_generate(language_model):
    source, folder = language_model
    model, params, tokenizer = load_pretrained(source)
    exported, prompts = imported(folder).load(), ["a warm film", "", LONG]
    settings = {"max_new_tokens": 40, "temperature": 0.0}  # the window of 24 tokens moves
    expected = generate(model, params, tokenizer, prompts, **settings)
    n_unread = window_start(len(tokenizer.encode(LONG)), model.config.n_ctx, model.config.n_ctx // 2)
    with pytest.warns(UserWarning, match=f"1 of 3 prompts .* their first {n_unread} tokens were left out"):
        assert exported.generate(prompts, **settings) == expected
    assert exported.generate(["a warm film"], max_new_tokens=0) == ["a warm film"]
    ids, separator = [[5, 300, 7], [8], [9]], list(tokenizer.document_separator)
    free = generate_tokens(model, params, ids, stop_sequences=[separator], **settings)
    assert len({token for row in free for token in row}) > 10  # else little was shown
    assert exported.generate_ids(ids, stop=separator, **settings) == free
    stop = free[0][3:5]
    stopped = exported.generate_ids(ids, stop=stop, **settings)
    ends = [[n for n in range(len(row)) if row[n : n + 2] == stop] for row in free]
    assert stopped == [row[: min(found, default=None)] for row, found in zip(free, ends, strict=True)]
    assert stopped[0] == free[0][:3]


def test_drawn_tokens_come_from_the_likeliest_and_a_seed(language_model):
    exported, ids = imported(language_model[1]).load(), [[5, 300, 7]] * 4
    likeliest = exported.generate_ids(ids, max_new_tokens=8, temperature=0.0)
    assert exported.generate_ids(ids, max_new_tokens=8, temperature=2.0, top_k=1) == likeliest
    assert exported.generate_ids([]) == []
    with pytest.raises(ValueError, match="top_k=0 must be a whole number from 1 up"):
        exported.generate_ids(ids, top_k=0)
    for wrong in (3.5, -1):
        with pytest.raises(ValueError, match=f"max_new_tokens={wrong} must be a whole number from 0 up"):
            exported.generate_ids(ids, max_new_tokens=wrong)
    for wrong in ([380], [1.5]):
        with pytest.raises(ValueError, match="at least one of them, each an integer from 0 to 379"):
            exported.generate_ids([wrong])
    with pytest.raises(ValueError, match="seed=-1 must be a whole number from 0 up"):
        exported.generate_ids(ids, seed=-1)
    with pytest.raises(ValueError, match=r"prompts\[1\] is None, not a text"):
        exported.generate(["a film", None])
    with pytest.raises(ValueError, match="give a list of them"):
        exported.generate("a film")
    drawn = [exported.generate_ids(ids, max_new_tokens=8, temperature=2.0, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]  # each row has its own


def test_logits_are_the_model_s(language_model):
    source, folder = language_model
    model, params, tokenizer = load_pretrained(source)
    exported, ids = imported(folder).load(), tokenizer.encode(LONG)[:21]
    expected = np.asarray(jax.jit(model.apply)({"params": params}, np.asarray([ids])))[0]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(exported.logits(ids), expected, rtol=0, atol=1e-6 * scale)
    np.testing.assert_allclose(exported.next_logits([ids])[0], expected[-1], rtol=0, atol=1e-6 * scale)
    with pytest.raises(ValueError, match="1 to 24 of them, each an integer from 0 to 379, are allowed"):
        exported.logits(range(25))


def test_a_fine_tuned_model_also_gives_its_language_model(exported_task, tokenizer, tmp_path):
    done = export.run(exported_task("entailment")[0], tmp_path / "exported", head="lm", dtype="bfloat16")
    assert done.card["predicts"] == "next token"
    assert done.n_compared == (16 + 1) * tokenizer.vocab_size  # without special tokens, which are never drawn


def test_streams_are_those_of_the_package(language_model):
    made, special, rng = (
        imported(language_model[1] / "tokenizer" / "text.py").to_streams,
        SpecialTokens.after(100),
        np.random.default_rng(0),
    )
    for _ in range(300):
        for kind, names in exporter.FIELDS.items():
            fields = {name: rng.integers(0, 100, rng.integers(0, 15)).tolist() for name in names}
            if kind == "multiple_choice":
                fields["answers"] = [[1] * n for n in rng.integers(1, 8, rng.integers(2, 4))]
            for n_ctx in (8, 16, 24):
                try:
                    expected = [list(stream) for stream in to_streams(kind, fields, special=special, n_ctx=n_ctx)[0]]
                except InputError:
                    with pytest.raises(ValueError, match="what is never cut fills"):
                        made(kind, fields, dataclasses.asdict(special), n_ctx)
                else:
                    assert made(kind, fields, dataclasses.asdict(special), n_ctx) == expected


@pytest.mark.parametrize("variant", ["exact", "approximate"])
def test_the_original_tokenizer_gives_the_same_ids(variant, goldens, tmp_path):
    tokenizer = all_tokenizers.load(goldens, variant)
    card = exporter.save_tokenizer(tmp_path / "tokenizer", tokenizer)
    assert card["needs"] == {"exact": ["ftfy", "spacy"], "approximate": []}[variant]
    encode, decode = imported(tmp_path / "tokenizer" / "text.py").load()
    cases = json.loads((goldens / "tokenizer.json").read_text(encoding="utf-8"))["cases"]
    for text in [case["text"] for case in cases] + ["aaaa aaaaa", "", " \n\n ", LONG]:
        ids = tokenizer.encode(text)
        assert encode(text) == ids, text
        assert decode(ids) == tokenizer.decode(ids)


def test_long_text_has_the_ids_of_sentencepiece(tokenizer, language_model):
    exported = imported(language_model[1]).load()
    for text in (LONG * 40, "one\r\ntwo\n\nthree  four é 漢", "", " "):
        assert exported.encode(text) == tokenizer.encode(text)
        assert exported.decode(tokenizer.encode(text)) == tokenizer.decode(tokenizer.encode(text))


def test_one_artifact_for_every_platform_whose_parameters_are_beside_it(language_model):
    source, folder = language_model
    card = json.loads((folder / "model_card.json").read_text(encoding="utf-8"))
    params = programs.flatten(load_pretrained(source)[1])
    with np.load(folder / "params.npz") as file:
        assert set(file.files) == set(params)
        for name in file.files:
            np.testing.assert_array_equal(file[name], params[name])
    for program in card["programs"].values():
        data = (folder / program["file"]).read_bytes()
        assert jax.export.deserialize(bytearray(data)).platforms == ("cpu", "tpu", "cuda")
        assert len(data) < 60_000  # no table is in it, which alone has 50 kB
    assert card["programs"]["logits"]["arguments"] == {"tokens": "int32 [b, l]"}
    assert card["programs"]["decode"]["arguments"]["keys"] == "1 of float32 [b, 4, s, 8]"
    assert "gpt1_jax" not in (folder / "predict.py").read_text(encoding="utf-8").replace("`gpt1_jax.generate`", "")


def test_programs_that_compute_something_else_are_found(language_model):
    source, folder = language_model
    model, params, _ = load_pretrained(source)
    params["h_0"]["mlp"]["c_fc"]["bias"] += 1e-2
    with pytest.raises(RuntimeError, match="self-check: the exported programs differ"):
        exporter._compare(folder, model, params, programs.lm_programs(model))


def test_nothing_is_left_of_an_export_that_fails(language_model, tmp_path, monkeypatch):
    def fail(target, *arguments):
        (target / "params.npz").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "_write", fail)
    with pytest.raises(KeyboardInterrupt):
        export.run(language_model[0], tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_bad_input_is_refused_before_anything_is_written(language_model, tmp_path):
    source, folder = language_model
    with pytest.raises(InputError, match=r"head='task': .* is a language model without a task head"):
        export.run(source, tmp_path / "exported", head="task")
    with pytest.raises(InputError, match="head='tasks' is unknown; use one of"):
        export.run(source, tmp_path / "exported", head="tasks")
    with pytest.raises(InputError, match="is not a workdir"):
        export.run(tmp_path / "nothing", tmp_path / "exported")
    with pytest.raises(InputError, match="name a folder of this machine"):
        export.run(source, "gs://bucket/exported")
    assert not (tmp_path / "exported").exists()
    with pytest.raises(InputError, match="is there already, and is no empty folder"):
        export.run(source, folder)


def test_what_an_exported_task_refuses(exported_task, tmp_path):
    _, folder = exported_task("multiple choice")
    exported = imported(folder).load()
    good = {"context": "it is", "question": "what ?", "answers": ["a film", "a story"]}
    with pytest.raises(ValueError, match="a single example is given"):
        exported(good)
    with pytest.raises(ValueError, match="there are no examples"):
        exported([])
    for change, message in {
        "answers": (["a"], "1 answers; 2 to 3 are needed"),
        "answers ": (["a", "b", "c", "d"], "4 answers; 2 to 3 are needed"),
        "answers  ": ("a film", "answers is 'a film', not a list of texts"),
        "answers   ": (["a", ""], "has no tokens"),
        "question": (3, "question is 3, not a text"),
    }.items():
        with pytest.raises(ValueError, match=r"examples\[1\]: .*" + message[1]):
            exported([good, good | {change.strip(): message[0]}])
    with pytest.raises(ValueError, match="context and question are both empty"):
        exported([{"answers": ["a film", "a story"]}])
    with pytest.raises(ValueError, match="is no exported model"):
        imported(folder).load(tmp_path)


def test_text_asks_for_the_package_of_its_tokenizer(language_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ValueError, match="needs the package sentencepiece: pip install sentencepiece, or give ids"):
        imported(language_model[1]).load().encode("a film")


def test_a_model_without_a_tokenizer_takes_ids(tmp_path):
    model = random_model(
        tmp_path / "model", MissingTokenizer(380, "x"), ReadOut("classification", ("no", "yes")), n_layer=1
    )
    assert "none: it takes ids" in str(export.run(model, tmp_path / "exported"))
    exported = imported(tmp_path / "exported").load()
    assert exported.predict_ids([[[380, 5, 382]]]).shape == (1, 2)
    with pytest.raises(ValueError, match="each an integer from 0 to 382, are allowed"):
        exported.predict_ids([[[380, 5, 383]]])
    with pytest.raises(ValueError, match="batch_size=0 must be a whole number from 1 up"):
        exported.predict_ids([[[380, 5, 382]]], batch_size=0)
    with pytest.raises(ValueError, match="exported without a tokenizer; give ids"):
        exported(["a film"])
