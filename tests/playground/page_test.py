"""The page in a browser, as somebody uses it, and what else reaches its address."""

import dataclasses
import html
import re
import shutil
import threading
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from gpt1_jax import generate, predict
from gpt1_jax.playground.address import address_of, listen
from gpt1_jax.playground.markup import visible
from gpt1_jax.playground.models import Loaded, load

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
expect.set_options(timeout=120_000)  # what is asked for first is compiled
ODD = ("<img src=x onerror=alert(1)>", "${7*7} {{7*7}} &amp;", "\x00 😀 שלום\n")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def models(language_model, reviews, tasks) -> dict[str, Loaded]:
    """A language model, a classifier, multiple choice and scores."""
    (classifier,) = load([str(reviews)])
    scores = tasks("similarity", score_range=(0, 5), score_points=6)
    named = [
        language_model,
        dataclasses.replace(classifier, name="reviews"),
        tasks("multiple_choice", ("A", "B", "C", "D")),
        dataclasses.replace(scores, name="scores"),
    ]
    return {loaded.name: loaded for loaded in named}


@pytest.fixture(scope="module")
def address(models) -> Iterator[str]:
    from gpt1_jax.playground.page import build  # Gradio takes seconds, also where these tests are only counted
    from gpt1_jax.playground.server import serving

    with listen("127.0.0.1", 0) as listening, serving(build(list(models.values())), listening):
        yield address_of(listening)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, address) -> Iterator[Callable[..., Page]]:
    """Opens the page in a window of its own; at the end nothing was asked of others, and no console has a complaint."""
    problems, contexts = [], []

    def open_page(size: str = "desktop") -> Page:
        width, height = SIZES[size]
        contexts.append(browser.new_context(viewport={"width": width, "height": height}))
        page = contexts[-1].new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        ours = (address, "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(ours) else problems.append(r.url))
        page.goto(address)
        page.wait_for_selector("#prompt textarea")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def choose(page: Page, picker: str, name: str) -> None:
    page.click(f"#{picker} input")
    page.get_by_role("option", name=name, exact=True).click()


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def continued(page: Page, prompt: str, seed: int) -> str:
    """The text, after a click."""
    page.fill("#prompt textarea", prompt)
    page.get_by_label("Seed").fill(str(seed))
    page.click("#generate")
    expect(page.locator("#continuation .gpt-note").last).to_contain_text(f"seed {seed}")
    return page.locator("#continuation .gpt-text").get_attribute("data-text")


def of_generate(loaded: Loaded, prompt: str, seed: int) -> str:
    """What `generate` says, as far as HTML can hold it."""
    text = generate(loaded.model, loaded.params, loaded.tokenizer, prompt, seed=seed)
    return text.replace("\x00", "\ufffd").replace("\r", "\n")


def test_generate_and_what_else_might_have_come(visit, models):
    page = visit()
    page.get_by_role("button", name="More").click()
    for seed, prompt in enumerate(ODD):
        assert continued(page, prompt, seed) == of_generate(models["books"], prompt, seed)
        shown = page.locator("#continuation .gpt-text")
        assert shown.locator("img").count() == 0
        old = shown.locator(".gpt-old").evaluate_all("tokens => tokens.map(token => token.firstChild.data).join('')")
        assert prompt.strip("\x00\n ") in old.replace("\ufffd", "")  # which bytes of a character are shown as
    token = shown.locator(".gpt-token:not(.gpt-old)").nth(2)
    token.focus()
    expect(token.locator(".gpt-more")).to_be_visible()
    expect(shown.locator(".gpt-more:visible")).to_have_count(1)
    rows = token.locator(".gpt-bar > span").all_inner_texts()
    probabilities = [float(row.rstrip("%")) for row in rows]
    assert len(rows) in (8, 9)
    assert probabilities == sorted(probabilities, reverse=True)
    assert token.locator(".gpt-own").count() == 1
    told = re.match(r"“(.+)”: ([\d.]+)%, number [\d,]+ of all", token.get_attribute("aria-label"), re.S)
    assert float(told[2]) == pytest.approx(float(token.locator(".gpt-own > span").inner_text().rstrip("%")), abs=0.06)


def test_classify(visit, models):
    page = visit()
    choose(page, "model", "reviews")
    tab(page, "Classify")
    loaded, text = models["reviews"], "a wonderful film , lovely cast ."
    page.get_by_role("textbox", name="review").fill(text)
    page.locator("button.classify:visible").click()
    shown = page.locator(".answer:visible")
    labels, probabilities = predict(loaded.model, loaded.params, loaded.tokenizer, [text])
    expect(shown).to_contain_text(f"{100 * probabilities.max():.0f}%")
    expect(shown.get_by_test_id("label-output-value")).to_have_text(labels[0])

    choose(page, "model", "multiple_choice")
    for answers in (["<i>it</i>", "a film"], ["it", "a film", "the cast"]):
        page.get_by_label("context").fill("a film")
        page.get_by_label("answers").fill("\n".join(answers))
        page.locator("button.classify:visible").click()
        shown = page.locator(".answer:visible")
        for name, answer in zip("ABC", answers, strict=False):
            expect(shown).to_contain_text(f"{name}: {answer}")
        expect(shown.locator("dd, .confidence")).to_have_count(len(answers))

    choose(page, "model", "scores")
    for field in ("text_a", "text_b"):
        page.get_by_label(field).fill("a warm film")
    page.locator("button.classify:visible").click()
    example = {"text_a": "a warm film", "text_b": "a warm film"}
    loaded = models["scores"]
    (score,), _ = predict(loaded.model, loaded.params, loaded.tokenizer, [example])
    expect(page.locator(".answer:visible")).to_contain_text(f"{score:.2f}")
    expect(page.locator(".prose.note:visible")).to_have_text("Scores go from 0 to 5.")

    choose(page, "model", "books")
    expect(page.get_by_text("--init_from=books").first).to_be_visible()


def test_attention(visit):
    page = visit()
    choose(page, "model", "scores")  # the others attend to all tokens alike, after ten updates
    tab(page, "Attention")
    page.fill("#attended textarea", "a warm <b> film שלום")
    page.click("#attend")
    labels = page.locator("#map svg > text")
    expect(labels.first).to_be_visible()
    assert "".join(labels.all_text_contents()[::2]).replace("␣", "").startswith("awarm<b>film")
    picture = page.locator("#map image")
    mean = picture.get_attribute("href")
    choose(page, "head", "2")
    expect(picture).not_to_have_attribute("href", mean)
    one = picture.get_attribute("href")
    choose(page, "layer", "2 (top)")
    expect(picture).not_to_have_attribute("href", one)


def test_what_cannot_be_done_is_said(visit):
    page = visit()
    choose(page, "model", "reviews")
    tab(page, "Classify")
    page.locator("button.classify:visible").click()
    expect(page.get_by_text("review is empty; fill it in").first).to_be_visible()
    tab(page, "Attention")
    page.click("#attend")
    expect(page.get_by_text("the text is empty; give at least one word").first).to_be_visible()
    choose(page, "model", "books")
    tab(page, "Generate")
    page.get_by_role("button", name="More").click()
    page.get_by_label("Seed").fill("<b>")
    page.click("#generate")
    expect(page.get_by_text("seed='<b>' must be a whole number").first).to_be_visible()
    page.get_by_label("Seed").fill("")
    page.get_by_label("Top k").fill("0")
    page.click("#generate")
    expect(page.get_by_text("top_k=0 must be an integer from 1 up").first).to_be_visible()
    page.get_by_label("Top k").fill("5")
    page.fill("#prompt textarea", "a warm film , " * 40)
    page.click("#generate")
    expect(page.get_by_text("the prompt is longer than the model reads: its first").first).to_be_visible()


def test_two_at_once(visit, models):
    pages = [visit() for _ in range(2)]
    for page, (prompt, seed) in zip(pages, (("a film", 1), ("the story", 2)), strict=True):
        page.fill("#prompt textarea", prompt)
        page.get_by_role("button", name="More").click()
        page.get_by_label("Seed").fill(str(seed))
    for page in pages:
        page.click("#generate", no_wait_after=True)
    for page, (prompt, seed) in zip(pages, (("a film", 1), ("the story", 2)), strict=True):
        expect(page.locator("#continuation .gpt-note").last).to_contain_text(f"seed {seed}")
        text = page.locator("#continuation .gpt-text").get_attribute("data-text")
        assert text == of_generate(models["books"], prompt, seed)


def test_a_phone_shows_all_of_it(visit):
    page = visit("phone")
    for name in ("Generate", "Classify", "Attention"):
        tab(page, name)
        if name == "Attention":
            page.fill("#attended textarea", "a warm film and a story")
            page.click("#attend")
            expect(page.locator("#map svg")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES["phone"][0]


def test_many_programs_at_once(address, models):
    """Each gets what it asked for, and one that asks for what cannot be done keeps nobody from it."""
    from gradio_client import Client

    client = Client(address, verbose=False)
    texts, problems = {}, []

    def ask(seed: int) -> None:
        try:
            top_k = "0" if seed % 3 == 0 else ""
            answer = client.predict("books", "a film", 10, 1.0, top_k, 1.0, str(seed), api_name="/generate")
            texts[seed] = html.unescape(re.search('data-text="(.*?)"', answer, re.S)[1])
        except Exception as error:
            problems.append(str(error))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded = models["books"]
    expected = {
        seed: generate(loaded.model, loaded.params, loaded.tokenizer, "a film", max_new_tokens=10, seed=seed)
        for seed in (1, 2, 4, 5)
    }
    assert texts == expected
    assert len(problems) == 2
    assert all("top_k=0 must be an integer from 1 up" in problem for problem in problems)


def test_a_program_may_leave_boxes_empty_and_reads_its_errors_as_text(address, models):
    from gradio_client import Client
    from gradio_client.exceptions import AppError

    client, loaded = Client(address, verbose=False), models["books"]
    answer = client.predict("books", "a film", 0, 1.0, None, 1.0, None, api_name="/generate")
    assert re.search('data-text="(.*?)"', answer, re.S)[1] == generate(
        loaded.model, loaded.params, loaded.tokenizer, "a film", max_new_tokens=0
    )
    for arguments, message in (
        (("books", "a film", 10, 1.0, "two", 1.0, ""), "top_k='two' must be a whole number"),
        (("books", None, 10, 1.0, "", 1.0, ""), "prompt: a text is expected, got None"),
    ):
        with pytest.raises(AppError, match=re.escape(message)):
            client.predict(*arguments, api_name="/generate")
    for layer, head, name in ((None, -1, "layer"), (0, None, "head")):
        with pytest.raises(AppError, match=f"{name}=None must be a whole number"):
            client.predict("books", "a film", layer, head, api_name="/attention")


def test_control_characters_are_seen():
    assert visible("a\n\x00\u202eb\u200d😀") == "a↵\\u0000\\u202eb\u200d😀"
