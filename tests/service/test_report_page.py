"""The report as a page and on a terminal: every number is there, and no text of a model acts on either."""

import re
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ratchet.cli.inspect import print_report
from ratchet.report_card import ProbeResult, Probes
from ratchet.service.report_page import page
from ratchet.shown import visible, whole

from ..cards import card, made, worth  # noqa: TID252

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


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=200).map(whole))
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
        "A run is refused. All scored alike.", "Look at this.", "37.5% right, of 8 answers", "50.0% prompts with a signal (1 of 2)",
        "12.5% unparseable, above 3.0%", "0.0% cut off", "50.0% false positives, of made-up answers that must fail", "0.0% false negatives", "scores more than 0.5.", "the prompt again 1 of 2 0",
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


def printed(shown, **options):
    console = Console(width=200, highlight=False, emoji=False, soft_wrap=True, record=False, **options)
    with console.capture() as captured:
        print_report(console, shown)
    return captured.get()


def test_a_terminal_shows_the_same_numbers():
    text = printed(card(refusal="All scored alike.", was_extended=True))
    for part in (
        "Right            37.5% of 8 answers (64 scored alike, so 192 more were drawn): 3 right, 4 wrong", "1 of 2 prompts",
        "Unparseable      12.5%  above 3%", "False positives  50.0% of made-up answers that must fail",
        "False negatives  0.0% of made-up answers that must pass", "An answer passes that scores more than 0.5.", "the prompt again", "1 of 2",
        "[0.9, 1.0] ████████████████████████ 3", "[0.0, 0.1) ████████████████████████████████████████ 5",
        "A run is refused. All scored alike.", "Note: Look at this.",
    ):  # fmt: skip
        assert part in text, part


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200).map(whole))
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
