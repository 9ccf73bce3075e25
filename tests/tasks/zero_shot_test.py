"""Heuristics in words: what is scored, what it is conditioned on, and which templates and data are refused."""

import pytest

from gpt1_jax.errors import InputError
from gpt1_jax.tasks.examples import make_examples
from gpt1_jax.tasks.spec import FIELDS
from gpt1_jax.tasks.zero_shot import ZERO_SHOT, make_heuristic, prompt


def candidates(heuristic, value, labels=()):
    """The candidates of one example, without the spaces around their parts."""
    heuristic = make_heuristic(heuristic) if isinstance(heuristic, str) else heuristic
    (example,) = make_examples(heuristic.kind, [value])
    return [tuple(part.strip() for part in candidate) for candidate in heuristic.candidates(example, labels)]


def test_cola_scores_the_whole_sentence():
    assert candidates("cola", "the cat sat", ("0", "1")) == [("", "", "the cat sat")]
    assert ZERO_SHOT["cola"].by_threshold
    assert ZERO_SHOT["cola"].metrics == ("matthews",)


@pytest.mark.parametrize("labels", [("negative", "positive"), ("0", "1")])
def test_sst2_appends_very_and_compares_two_words(labels):
    assert candidates("sst2", "a moving film ", labels) == [
        ("a moving film", "very", "negative"),
        ("a moving film", "very", "positive"),
    ]
    assert ZERO_SHOT["sst2"].score == "total"


def test_sst2_takes_other_label_names_with_their_words():
    words = {"pos": "positive", "neg": "negative"}
    heuristic = make_heuristic("sst2", words)
    assert (heuristic.name, heuristic.score, heuristic.labels) == ("sst2", "total", ("pos", "neg"))
    assert [scored for _, _, scored in candidates(heuristic, "dull", ("neg", "pos"))] == ["negative", "positive"]
    with pytest.raises(
        InputError, match=r"label_words: none for the label 'neutral'; there are words for 'pos', 'neg'"
    ):
        heuristic.check_labels(("neg", "neutral"))


@pytest.mark.parametrize("name", ["race", "multiple_choice"])
def test_choices_are_scored_given_document_and_question(name):
    value = {"context": "He ran home.", "question": "Where?", "answers": ["home", "to school", "off"]}
    assert candidates(name, value) == [("He ran home.", "Where?", answer) for answer in value["answers"]]
    assert candidates(name, value | {"context": ""})[0] == ("", "Where?", "home")
    assert candidates(name, value | {"question": ""})[1] == ("He ran home.", "", "to school")


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("The cup fell because [it] slipped .", "The cup fell because", "slipped ."),
        ("The cup fell because _ slipped .", "The cup fell because", "slipped ."),
        ("[It]'s in a snake_case __file__ .", "", "'s in a snake_case __file__ ."),
    ],
)
def test_winograd_scores_what_follows_the_referent(text, before, after):
    value = {"context": text.replace("__file__", "file"), "question": "", "answers": ["the cup", "the tray"]}
    expected = [(before, option, after.replace("__file__", "file")) for option in value["answers"]]
    assert candidates("winograd", value) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("The cup fell because it slipped", "0 pronouns are marked"),
        ("[He] said _ slipped", "2 pronouns are marked"),
        ("The cup fell because of [it] ", "nothing follows the pronoun"),
    ],
)
def test_winograd_data_that_do_not_say_what_is_compared(text, message):
    with pytest.raises(InputError, match=message):
        candidates("winograd", {"context": text, "question": "", "answers": ["a", "b"]})


@pytest.mark.parametrize(
    ("template", "value", "expected"),
    [
        ("{text} It was {label}", {"text": "Dull"}, ("Dull", "It was", "bad")),
        # What follows the label depends on it and is scored with it.
        ("Review: {text}, in a word: {label} .", {"text": "Dull"}, ("Review: Dull,", "in a word:", "bad .")),
        ("A {label} film: {text}", {"text": "Dull"}, ("A", "", "bad film: Dull")),
        # Only the first field may be cut.
        (
            "{premise} ? {hypothesis} {label}",
            {"premise": "It rained.", "hypothesis": "It was wet."},
            ("It rained.", "? It was wet.", "bad"),
        ),
        ("{text_a} = {text_b} ? {label}", {"text_a": "a", "text_b": "b"}, ("a", "= b ?", "bad")),
        ("{{{text}}} {label}", {"text": "x {label} y"}, ("{x {label} y}", "", "bad")),
        ("{text}\nA: {label}", {"text": "x"}, ("x", "A:", "bad")),
    ],
)
def test_templates(template, value, expected):
    heuristic = prompt(template, {"0": "bad", "1": "really good"})
    assert set(value) == set(FIELDS[heuristic.kind])
    bad, good = candidates(heuristic, value, ("0", "1"))
    assert bad == expected
    assert good == (*expected[:2], expected[2].replace("bad", "really good"))


def test_a_line_end_before_the_label_is_kept():
    (example,) = make_examples("classification", ["x"])
    assert prompt("{text}\nA: {label}").candidates(example, ["yes"])[0].kept == "\nA: "


def test_a_template_for_answers():
    heuristic = prompt("{context} Q: {question} A: {answer}", score="total")
    value = {"context": "c", "question": "q", "answers": ["x", "y"]}
    assert candidates(heuristic, value) == [("c", "Q: q A:", "x"), ("c", "Q: q A:", "y")]


def test_without_words_the_label_names_stand_for_themselves():
    assert [scored for _, _, scored in candidates("{text} {label}", "x", ("good", "bad"))] == ["good", "bad"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{text} It was good", "needs the last field"),
        ("It was {label}", "has {label}; it needs"),
        ("{text} {label} {label}", "needs the last field"),
        ("{text} {hypothesis} {label}", "has {text}, {hypothesis}, {label}; it needs"),
        ("{review} {label}", "has {review}, {label}; it needs"),
        ("{context} {label}", "has {context}, {label}; it needs"),
        ("{text!r} {label}", "it needs"),
        ("{text} {label", "a brace that is meant as such is written twice"),
    ],
)
def test_templates_that_cannot_be_used(template, message):
    with pytest.raises(InputError, match=message.replace("{", r"\{")):
        make_heuristic(template)


def test_names_words_and_scores_that_cannot_be_used():
    with pytest.raises(InputError, match=r"zero_shot='sst' is unknown; use one of 'cola', 'sst2'.*did you mean 'sst2'"):
        make_heuristic("sst")
    with pytest.raises(InputError, match="zero_shot='cola' has no words for labels"):
        make_heuristic("cola", {"0": "bad"})
    with pytest.raises(InputError, match=r"label_words\['0'\] is empty"):
        prompt("{text} {label}", {"0": " "})
    with pytest.raises(InputError, match="the answers stand for themselves"):
        prompt("{context} {answer}", {"0": "bad"})
    with pytest.raises(InputError, match="score='sum' is unknown"):
        make_heuristic("race", score="sum")
    with pytest.raises(InputError, match="tells two labels apart"):
        ZERO_SHOT["cola"].check_labels(("a", "b", "c"))
    with pytest.raises(InputError, match="at least two names are needed"):
        prompt("{text} {label}").check_labels(())
