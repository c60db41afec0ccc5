"""Settings in words: the keys that people type for them, and sentences with labels on what is wrong with one."""

import difflib
import json
import re
from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ratchet.config.base import current_key, walk_settings
from ratchet.config.run import RunConfig
from ratchet.errors import InvalidSetting

# Of several kinds: what is in them follows from data.source, verifier.kind and watch.kind.
_SECTIONS = ("data", "verifier", "watch")
# A leaf that one of these shares with another section is the other one's: --epochs stays rl's, --metric the verifier's.
_WRITTEN_IN_FULL = ("watch", "sft", "dpo")

# Measures that people know by name and that are never a reward here, with the reason for each kind of them: a reward
# must say of one answer, alone and the same each time, whether it is right. None of them is computed anywhere.
_JUDGE = (
    "it needs a model that judges the answer, and a judge can be talked into a good mark without the answer being right"
)
_MEANING = (
    "it compares meaning by another model's embeddings or probabilities, which a policy learns to please without "
    "being right"
)
_CORPUS = "it is defined over a whole set of answers, and one answer alone has no such value"
_OVERLAP = (
    "it measures overlap with a reference over a whole set of texts, and on one answer it pays for likeness, not for "
    "being right"
)
_MEASURES = (
    (
        "llm_judge llm_as_judge llm_as_a_judge judge llm_grader model_graded rubric g_eval geval reward_model "
        "preference_model preference pairwise win_rate elo faithfulness answer_relevancy answer_relevance helpfulness "
        "harmlessness toxicity coherence fluency ragas alpaca_eval mt_bench",
        _JUDGE,
    ),
    (
        "bertscore bert_score bleurt comet moverscore bartscore semantic_similarity cosine_similarity "
        "embedding_similarity perplexity",
        _MEANING,
    ),
    ("bleu sacrebleu sacre_bleu rouge meteor chrf ter_score gleu cider spice nist wer cer", _OVERLAP),
    (
        "macro_f1 f1_macro micro_f1 f1_micro weighted_f1 f1_weighted roc_auc auroc auc pr_auc average_precision map "
        "mcc matthews cohen_kappa kappa pearson spearman kendall mauve distinct self_bleu diversity ece "
        "calibration brier rmse mse r2 pass_at_k pass_k maj_at_k ndcg mrr",
        _CORPUS,
    ),
)
_REASONS = {name: reason for names, reason in _MEASURES for name in names.split()}
_SIZES = re.compile(r"(?:_?(?:[0-9]+|l|lsum|n|su|w|precision|recall|f1|score|metric|based|custom))+")


def why_not_a_reward(name: object) -> str | None:
    """Complete "... is never a reward: " for a name of a verifier or metric; None for a name that is not known."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_") if isinstance(name, str) else ""
    for known, reason in _REASONS.items():
        if plain == known or (plain.startswith(known) and _SIZES.fullmatch(plain[len(known) :])):
            return reason
    return None


@cache
def keys() -> dict[str, list[FieldInfo]]:
    """Every dotted key that people type, with its fields: one per variant of its section."""
    found: dict[str, list[FieldInfo]] = {}
    for key, field in walk_settings(RunConfig):
        if not isinstance(field.json_schema_extra, dict) or field.json_schema_extra.get("typed", True):
            found.setdefault(key, []).append(field)
    return found


@cache
def short_keys() -> dict[str, str]:
    """Leaf name -> dotted key, for the leaves that one key alone ends with; a top-level key wins.

    A section that is itself one thing, ``start_from``, goes by its name.
    """
    owners: dict[str, set[str]] = {}
    for key in keys():
        if key.partition(".")[0] not in _WRITTEN_IN_FULL:
            owners.setdefault(key.rpartition(".")[2], set()).add(key)
    return {"start_from": "start_from.adapter"} | {
        leaf: leaf if leaf in whole else next(iter(whole))
        for leaf, whole in owners.items()
        if (len(whole) == 1 or leaf in whole) and leaf != "adapter"
    }


def full_key(key: str) -> str:
    """The dotted key that a flag means, also by a name that the setting had before.

    Raises:
        InvalidSetting: there is no such setting, or several sections have it.
    """
    key, known = current_key(key), keys()
    if key in known:
        return key
    short = short_keys()
    if key in short:
        return short[key]
    several = sorted(k for k in known if k.endswith(f".{key}"))
    if several:
        raise InvalidSetting(f"Setting {key} could mean {' or '.join(several)}. Write it in full.", key)
    raise InvalidSetting(unknown(key), key)


def unknown(key: str) -> str:
    """Say that there is no such setting, with the nearest one that there is."""
    close = difflib.get_close_matches(key, [*keys(), *short_keys()], n=1)
    meant = f" Did you mean {full_key(close[0])}?" if close else ""
    return f"There is no setting {key}.{meant} See ratchet train --help for all of them."


def explained(
    error: ValidationError, known: Mapping[str, Sequence[FieldInfo]], *, hides_texts: bool = False
) -> InvalidSetting:
    """Put pydantic's findings into sentences: the label, the value, the limit. One for each setting.

    Args:
        error: What is wrong with settings.
        known: The fields of each dotted key.
        hides_texts: Never quote a text of another form than it must have, which may be a key that nobody should see.
    """
    by_key: dict[str, list[ErrorDetails]] = {}
    for finding in error.errors(include_url=False):
        by_key.setdefault(_key_of(finding["loc"], known), []).append(finding)
    sentences = []
    for key, findings in by_key.items():
        # Of a value that may be one thing or another, the findings that reach deepest into it are about what was meant.
        deepest = max(len(finding["loc"]) for finding in findings)
        by_place: dict[str, list[ErrorDetails]] = {}
        for finding in findings:
            if len(finding["loc"]) == deepest:
                by_place.setdefault(_place_in(key, finding["loc"]), []).append(finding)
        fields = known.get(key, ())
        sentences += [_sentence(key, place, alike, fields, hides_texts) for place, alike in by_place.items()]
    return InvalidSetting(" ".join(dict.fromkeys(sentences)), next(iter(by_key)))


def _key_of(location: tuple[Any, ...], known: Container[str]) -> str:
    """The dotted key of a finding, without the variants of a section or of a value that pydantic names."""
    names = [str(part) for part in location]
    if len(names) > 1 and names[0] in _SECTIONS:
        del names[1]
    for end in range(len(names), 0, -1):
        if ".".join(names[:end]) in known:
            return ".".join(names[:end])
    return ".".join(names)


def _place_in(key: str, location: tuple[Any, ...]) -> str:
    """Where in a list or mapping a finding is, such as ", entry 2, assistant"; empty for a plain value."""
    rest = location[len(key.split(".")) :]
    indices = [position for position, part in enumerate(rest) if isinstance(part, int)]
    if indices:
        return f", entry {rest[indices[0]] + 1}" + "".join(f", {part}" for part in rest[indices[0] + 1 :])
    inside_mapping = key.endswith(("template_options", "task_config")) and rest
    return f", {rest[0]}" if inside_mapping else ""


def _sentence(
    key: str, place: str, findings: list[ErrorDetails], fields: Sequence[FieldInfo], hides_texts: bool
) -> str:
    finding = findings[0]
    kind, context, value = finding["type"], finding.get("ctx", {}), finding.get("input")
    label = (fields[0].title if fields else None) or key
    name = (f"{label} ({key})" if label != key else key or "The settings") + place
    if refused := _refused_measure(key, finding):
        return refused
    match kind:
        case "value_error":
            return str(context["error"])
        case "extra_forbidden" if fields and finding["loc"][0] in _SECTIONS:
            section = finding["loc"][0]
            owner = "data.source" if section == "data" else f"{section}.kind"
            return f"{name} does not go with {owner} {finding['loc'][1]}. Leave one of them out."
        case "extra_forbidden":
            return unknown(key)
        case "missing":
            return f"{name} is missing. Give it a value."
        case "union_tag_not_found" | "union_tag_invalid":
            discriminator = str(context["discriminator"]).strip("'")
            said = f"is {json.dumps(context['tag'])}" if "tag" in context else "is missing"
            return f"{key}{place}.{discriminator} {said}; it must be one of {', '.join(_variants(key, discriminator))}."
        case "string_pattern_mismatch" if fields:
            said = "cannot be used as given" if hides_texts else f"is {shown_value(value)}"
            return f"{name} {said}; what it can be: {fields[0].description}"
    limits = dict.fromkeys(limit_in_words(one) for one in findings)
    return f"{name} is {shown_value(value)}; it must be {' or '.join(limits)}."


def _refused_measure(key: str, finding: ErrorDetails) -> str | None:
    """Say why a verifier or metric of a known name is not offered, or None if that is not what is wrong."""
    context = finding.get("ctx", {})
    section = key.partition(".")[0]
    if finding["type"] == "union_tag_invalid" and section in ("verifier", "watch"):
        measure, what = context["tag"], f"{section}.kind"
    elif finding["type"] in ("literal_error", "extra_forbidden") and finding["loc"][-1] == "metric":
        measure, what = finding.get("input"), f"{section}.metric"
    else:
        return None
    reason = why_not_a_reward(measure)
    if reason is None:
        return None
    return (
        f"{what} is {shown_value(measure)}, which is never a reward: {reason}. Choose a verifier that checks one "
        "answer against its reference."
    )


def _variants(key: str, discriminator: str) -> list[str]:
    """The kinds that a section, or an entry of a list in it, may be of."""
    tag = f"{key}.{discriminator}"
    if tag in keys():
        return [value for field in keys()[tag] for value in get_args(field.annotation)]
    return [kind for kind in _variants(key.rpartition(".")[0], discriminator) if kind != "composite"]


def limit_in_words(finding: ErrorDetails) -> str:
    """Complete "it must be ..." for a finding."""
    limit = {
        "greater_than_equal": "at least {ge}",
        "greater_than": "above {gt}",
        "less_than_equal": "at most {le}",
        "less_than": "below {lt}",
        "literal_error": "{expected}",
        "string_pattern_mismatch": "a text of another form",
        "string_too_short": "a text that is not empty",
        "string_too_long": "a text of at most {max_length} characters",
        "too_long": "at most {max_length} entries",
        "too_short": "at least {min_length} entries",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "int_parsing_size": "a smaller number",
        "float_type": "a number",
        "bool_type": "true or false",
        "finite_number": "a finite number",
        "string_type": "a text",
        "tuple_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a section with settings in it",
        "model_attributes_type": "a section with settings in it",
    }.get(finding["type"])
    if limit is None:
        return str(finding["msg"]).removeprefix("Input should be ").removeprefix("Value should be ")
    context = finding.get("ctx", {})
    return limit.format(**{name: f"{x:g}" if isinstance(x, float) else x for name, x in context.items()})


def shown_value(value: Any) -> str:
    """A value as an error shows it, shortened where it is long."""
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 80 else shown[:77] + "..."
