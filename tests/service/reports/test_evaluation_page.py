"""Evaluations, comparisons and loops as pages: every number is there, and no text of a model acts on them."""

import re
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.evaluation.comparison import Side
from ratchet.evaluation.comparison import side_by_side as compared
from ratchet.evaluation.evaluation import BandScore, Cost
from ratchet.run.display import visible
from ratchet.service.reports.evaluation_page import MOST_QUESTIONS, comparison_page, evaluation_page
from ratchet.service.reports.loop_page import LoopHead, RoundJob, loop_page

from ...evaluation_samples import (
    HOSTILE,
    answer,
    comparison,
    difference,
    evaluation,
    loop_report,
    loop_view,
    question,
    questions,
    score,
    scores,
    side_by_side,
)

VOID = ("meta", "path", "use", "image", "br", "col", "rect")


class Reader(HTMLParser):
    """Collects elements, attributes and the text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open, self.texts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
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


def body_of(page):
    """Return the words of a page as they are read, without what elements put between them."""
    text = re.sub(r"<svg.*?</svg>", "", page[page.index("<h1>") :], flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", text).replace("&#34;", '"').replace("&#39;", "'").split())


def head(**changes):
    fields = {
        "name": "tiny to 95", "benchmark": "math_pairs_heldout", "column": "accuracy", "status": "plateaued",
        "elapsed_seconds": 4210.0, "reason": "Two rounds in a row showed no real gain.",
    }  # fmt: skip
    return LoopHead(**{**fields, **changes})


def jobs(number=7):
    return {place: RoundJob(f"20261130-10{place}500-ab12", 500.0 + place) for place in range(1, number + 1)}


def all_pages():
    whole, results = side_by_side()
    return [
        evaluation_page(whole.evaluations[1], results[1]),
        comparison_page(whole, results),
        loop_page(head(), loop_view(), jobs(), loop_report()),
    ]


def hostile(text):
    """Return the three pages with a text wherever a model, a row or a user may put one."""
    given = [
        answer(text, "wrong", failure=text),
        answer(text, "partly", tokens=None),
    ]
    one = question(1, *given, prompt=[{"role": "user", "content": text}], ground_truth=text, difficulty=text)
    found = scores(
        [one], bands=False, warnings=[text], withheld=text, failures={text: 1}, could_be=(0.1, 0.2),
        columns=[score(text, 1, 2)],
        cost=Cost(prompt_tokens=1, answer_tokens=1, amount=1.0, currency=text),
    )  # fmt: skip
    found = found.model_copy(update={"bands": [BandScore(band=text, score=score(text, 1, 2))]})
    made = evaluation(
        "RL", [one], name=text, benchmark=text, main_column=text, scores=found, status="failed", message=text,
        setup={text: text, "nested": {text: [text]}, "list": [text]}, id="left",
    )  # fmt: skip
    made = made.model_copy(
        update={"subject": made.subject.model_copy(update={"name": text, "model": text, "identity": text})}
    )
    other = made.model_copy(update={"id": "right"})
    main = difference([one], [one], sentence=text, fixed=[1], broken=[1], test="bootstrap", verdict="withheld")
    whole, _ = side_by_side({"a": [one], "b": [one]})
    whole = whole.model_copy(
        update={
            "labels": [text, text],
            "evaluations": [made, other],
            "columns": {text: [score(text, 1, 2), score(text, 1, 2)]},
            "bands": {text: [score(text, 1, 2), score(text, 1, 2)]},
            "comparisons": [comparison(made, other, [one], [one], main=main, notes=[text])],
            "notes": [text],
        }
    )
    said = loop_report(sentences=[text])
    told = head(name=text, benchmark=text, column=text, reason=text)
    return [
        evaluation_page(made, [one]),
        comparison_page(whole, [[one], [one]]),
        loop_page(told, loop_view(), {1: RoundJob(text, None)}, said),
    ]


PAGES = all_pages()
ALLOWED = {tag for page in PAGES for tag in read(page).tags} | {"i", "p", "span", "pattern"}


@settings(max_examples=4, deadline=None)
@given(st.text(min_size=40, max_size=300))
def test_no_text_breaks_out_of_a_page(text):
    check(text)


def test_no_markup_of_an_answer_becomes_the_pages_own():
    check(HOSTILE)


def check(text):
    for page in hostile(text):
        reader = read(page)
        assert not set(reader.tags) - ALLOWED
        assert not [name for name, _ in reader.attributes if name.startswith("on")]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", page)
        page.encode()
        first = next(iter(visible(text).split()), "")
        assert first in "".join(reader.texts)


def test_pages_need_nothing_from_elsewhere():
    for page in PAGES:
        links = [value for name, value in read(page).attributes if name in ("src", "href", "xlink:href", "action")]
        assert all(link.startswith("#") for link in links)
        assert not re.search(r"url\((?!#)|@import|http-equiv=.refresh|<script", page)
        assert "default-src 'none'" in page
        assert "prefers-color-scheme: dark" in page
        assert "@media print" in page


def test_names_of_elements_are_used_once():
    for page in all_pages():
        names = [value for name, value in read(page).attributes if name == "id"]
        assert len(names) == len(set(names))


def test_whoever_cannot_see_is_told_what_a_drawing_and_a_table_are():
    for page in all_pages():
        assert page.count("<figure") == len(re.findall(r'<figure class="\w+" role="img" aria-label="[^"]{10,}"', page))
        assert page.count("<table") == page.count("<caption")
        assert not re.search(r"<th(?! scope=)[ >]", page)
        assert page.count('class="scroll"') == len(re.findall(r'role="region" aria-label="[^"]+" tabindex="0"', page))


def test_an_evaluation_shows_every_number_and_what_it_means():
    results = questions(0.61)
    page = evaluation_page(evaluation("SFT", results), results)
    text = body_of(page)
    for part in (
        "61.3% accuracy: answers that are right; 95 % interval 57.0% to 65.4%", "512 questions, one greedy answer per question",
        "27 tokens per answer", "1.5 s median latency per answer", "accuracy strict 59.4% 55.1% to 63.5%",
        "easy 108 80.6% 72.1% to 86.9%", "right 314 61.3% full credit", "unparseable 25 4.9%", "cut off 14 2.7% reached max answer tokens before",
        "refused 5 1.0%", "Those without full credit come first: 198 of 512. The page shows 200; 312 are left out, all of them right.",
        "Verifier kind: math_pairs read: whole", "System prompt none", "Adapter's checksum dddd", "Max answer tokens 64",
    ):  # fmt: skip
        assert part in text, part
    assert "No verdict" not in text
    assert "failed to grade" not in text


def test_failures_come_first_and_the_page_has_a_bound():
    results = questions(0.2)
    page = evaluation_page(evaluation("base", results), results)
    rows = re.findall(r'<tr><th scope="row">(\d+)</th>', page)
    wrong = [str(one.question) for one in results if one.correctness < 1]
    assert rows == wrong[:MOST_QUESTIONS]
    left = len(wrong) - MOST_QUESTIONS
    assert f"312 are left out, {left} of them without full credit." in body_of(page)
    few = [question(1), question(2, answer("7", "wrong"))]
    assert "Those without full credit come first: 1 of 2. Questions with their answers No." in body_of(
        evaluation_page(evaluation("x", few), few)
    )


def test_several_answers_to_a_question_are_all_there():
    one = question(1, answer("one"), answer("two", "wrong", tokens=30), answer("three", "partly"), answer("four"))
    made = evaluation("x", [one], answers_per_question=4)
    found = made.scores.model_copy(
        update={"pass_at": [score("pass@4", 1, 1)], "groups": {"right": 2, "partly": 1, "wrong": 1}}
    )
    text = body_of(evaluation_page(made.model_copy(update={"scores": found}), [one]))
    for part in (
        "4 sampled answers per question", "pass@4 100.0%", "questions with a right answer among 4", "2 of 4 right 26", "3 more answers",
        "wrong two partly right, 50.0% three right four", "mean score of the answers, with partial credit",
    ):  # fmt: skip
        assert part in text, part


def test_an_evaluation_without_verdict_says_so_with_the_range():
    results = [question(1), question(2, answer("", "failed"))]
    found = scores(
        results, bands=False, withheld="1 of 2 answers could not be graded.", could_be=(0.5, 1.0), failures={"time": 1}
    )
    text = body_of(evaluation_page(evaluation("x", results, scores=found), results))
    for part in (
        "No verdict is given on this evaluation. 1 of 2 answers could not be graded.",
        "1 answer could not be graded: accuracy would be 50.0% if all of them were wrong, 100.0% if all were right.",
        "Failed to grade, time: 1 answer.", "failed to grade (time)", "(empty)",
    ):  # fmt: skip
        assert part in text, part
    assert "By difficulty" not in text


def test_an_evaluation_that_goes_on_has_no_scores_yet():
    page = evaluation_page(
        evaluation("x", [question()], scores=None, status="training", message="Asking."), [question()]
    )
    assert "Training. Asking. There are no scores yet." in body_of(page)
    assert "<figure" not in page
    failed = evaluation_page(evaluation("x", [question()], scores=None, status="failed"), [])
    assert "There are no scores." in body_of(failed)


def test_the_price_of_an_endpoint_is_shown():
    found = scores([question()], cost=Cost(prompt_tokens=20_000, answer_tokens=3_000, amount=1.5, currency="EUR"))
    text = body_of(evaluation_page(evaluation("x", [question()], scores=found), [question()]))
    assert "1.50 EUR for 20,000 prompt tokens and 3,000 answer tokens" in text


def test_long_texts_are_behind_their_beginning_and_the_longest_cut():
    long = question(1, answer("x" * 5000, "wrong"))
    page = evaluation_page(evaluation("x", [long]), [long])
    assert "x" * 160 + " ..." in page
    assert "x" * 4000 + "</span>" in page
    assert "1,000 more characters are left out of this page." in body_of(page)


def test_a_comparison_begins_with_its_verdict_and_shows_every_side():
    whole, results = side_by_side()
    text = body_of(comparison_page(whole, results))
    first = whole.comparisons[2].main.sentence
    assert first.startswith("RL is better than SFT: 92.6% against 61.3%")
    assert text.index(first) < 250
    for part in (
        "base, SFT, RL on math_pairs_heldout", "The same 512 questions for all sides, one greedy answer per question.",
        whole.comparisons[0].main.sentence, whole.comparisons[1].main.sentence, "base tiny 35.2% 31.1% to 39.4%",
        "RL against SFT +31.2 +27.2 to +35.3 160 0 better", "RL against base +57.4 +53.1 to +61.7 294 0 better",
        "easy 108 46.3% 37.2% to 55.7% 80.6%", "RL against SFT : 160 fixed, 0 broken", "Below: the first 5.",
        "McNemar's exact test", "Within the noise means:", "chance alone produces a difference this large less than once in 1,000 times",
    ):  # fmt: skip
        assert part in text, part
    assert text.index("RL against SFT") < text.index("RL against base") < text.index("SFT against base")


def test_questions_that_changed_show_both_answers():
    left = [question(1, answer("five", "wrong")), question(2, answer("six")), question(3)]
    right = [question(1, answer("56")), question(2, answer("nothing", "wrong_format")), question(3)]
    whole, results = side_by_side({"old": left, "new": right})
    text = body_of(comparison_page(whole, results))
    assert "Fixed Question 1." in text
    assert "Question 1 (3 + 4) * (2 + 6) Expected: 56 old wrong five new right 56" in text
    assert "Broken Question 2." in text
    assert "old right six new unparseable nothing" in text


def test_a_difference_within_the_noise_is_called_so():
    whole, results = side_by_side({"start": questions(0.6), "after": questions(0.615, seed="other")})
    page = comparison_page(whole, results)
    assert 'class="verdict within_noise first"' in page
    assert "within the noise after against start" in body_of(page)
    assert "About 4,100 questions would decide" in body_of(page)
    assert "large 310 times in 1,000" in body_of(page)


def test_a_withheld_verdict_is_none():
    left, right = questions(0.5), questions(0.6)
    whole, results = side_by_side({"a": left, "b": right})
    main = difference(
        left, right, ("a", "b"), verdict="withheld", sentence="No verdict: 9.0% of the answers of b failed to grade."
    )
    held = comparison(*whole.evaluations, left, right, main=main)
    page = comparison_page(whole.model_copy(update={"comparisons": [held]}), results)
    assert 'class="verdict withheld first"' in page
    assert "no verdict b against a No verdict: 9.0%" in body_of(page)


def test_bands_of_the_first_sides_own_answers_are_not_called_difficulty():
    left = [question(n, answer("7", "wrong" if n % 2 else "right"), difficulty=None) for n in range(1, 21)]
    right = [question(n, difficulty=None) for n in range(1, 21)]
    whole = compared([Side("base", evaluation("base", left), left), Side("RL", evaluation("RL", right), right)])
    text = body_of(comparison_page(whole, [left, right]))
    assert "By how base did Accuracy in each band" in text
    assert "never right before 10 0.0%" in text
    assert "The questions have no difficulty, so the bands are how base itself did on them." in text
    assert text.index("RL is better than base by 50.0 points") < 250


def test_one_question_without_bands_is_a_comparison_too():
    one = question(1, difficulty=None)
    whole, results = side_by_side({"a": [one], "b": [one]})
    text = body_of(comparison_page(whole, results))
    assert "The same 1 question for all sides" in text
    assert "By difficulty" not in text
    assert "Questions that changed" not in text


def test_a_loop_shows_what_was_reached_round_by_round():
    text = body_of(loop_page(head(), loop_view(), jobs(), loop_report()))
    for part in (
        "plateaued accuracy on math_pairs_heldout", "On the held-out half round 5 is better than the start",
        "Two rounds in a row showed no real gain.", "92.2% best accuracy: round 5", "+57.0 points, best against start",
        "+30.9 points, best against round 1", "95.0% target", "7 of 8 rounds used", "70 min elapsed", "Hatched rounds have no score.",
        "start 35.2%", "1 61.3% \u25b2 +26.1 over start start 8 min 20261130-101500-ab12", "2 59.8% \u25bc -1.5 not significant round 1",
        "3 no score round 1", "5 BEST 92.2% \u25b2 +8.2 over round 4",
        "7 92.2% \u25b2 +0.4 not significant round 5", "selection half (256 questions) 35.9%", "held-out half (256 questions) 34.4%", "+55.9 (+49.0 to +62.0)",
        "The best of 7 scored rounds was selected",
    ):  # fmt: skip
        assert part in text, part


def test_a_round_without_a_verdict_is_marked():
    view = loop_view((35.2, 61.3), best=None, best_percent=None, gain_over_start=None)
    rounds = [one.model_copy(update={"withheld": "It failed.", "best": False}) for one in view.rounds]
    text = body_of(loop_page(head(), view.model_copy(update={"rounds": rounds}), jobs(1), None))
    for part in (
        "none yet best accuracy",
        "Hatched rounds have a score without a verdict.",
        "start 35.2% no verdict",
        "1 61.3% \u25b2 +26.1 no verdict start",
    ):
        assert part in text, part


def test_a_loop_that_has_just_begun_has_nothing_to_show_yet():
    view = loop_view((35.2,), best=None, best_percent=None, gain_over_start=None, target_percent=None, rounds=[])
    page = loop_page(head(status="queued", reason=""), view, {}, None)
    assert "none yet best accuracy" in body_of(page)
    assert "none target" in body_of(page)
    assert "<figure" not in page
    assert "On the held-out half" not in page


def test_where_the_start_won_only_its_held_out_score_is_told():
    said = loop_report(best=0, held_out=None, selection_bias=None, sentences=["No round scored above the start."])
    text = body_of(loop_page(head(), loop_view((35.2, 30.0)), jobs(1), said))
    assert "No round scored above the start." in text
    assert "best accuracy: the start" in text


def test_the_same_records_are_the_same_pages():
    assert all_pages() == PAGES
