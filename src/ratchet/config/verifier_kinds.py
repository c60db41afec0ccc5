"""How an answer is checked: one class per kind of verifier."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ratchet.config.base import Settings, setting

Read = Literal["whole", "after_reasoning", "answer_tag"]
QaMetric = Literal["normalized_exact_match", "token_f1"]
JsonMetric = Literal["field_accuracy", "schema_valid", "json_exact_match"]
CodeMetric = Literal["tests_passed", "all_passed"]
ToolCallMetric = Literal["call_match", "name_match", "call_valid"]

_KIND_LABEL = "Verifier"
_KIND_HELP = (
    "How an answer is checked: math_pairs, final_number, math, numeric, qa, classification, structured_json, "
    "tool_call, code, composite (several of them), reasoning_gym for tasks of that source, custom for a metric of your "
    "own that runs in the sandbox, or python for a function of your own that runs in this process."
)
_METRIC_LABEL = "Metric"
_METRIC_HELP = (
    "Which number of the verifier counts as correctness and is trained on; the others are reported. qa: "
    "normalized_exact_match (usual) or token_f1. structured_json: field_accuracy (usual), schema_valid or "
    "json_exact_match. tool_call: call_match (usual), name_match or call_valid. code: tests_passed, the "
    "share of the row's tests (usual), or all_passed. custom: the name of your metric, also as NAME@VERSION."
)
_Name = Annotated[str, Field(min_length=1, max_length=1_000)]


class _Reading(Settings):
    """What every verifier has in common."""

    kind: str

    @property
    def title(self) -> str:
        """Return how messages call it."""
        return f"Verifier {self.kind}"

    read: Read | None = setting(
        None,
        label="Read",
        help="Which part of an answer is checked: whole; after_reasoning, the text after the last </think>; or "
        "answer_tag, the text inside the only <answer> tag. An answer without that part is unparseable. Empty takes "
        "whole.",
    )


class MathPairsVerifier(_Reading):
    """The last number must equal the product of the sums."""

    kind: Literal["math_pairs"] = setting("math_pairs", label=_KIND_LABEL, help=_KIND_HELP)


class FinalNumberVerifier(_Reading):
    """The last number of the answer must equal the reference."""

    kind: Literal["final_number"] = setting("final_number", label=_KIND_LABEL, help=_KIND_HELP)


class MathVerifier(_Reading):
    """The boxed or last expression must equal the reference symbolically."""

    kind: Literal["math"] = setting("math", label=_KIND_LABEL, help=_KIND_HELP)
    require_boxed: bool | None = setting(
        None,
        label="Require a box",
        help="Whether an answer without \\boxed{} is unparseable. Empty: yes for boxed datasets, else no.",
    )
    limit_seconds: float = setting(
        5.0,
        gt=0,
        le=60,
        label="Limit per answer",
        unit="seconds",
        help="An answer whose check takes longer is counted as failed; the checking process is killed.",
    )


class NumericVerifier(_Reading):
    """The answer must be one number and nothing else, equal to the reference within the tolerances."""

    kind: Literal["numeric"] = setting("numeric", label=_KIND_LABEL, help=_KIND_HELP)
    absolute_tolerance: float = setting(
        0.0,
        ge=0,
        label="Absolute tolerance",
        help="An answer that differs from the reference by no more than this is right. 0: it must be equal.",
    )
    relative_tolerance: float = setting(
        0.0,
        ge=0,
        label="Relative tolerance",
        help="An answer is right that differs by no more than this share of the larger of the two: 0.01 is 1 %.",
    )


class QaVerifier(_Reading):
    """The answer's text must equal the reference, or share its words, as SQuAD compares them."""

    kind: Literal["qa"] = setting("qa", label=_KIND_LABEL, help=_KIND_HELP)
    metric: QaMetric = setting("normalized_exact_match", label=_METRIC_LABEL, help=_METRIC_HELP)


class ClassificationVerifier(_Reading):
    """The answer must be one of the labels and nothing else, and the right one."""

    kind: Literal["classification"] = setting("classification", label=_KIND_LABEL, help=_KIND_HELP)
    labels: Annotated[tuple[_Name, ...], Field(min_length=2, max_length=1_000)] = setting(
        ...,
        label="Labels",
        help="The texts an answer may be, 2 to 1,000 of them. Capitals and blanks at the ends do not matter.",
    )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        folded = [label.strip().casefold() for label in self.labels]
        for number, label in enumerate(folded, start=1):
            if not label:
                raise ValueError(f"Labels, entry {number} is blank. Leave it out.")
            if (first := folded.index(label) + 1) != number:
                raise ValueError(
                    f"Labels, entries {first} and {number} are the same label but for capitals and blanks at the "
                    "ends. Leave one of them out."
                )
        return self


class StructuredJsonVerifier(_Reading):
    """The answer must be one JSON document, with the reference's fields or in a schema."""

    kind: Literal["structured_json"] = setting("structured_json", label=_KIND_LABEL, help=_KIND_HELP)
    metric: JsonMetric = setting("field_accuracy", label=_METRIC_LABEL, help=_METRIC_HELP)
    # Users write schema; as a Python name that would hide a method of pydantic's.
    json_schema: dict[str, Any] | None = setting(
        None,
        alias="schema",
        label="JSON schema",
        help="A JSON Schema (draft 2020-12) that answers must follow, else they score 0. A row's own column schema "
        "goes before it. Empty: any JSON.",
    )
    fields: Annotated[tuple[_Name, ...], Field(max_length=1_000)] = setting(
        (),
        label="Fields",
        help="Names at the top level that field_accuracy compares. Empty: all that the reference has.",
    )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for number, field in enumerate(self.fields, start=1):
            if (first := self.fields.index(field) + 1) != number:
                raise ValueError(f"Fields, entries {first} and {number} are the same. Leave one of them out.")
        return self


class ToolCallVerifier(_Reading):
    """The answer must call the expected tools of its row with the expected arguments."""

    kind: Literal["tool_call"] = setting("tool_call", label=_KIND_LABEL, help=_KIND_HELP)
    metric: ToolCallMetric = setting("call_match", label=_METRIC_LABEL, help=_METRIC_HELP)


class PythonVerifier(_Reading):
    """A function of the user's own, given to ``ratchet.train`` in Python; runs in process and is trusted.

    Only its identity is stored: such a run is resumed with ``ratchet.resume(folder, verifier=function)``.
    """

    kind: Literal["python"] = setting("python", label=_KIND_LABEL, help=_KIND_HELP)
    module: str = setting("", label="Module", help="Module that holds the function.")
    name: str = setting("", label="Function", help="Name of the function.")
    source_hash: str = setting("", label="Source hash", help="SHA-256 of the function's source text.")


class CodeVerifier(_Reading):
    """The program in the answer is run against the row's tests, in a sandbox."""

    kind: Literal["code"] = setting("code", label=_KIND_LABEL, help=_KIND_HELP)
    language: Literal["python"] = setting("python", label="Language", help="Language of the programs.")
    metric: CodeMetric = setting("tests_passed", label=_METRIC_LABEL, help=_METRIC_HELP)
    seconds_per_test: float = setting(
        5.0,
        ge=0.1,
        le=60,
        label="Limit per test",
        unit="seconds",
        help="A test that takes longer is not passed. A program is given ten times this for all its tests.",
    )
    memory_mb: int = setting(
        512,
        ge=64,
        le=16_384,
        label="Memory of a program",
        unit="MB",
        help="Address space of each of a program's processes. All of them together may hold twice this.",
    )


class CustomVerifier(_Reading):
    """A metric of the user's own, ``score(answer, reference)`` from 0 to 1, run in the sandbox.

    The source is stored with the run, which so keeps the version that it was saved with.
    """

    kind: Literal["custom"] = setting("custom", label=_KIND_LABEL, help=_KIND_HELP)
    metric: str = setting("", max_length=200, label=_METRIC_LABEL, help=_METRIC_HELP)
    version: int | None = setting(
        None,
        ge=1,
        label="Metric version",
        help="custom: version of the metric. Empty: the newest when the run is saved.",
    )
    source: str = setting(
        "",
        typed=False,
        label="Metric source",
        help="custom: the metric's Python source, which defines score(answer, reference); filled in when the run is "
        "saved.",
    )
    limit_seconds: float = setting(
        1.0,
        ge=0.1,
        le=60,
        label="Limit per answer",
        unit="seconds",
        help="An answer that takes the metric longer, on the clock or of the processor, is counted as failed; the next "
        "ones are graded.",
    )

    @property
    def title(self) -> str:
        """Return how messages call it."""
        return f"Metric {self.metric}" + ("" if self.version is None else f" version {self.version}")


class ReasoningGymVerifier(_Reading):
    """The task's own scorer, for prompts of the source reasoning_gym."""

    kind: Literal["reasoning_gym"] = setting("reasoning_gym", label=_KIND_LABEL, help=_KIND_HELP)


_Plain = (
    MathPairsVerifier
    | FinalNumberVerifier
    | MathVerifier
    | NumericVerifier
    | QaVerifier
    | ClassificationVerifier
    | StructuredJsonVerifier
    | ToolCallVerifier
    | CodeVerifier
    | CustomVerifier
    | ReasoningGymVerifier
    | PythonVerifier
)
PlainVerifierSettings = Annotated[_Plain, Field(discriminator="kind")]


class CompositePart(Settings):
    """One verifier of several, with its weight against the others."""

    verifier: PlainVerifierSettings = Field(
        ..., title="Verifier of a part", description="Any kind but composite, with its settings."
    )
    weight: float = setting(
        1.0,
        gt=0,
        le=1_000_000,
        label="Weight",
        help="What the part counts beside the others in what is trained on.",
    )


class CompositeVerifier(_Reading):
    """Several verifiers on the same answer: their weighted mean is trained on, one of them is correctness."""

    kind: Literal["composite"] = setting("composite", label=_KIND_LABEL, help=_KIND_HELP)

    parts: Annotated[tuple[CompositePart, ...], Field(min_length=2, max_length=8)] = setting(
        ...,
        label="Parts",
        help="2 to 8 of {verifier: {kind: ...}, weight: 1}. A part that says nothing of Read takes the composite's.",
    )
    correctness_from: int = setting(
        0,
        ge=0,
        le=7,
        label="Correctness from",
        help="Which part is correctness, for accuracy, the target and the best round; 0 is the first one.",
    )

    @property
    def title(self) -> str:
        """Return how messages call it: with the user's own metrics in it, which are what usually fails."""
        own = [part.verifier.title for part in self.parts if isinstance(part.verifier, CustomVerifier)]
        return f"Verifier composite ({', '.join(own)})" if own else super().title

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.correctness_from >= len(self.parts):
            raise ValueError(
                f"Correctness from is {self.correctness_from}, but there are {len(self.parts)} parts, counted from 0. "
                f"Choose 0 to {len(self.parts) - 1}."
            )
        if sum(part.verifier.kind == "python" for part in self.parts) > 1:
            raise ValueError("Parts holds two functions of your own (python), and a run takes one. Make one of them.")
        return self


VerifierSettings = Annotated[_Plain | CompositeVerifier, Field(discriminator="kind")]
