"""Pre-training on a folder of launch/prepare.py."""

import json

import pytest

from gpt1_jax import InputError, evaluate, pretrain
from gpt1_jax.data.corpus import make_tokenizer
from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.split import Split
from gpt1_jax.metrics import read_metrics


def prepare(source, folder, split, **settings):
    tokenizer = make_tokenizer(folder, source, split, vocab_size=settings.pop("vocab_size", 380))
    prepare_shards(source, tokenizer, folder, split=split, **settings)
    return folder


@pytest.fixture(scope="module")
def shards(corpus, tmp_path_factory):
    """What the run `pretrained` has made for itself, prepared in three parts."""
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    return prepare(f"jsonl:{corpus}/corpus.jsonl#text", folder, Split(0.1), parts=3, shard_bytes=5000)


@pytest.fixture(scope="module")
def texts():
    """Another corpus."""
    return [
        f"text number {i * i} of another corpus, {i % 7} words: {i * 'again ' if i < 40 else i}" for i in range(200)
    ]


@pytest.fixture
def config(pretrain_settings):
    def make(folder, **changes):
        settings = pretrain_settings(shards=str(folder))
        settings["source"] = ""
        del settings["heldout_fraction"], settings["model"]["vocab_size"]
        return settings | changes | {"model": settings["model"] | changes.get("model", {})}

    return make


def test_it_is_the_run_that_prepares_for_itself(config, texts, shards, pretrained, tmp_path):
    """The same losses, bit for bit; and the run goes on when the folder has moved, but not with another one there."""
    workdir = tmp_path / "run"
    result = pretrain.run(config(shards), workdir)
    assert not (workdir / "shards").exists()
    for name in ("loss", "heldout_loss"):
        curve, other = ([(m["step"], m[name]) for m in read_metrics(run) if name in m] for run in (workdir, pretrained))
        assert curve == other
        assert len(curve) == (10 if name == "loss" else 2)
    recorded = json.loads((workdir / "config.json").read_text(encoding="utf-8"))["config"]
    assert recorded["heldout_fraction"] == 0.1
    assert recorded["model"]["vocab_size"] == 380
    found = evaluate.run(workdir, {"batch_size": 8})
    assert found["perplexity"] == pytest.approx(result.metrics["heldout_perplexity"], rel=1e-5)

    moved = tmp_path / "moved"
    moved.symlink_to(shards)
    pretrain.run(config(moved), workdir)
    other = prepare(texts, tmp_path / "other", Split(0.1))
    with pytest.raises(InputError, match=r"corpus is .* there"):
        pretrain.run(config(other), workdir)
    with pytest.raises(InputError, match=r"corpus is .* there, absent here"):
        pretrain.run(config(shards, heldout_fraction=0.1, shards=None, source="text:*"), workdir)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "text:a.txt"}, r"config.source='text:a.txt' contradicts config.shards="),
        ({"tokenizer": {"path": "x"}}, r"config.tokenizer.path='x' contradicts config.shards="),
        ({"heldout_fraction": 0.2}, r"config.heldout_fraction=0.2 contradicts .* give --config.heldout_fraction=0.1"),
        ({"model": {"vocab_size": 400}}, r"the tokenizer has 380 tokens and the model vocab_size=400"),
        ({"shards": "/nowhere"}, r"'/nowhere': holds no token shards"),
    ],
)
def test_contradictions_are_named(config, shards, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        pretrain.run(config(shards, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_to_go_on_with_needs_text_of_its_tokenizer(config, texts, pretrained, tmp_path):
    settings = config(prepare(texts, tmp_path / "other", Split(0.1)))
    with pytest.raises(InputError, match="made with another tokenizer than that of init_from"):
        pretrain.run(settings | {"model": {}}, tmp_path / "run", pretrained)
