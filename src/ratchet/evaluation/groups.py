"""What became of an answer, as people sort failures; among them refusals, found by how they are worded.

The detector reads English alone. It looks for a sentence near the start in which the writer says "I" will not or cannot
answer, and lets pass a text that goes on to an answer. Left out on purpose: that a question cannot be answered, which
may be the answer, and that a step cannot be done ("I cannot divide by zero"). It rather misses a refusal than finds one
in an attempt.
"""

import re

from ratchet.evaluation.evaluation import AnswerGroup
from ratchet.run.records import Outcome

# Scores are means of a few numbers: what differs from 1 or 0 by less differs by rounding.
ROUNDING = 1e-9
# A refusal comes first: after so many sentences a text is about something.
FIRST_SENTENCES = 3
# Of an answer; a refusal is near its start.
_SEARCHED = 2_000

_TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)
_MARKUP = re.compile(r"</?\w+>|[*_#>`\"\u201c\u201d]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")

# What may stand before "I cannot": regret, and what the writer is. Repetitions are bounded, so that no text is slow.
_REGRET = r"""
    (?: (?: answer: | (?:oh|well|hi|hello|hmm|no)\b
          | (?:i'm|i\ am) (?:\ (?:very|so|really|truly|deeply))? \ (?:sorry|afraid) (?:\ to\ say)? (?:\ that)?
          | (?:my\ )? (?:sincere\ )? apologies | sorry | i\ (?:do\ )?apologi[sz]e (?:\ for\ (?:the|any)\ [a-z]+)?
          | unfortunately | regrettably
        ) [,;:.!]? (?:\ (?:but|however),?)? \ ? ){0,3}
"""
_AS_AN_AI = r"""
    (?: as\ an?\ (?:\w+\ )? (?:ai|artificial\ intelligence|language\ model|llm|assistant) [\w -]{0,40} [,;:]?\ ? )?
"""
_BEFORE = _REGRET + _AS_AN_AI + _REGRET
_I_CANNOT = r"""
    (?: i\ (?:(?:really|simply|just|currently|also|must|therefore|do)\ )?
        (?: can't | cannot | can\ not | won't | will\ not | do(?:n't|\ not)\ feel\ comfortable
          | (?:have\ to\ |must\ |will\ )? (?:respectfully\ )? (?:decline|refuse) (?:\ to)? )
      | (?:i'm|i\ am)\ (?:currently\ )?
        (?: unable\ to | not\ (?:able|going|willing|allowed|permitted|programmed|designed|qualified)\ to
          | not\ comfortable )
    ) (?:\ (?:really|simply|possibly|legally|ethically|in\ good\ conscience))?
"""
# What an assistant does for whoever asks. A step of a calculation is none of it.
_SERVE = r"""
    \ (?: (?:help|assist)(?:ing)? (?:\ (?:you|with|on|here|in)\b | [.!,;] | $)
        | (?:answer|respond|reply)(?:ing)?
          (?: (?:\ to)? \ (?:this|that|the|your|such|any|it|you|questions?)\b | \ because\b | [.!,;] | $)
        | (?:comply|fulfill?|engage|participate)(?:ing)? (?:\ (?:with|in|this|that|your|the|such)\b | [.!,;] | $)
        | (?:provid|giv|offer|shar|generat|creat|discuss)(?:e|ing)? (?:\ [\w'-]+){0,5}
          \ (?:answers? | solutions? | responses? | information | assistance | help | advice | guidance | instructions
              | content | requests? | opinions? | topics?)\b
        | (?:your|the|this|that)\ (?:request|question)\b
      )
"""
# Said of a step as often as of the whole: a refusal where the sentence ends there and no number follows.
_SOLVE = r"""
    \ (?:do|solve|complete|continue|proceed)
    (?:\ (?:this|that|it|so|the|your|with|problem|question|task|equation|exercise))*
    (?: [.!,;] | $ | \ (?:without|because|as|since|due)\b )
"""
_KNOW_NOT = r"""
    i\ (?:really\ |honestly\ )? (?:don't|do\ not)\ know
    (?: [.!]* $ | \ the\ (?:correct\ )?answer\b | \ how\ to\ (?:answer|solve)\b )
"""
_REFUSES = re.compile(f"{_BEFORE} (?: {_I_CANNOT} {_SERVE} | {_KNOW_NOT} )", re.VERBOSE)
_GIVES_UP = re.compile(f"{_BEFORE} {_I_CANNOT} {_SOLVE}", re.VERBOSE)
# A sentence with one of these goes on to what is done instead.
_GOES_ON = re.compile(
    r"\b(?:until|yet|directly|so (?:i|we|let)|but (?:i|we) (?:can(?!'t|not)|could)|let's|let me)\b|\bhelp but\b"
)
# Where one of these stands the text came to an answer after all.
_ANSWERED = re.compile(r"\\boxed|\bfinal answer\b|\bthe answer is\b|\b(?:therefore|thus|hence)\b|= ?-?\d")


def group_of(text: str, outcome: Outcome, correctness: float) -> AnswerGroup:
    """What became of an answer.

    Args:
        text: The answer.
        outcome: What the verifier, or the token limit, made of it.
        correctness: 0..1, 0 unless it was graded.
    """
    if outcome in ("failed", "cut_off"):
        return "failed" if outcome == "failed" else "cut_off"
    if correctness >= 1 - ROUNDING:
        return "right"
    if correctness > ROUNDING:
        return "partly"
    if is_refusal(text):
        return "refusal"
    return "wrong_format" if outcome == "unparseable" else "wrong"


def is_refusal(text: str) -> bool:
    """Whether an answer says that its writer will not or cannot answer. Text before ``</think>`` is not read.

    Args:
        text: The whole answer; of one with an answer tag only what is in it is read.
    """
    said = text.rpartition("</think>")[2]
    tagged = _TAGGED.search(said)
    said = tagged.group(1) if tagged else said
    said = _MARKUP.sub("", said[:_SEARCHED]).replace("\u2019", "'").casefold().strip()
    if _ANSWERED.search(said):
        return False
    sentences = [" ".join(sentence.split()) for sentence in _SENTENCE_END.split(said)]
    for place, sentence in enumerate(sentences[:FIRST_SENTENCES]):
        if _GOES_ON.search(sentence):
            continue
        if _REFUSES.match(sentence):
            return True
        if _GIVES_UP.match(sentence) and not any(map(str.isdigit, " ".join(sentences[place:]))):
            return True
    return False
