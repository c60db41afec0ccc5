"""The report as a page and on a terminal: every number is there, and no text of a model acts on either."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ratchet.cli.inspect_commands import print_report
from ratchet.run.display import visible, whole
from ratchet.run.report_card import ProbeResult, Probes
from ratchet.service.reports.report_page import page

from ...cards import card, made, worth

HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7 * 7 }} {% raw %} [red]x[/red] [/] [link=x]y[/link] "
    "\x1b[31mred\x07 \u202eabc &lt; \" ' ]]> <!-- :smile: \x00"
)


class Reader(HTMLParser):
    """Collects elements, attributes and the text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open, self.texts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "path", "use", "image"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def words_of(shown):
    return " ".join(" ".join(read(page(shown)).texts).split())


def hostile(text):
    """Return a card that has a text wherever a model, a row or a user may put one."""
    return card(
        worth_reading=[worth(text, prompt=text, ground_truth=text, parts={text: 0.5})],
        parts={text: 0.25},
        made_with=made(
            model_name=text,
            prompt={"system_prompt": text, "worked_examples": []},
            verifier={"kind": "custom", "source": text},
        ),
    )


PLAIN = set(read(page(card())).tags)


@settings(max_examples=8, deadline=None)
@given(st.text(min_size=100, max_size=1000).map(whole))
def test_no_text_breaks_out_of_the_page(text):
    check(text)


def test_no_markup_of_an_answer_becomes_the_pages_own():
    check(HOSTILE)


def check(text):
    reader = read(page(hostile(text)))
    assert set(reader.tags) == PLAIN
    assert "script" not in reader.tags
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    shown = visible(text)
    assert shown.replace("\r", "") in "".join(reader.texts) or not shown.strip()


def test_a_page_needs_nothing_from_elsewhere():
    text = page(card())
    links = [value for name, value in read(text).attributes if name in ("src", "href", "xlink:href", "action")]
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"url\((?!#)|@import|http-equiv=.refresh", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def test_a_page_shows_every_number_and_what_it_means():
    text = words_of(card(refusal="All scored alike."))
    for part in (
        "A run cannot start. All scored alike.", "Look at this.", "37.5% right, of 8 answers", "50.0% prompts with a signal (1 of 2)",
        "12.5% unparseable, above 3.0%", "0.0% cut off", "50.0% false positives, of adversarial answers that must fail", "0.0% false negatives", "scores more than 0.5 passes.", "the prompt repeated 1 of 2 0",
        "the longest 9 of 32", "1 answer worth reading", "highest score prompt 7 reward 1.00 accuracy_strict 1.00 3 tokens",
        "(3 + 4) * (2 + 6)", "Reference: 56", "temperature 1, top-p 1, top-k off",
    ):  # fmt: skip
        assert part in text, part


def test_where_no_right_answer_is_known_no_rate_is_made_up():
    nothing = card(probes=Probes(prompts=2, results=[], left_out={"the right answer": "the ground truth is empty"}))
    text = words_of(nothing)
    assert "none tried false negatives" in text
    assert "Not tried: the right answer (the ground truth is empty)." in text


def test_the_same_card_is_the_same_page():
    assert page(card()) == page(card())


def printed(shown, width=200, **options):
    console = Console(width=width, highlight=False, emoji=False, soft_wrap=True, record=False, **options)
    with console.capture() as captured:
        print_report(console, shown)
    return captured.get()


def test_a_terminal_shows_the_same_numbers():
    text = printed(card(refusal="All scored alike.", was_extended=True))
    for part in (
        "Right            37.5% of 8 answers (64 had the same score, so 192 more were sampled): 3 right, 4 wrong", "1 of 2 prompts",
        "Unparseable      12.5%  above 3%", "False positives  50.0% of adversarial answers that must fail",
        "False negatives  0.0% of adversarial answers that must pass", "An answer passes if its score is above 0.5.", "the prompt repeated", "1 of 2",
        "[0.9, 1.0] ████████████████████████ 3", "[0.0, 0.1) ████████████████████████████████████████ 5",
        "The run is refused. All scored alike.", "Note: Look at this.",
    ):  # fmt: skip
        assert part in text, part


def test_credit_for_parts_of_an_answer_is_no_share_of_right_ones():
    shown = card(partly=2, wrong=2)
    text = printed(shown)
    assert "Score            37.5% on average over 8 answers: 3 right, 2 partly right, 2 wrong" in text
    assert "37.5% mean score, of 8 answers" in words_of(shown)
    partly = card(worth_reading=[worth(correctness=0.5, reward=0.5)])
    assert 'class="partly">reward 0.50' in page(partly)


@pytest.mark.parametrize(
    ("verifier", "named"),
    [
        ({"kind": "classification", "labels": ["a", "b"]}, "classification"),
        ({"kind": "qa", "metric": "token_f1"}, "qa (token_f1)"),
        ({"kind": "custom", "metric": "closeness", "version": 2, "source": "x"}, "custom (closeness@2)"),
        ({"kind": "custom", "metric": "", "version": None}, "custom"),
        (
            {"kind": "composite", "parts": [{"verifier": {"kind": "qa"}}, {"verifier": {"kind": "math"}}]},
            "composite (qa, math)",
        ),
    ],
)
def test_what_scored_the_answers_is_named_with_its_metric(verifier, named):
    shown = card(made_with=made(verifier=verifier, source="dataset sums@3"))
    assert f"tiny on dataset sums@3, verifier {named}\n" in printed(shown)
    assert f"tiny on dataset sums@3, verifier {named}. Created" in words_of(shown)


def test_an_ungraded_answer_says_once_what_became_of_it_and_lists_no_zeros():
    parts = {"schema_valid": 0.0, "json_exact_match": 0.0}
    cut = worth(why="longest", outcome="cut_off", correctness=0.0, reward=0.0, parts=parts)
    unread = worth(why="unparseable", outcome="unparseable", correctness=0.0, reward=0.0, parts=parts)
    failed = worth(why="failed", outcome="failed", failure="time", correctness=0.0, reward=0.0, parts=parts)
    text = printed(card(worth_reading=[cut, unread, failed]))
    assert "longest  prompt 7  reward 0.00  cut off  3 tokens" in text
    assert "unparseable  prompt 7  reward 0.00  3 tokens" in text
    assert "failed  prompt 7  reward 0.00  time  3 tokens" in text
    assert "schema_valid" not in page(card(worth_reading=[cut, unread, failed]))


def test_on_a_narrow_terminal_lines_break_between_words_and_texts_stay_beside_their_labels():
    parts = {"schema_valid": 1.0, "field_accuracy": 0.5, "json_exact_match": 0.0}
    answer = "def add(a, b):\n    return a + b\n\n" + "print(add(1, 2)) " * 8
    shown = card(
        worth_reading=[worth(answer, parts=parts, ground_truth="")], advice=["Ask for the answer's place. " * 6]
    )
    text = printed(shown, width=80)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "schema_valid 1.00 field_accuracy 0.50 json_exact_match 0.00 3 tokens" in " ".join(text.split())
    start = lines.index("  Answer    def add(a, b):")
    assert lines[start + 1] == " " * 12 + "    return a + b"
    assert lines[start + 3 : start + 5] == [" " * 12 + " ".join(["print(add(1, 2))"] * 4)] * 2
    assert lines[start + 5] == "  Reference (empty)"


def test_the_source_of_a_metric_stands_by_itself_on_the_page():
    source = "def score(answer, reference):\n    return 1.0"
    text = page(card(made_with=made(verifier={"kind": "custom", "metric": "m", "version": 1, "source": source})))
    assert f"<pre>{source}</pre>" in text
    assert text.count("def score") == 1
    assert "kind: custom\nmetric: m\nversion: 1</td>" in text


@settings(max_examples=12, deadline=None)
@given(st.text(min_size=100, max_size=1000).map(whole))
def test_no_text_acts_on_a_terminal(text):
    check_printed(text)


def test_no_markup_of_an_answer_becomes_the_terminals_own():
    check_printed(HOSTILE)


def check_printed(text):
    shown = printed(hostile(text), force_terminal=True, color_system="standard")
    usual = printed(card(), force_terminal=True, color_system="standard")
    escapes = re.compile(r"\x1b\[[0-9;]*m")
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f\u202a-\u202e]", shown)
    assert "\x1b" not in escapes.sub("", shown)
    assert set(escapes.findall(shown)) <= set(escapes.findall(usual))


def test_long_answers_are_shortened_on_a_terminal_and_whole_on_the_page():
    long = card(worth_reading=[worth("x" * 700)])
    shown = "".join(printed(long).split())
    assert "Answer" + "x" * 600 + "...Reference" in shown
    assert "x" * 700 in page(long)


def test_many_prompts_are_drawn_to_a_bound():
    one = card().scores[0]
    many = card(scores=[one.model_copy(update={"prompt_id": number}) for number in range(1000, 1064)])
    text = page(many)
    assert ">1031<" in text
    assert ">1032<" not in text


def test_a_failing_verifier_is_in_both():
    failing = [ProbeResult(name="empty", what="an empty answer", must_pass=False, tried=2, wrong=0, failed=2)]
    shown = card(probes=Probes(prompts=2, results=failing))
    assert re.search(r"an empty answer +fail +0 of 2 +2", printed(shown))
    assert "an empty answer" in page(shown)
