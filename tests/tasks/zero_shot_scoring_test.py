"""Token ids of candidates, and their log-probabilities against one plain forward pass for each."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from gpt1_jax import GPT1, GPT1Config
from gpt1_jax.errors import InputError
from gpt1_jax.losses import LossConfig, next_token_nll
from gpt1_jax.sharding import MeshConfig, make_mesh, param_shardings
from gpt1_jax.tasks import zero_shot_scoring
from gpt1_jax.tasks.examples import Example
from gpt1_jax.tasks.zero_shot import make_heuristic
from gpt1_jax.tasks.zero_shot_scoring import ScoredTokens, encode_candidates, score_candidates

CONFIG = GPT1Config(vocab_size=50, n_ctx=40, n_embd=16, n_head=2, n_layer=2)
LABELS = ("negative", "positive")


@dataclasses.dataclass(frozen=True)
class Letters:
    """A tokenizer whose ids are letters: a=1 .. z=26; spaces are no tokens."""

    document_separator: tuple[int, ...] = (0,)
    vocab_size: int = 50

    def encode_batch(self, texts):
        return [[ord(c) - 96 for c in text if c != " "] for text in texts]


def ids(text):
    return tuple(Letters().encode_batch([text])[0])


def sentence(text, where="a.csv:2"):
    return Example("0", {"text": text}, where=where)


def make_model(**changes):
    model = GPT1(dataclasses.replace(CONFIG, **changes))
    params = model.init(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    return model, jax.tree.map(lambda x: 10 * x, params)  # far from uniform


@pytest.fixture(scope="module")
def pretrained_model():
    return make_model()


def random_candidates(n, seed=0, n_rows=50):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        length = int(rng.choice([2, 11, 16, 23, 40]))
        made.append(ScoredTokens(tuple(rng.integers(0, n_rows, length).tolist()), int(rng.integers(1, length))))
    return made


@functools.cache
def jitted(model):
    return jax.jit(lambda params, tokens: model.apply({"params": params}, tokens))


def by_hand(model, params, candidate):
    """The sum of log softmax at the scored tokens, from one unpadded row, in float64."""
    logits = np.asarray(jitted(model)(params, np.array([candidate.tokens])))[0].astype(np.float64)
    log_p = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log_p -= logits.max(-1, keepdims=True)
    first = len(candidate.tokens) - candidate.n_scored
    return sum(log_p[t - 1, candidate.tokens[t]] for t in range(first, len(candidate.tokens)))


def test_parts_are_encoded_by_themselves_after_a_document_separator():
    (group,) = encode_candidates([sentence("ab c")], make_heuristic("sst2"), LABELS, Letters(), 40)
    assert group == [
        ScoredTokens((0, *ids("abc"), *ids("very"), *ids("negative")), 8),
        ScoredTokens((0, *ids("abc"), *ids("very"), *ids("positive")), 8),
    ]
    (group,) = encode_candidates([sentence("abc")], make_heuristic("cola"), ("0", "1"), Letters(), 40)
    assert group == [ScoredTokens((0, *ids("abc")), 3)]


def test_without_a_separator_the_first_token_has_no_probability():
    (group,) = encode_candidates([sentence("abc")], make_heuristic("cola"), ("0", "1"), Letters(()), 40)
    assert group == [ScoredTokens(ids("abc"), 2)]
    (group,) = encode_candidates([sentence("abc")], make_heuristic("{text} {label}"), ("x", "yy"), Letters(()), 40)
    assert group == [ScoredTokens(ids("abcx"), 1), ScoredTokens(ids("abcyy"), 2)]
    with pytest.raises(InputError, match=r"^a.csv:2: what is scored, 'a', has 1 tokens"):
        encode_candidates([sentence("a")], make_heuristic("cola"), ("0", "1"), Letters(()), 40)


def test_what_is_too_long_loses_the_left_of_its_context(caplog):
    heuristic, labels = make_heuristic("{text} k {label}"), ("x", "yyy")
    examples = [sentence("abcdefg"), sentence("abc")]
    with caplog.at_level("WARNING", logger="absl"):
        first, second = encode_candidates(examples, heuristic, labels, Letters(), 9, "dev")
    # Both candidates lose what the longer one has to: 12 tokens for 9 places, the separator one of them.
    assert first == [ScoredTokens(ids("cdefgkx"), 1), ScoredTokens(ids("cdefgkyyy"), 3)]
    assert second[1] == ScoredTokens((0, *ids("abckyyy")), 3)
    assert "split dev: 1 of 2 examples were cut from the left to n_ctx=9, 2 tokens lost" in caplog.text
    assert encode_candidates(examples[1:], heuristic, labels, Letters(), 8)[0] == second  # fits exactly
    caplog.clear()
    first, _ = encode_candidates(examples, heuristic, labels, Letters(), 11)
    assert first[1] == ScoredTokens(ids("abcdefgkyyy"), 3)
    assert not caplog.records  # no text is lost with the separator


def test_what_decides_is_never_cut():
    choice = make_heuristic("race")
    example = Example("0", {"context": "abc", "question": "defg", "answers": ("h", "ijk")}, where="r.jsonl:7")
    (group,) = encode_candidates([example], choice, (), Letters(), 8)
    assert group == [ScoredTokens(ids("cdefgh"), 1), ScoredTokens(ids("cdefgijk"), 3)]
    with pytest.raises(InputError, match=r"^r.jsonl:7: .*4 tokens that are kept with it fill n_ctx=7"):
        encode_candidates([example], choice, (), Letters(), 7)
    with pytest.raises(InputError, match=r"^a.csv:2: what is scored, 'abcdef' \(6 tokens\).*fill n_ctx=6"):
        encode_candidates([sentence("abcdef")], make_heuristic("cola"), ("0", "1"), Letters(), 6)


def test_what_cannot_be_encoded():
    with pytest.raises(InputError, match="split 'dev': no examples"):
        encode_candidates([], make_heuristic("cola"), ("0", "1"), Letters(), 40, "dev")
    unmarked = Example("0", {"context": "it fell", "question": "", "answers": ("a", "b")}, where="w.jsonl:3")
    with pytest.raises(InputError, match=r"^w.jsonl:3: 0 pronouns are marked"):
        encode_candidates([unmarked], make_heuristic("winograd"), (), Letters(), 40)


def test_log_probabilities_are_those_of_one_plain_forward_pass(pretrained_model):
    candidates = random_candidates(30)
    totals = score_candidates(*pretrained_model, candidates, batch_size=8)
    expected = [by_hand(*pretrained_model, candidate) for candidate in candidates]
    assert np.std(expected) > 10
    np.testing.assert_allclose(totals, expected, rtol=2e-5)


def test_special_rows_of_a_fine_tuned_model_take_part_in_its_softmax():
    model, params = make_model(n_special=3)
    candidates = random_candidates(5, n_rows=53)
    expected = [by_hand(model, params, candidate) for candidate in candidates]
    np.testing.assert_allclose(score_candidates(model, params, candidates, batch_size=5), expected, rtol=2e-5)


@pytest.mark.parametrize(
    "settings", [{"buckets": (40,)}, {"batch_size": 1}, {"batch_size": 64}, {"loss": LossConfig(chunk=3)}]
)
def test_batches_padding_and_chunks_change_nothing(pretrained_model, settings):
    candidates = random_candidates(12)
    expected = score_candidates(*pretrained_model, candidates, batch_size=4, buckets=(16, 40))
    totals = score_candidates(*pretrained_model, candidates, **({"buckets": (16, 40), "batch_size": 4} | settings))
    np.testing.assert_allclose(totals, expected, rtol=2e-5)


def test_only_what_is_scored_meets_the_vocabulary(monkeypatch):
    model, params = make_model(n_layer=1)  # a model of its own: nothing of it is compiled yet
    shapes = []

    def nll(h, *arguments, **options):
        shapes.append(h.shape)
        return next_token_nll(h, *arguments, **options)

    monkeypatch.setattr(zero_shot_scoring, "next_token_nll", nll)
    rng = np.random.default_rng(0)
    lengths = {40: (1, 3), 9: (2, 8)}  # of candidates, and how much of them is scored
    candidates = [ScoredTokens(tuple(rng.integers(0, 50, n).tolist()), k) for n, ks in lengths.items() for k in ks]
    totals = score_candidates(model, params, candidates, batch_size=2)
    assert sorted(shapes) == [(2, 3 + 1, 16), (2, 8 + 1, 16)]
    np.testing.assert_allclose(totals, [by_hand(model, params, one) for one in candidates], rtol=2e-5)


def test_the_order_of_the_candidates_changes_no_bit(pretrained_model):
    candidates = random_candidates(21) + random_candidates(4, seed=1)
    totals = score_candidates(*pretrained_model, candidates, batch_size=4)
    order = np.random.default_rng(2).permutation(len(candidates))
    again = score_candidates(*pretrained_model, [candidates[i] for i in order], batch_size=4)
    np.testing.assert_array_equal(again, totals[order])


def test_any_mesh_gives_the_same(pretrained_model, devices):
    model, params = pretrained_model
    candidates = random_candidates(11)
    expected = score_candidates(model, params, candidates, batch_size=8)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), devices=devices)
    params = jax.device_put(params, param_shardings(model, mesh))
    np.testing.assert_allclose(
        score_candidates(model, params, candidates, batch_size=8, mesh=mesh), expected, rtol=2e-5
    )
    with pytest.raises(InputError, match="batch_size=6"):
        score_candidates(model, params, candidates, batch_size=6, mesh=mesh)


def test_candidates_that_do_not_fit_the_model(pretrained_model):
    good = ScoredTokens((1, 2, 3), 2)
    for bad, message in [
        (ScoredTokens((1, 2, 3), 3), r"candidates\[1\] has 3 tokens and n_scored=3"),
        (ScoredTokens((1, 2, 3), 0), r"candidates\[1\] has 3 tokens and n_scored=0"),
        (ScoredTokens((1,) * 41, 1), r"candidates\[1\] has 41 tokens"),
        (ScoredTokens((1, 50), 1), r"candidates\[1\] has ids from 1 to 50; the model's are from 0 to 49"),
    ]:
        with pytest.raises(InputError, match=message):
            score_candidates(*pretrained_model, [good, bad])
    with pytest.raises(InputError, match="candidates is empty"):
        score_candidates(*pretrained_model, [])
    with pytest.raises(InputError, match="has 3 tokens; add a bucket"):
        score_candidates(*pretrained_model, [good], buckets=(2,))
    model, params = pretrained_model
    spoilt = jax.tree.map(lambda x: x * np.nan, params)
    with pytest.raises(InputError, match="1 of 1 log-probabilities are not finite"):
        score_candidates(model, spoilt, [good])
