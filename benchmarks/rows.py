"""The rows: what is measured, at which size, against what, and what it is held to.

A row is plain data. Everything in it is stored with its result, so a row that is changed is measured anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from workload import LEARNING_RATE, LORA_ALPHA, LORA_RANK, answer_lengths

Details = dict[str, Any]
_CHOSEN_BY_SWEEP = ("ratchet_tokens", "trl_answers", "generate_batch", "continuous_tokens")
# A variant of a row for the sweep: which tool, what to call it, and the row.
Variant = tuple[str, str, "PairRow"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What every row has. ``quick`` ones are a part of ``make bench``; the others only of ``make bench-full``."""

    name: str
    model: str
    quick: bool = False
    kind: ClassVar[str]
    scripts: ClassVar[dict[str, str]]

    def shrunk(self) -> "Row":
        """Return the same row at a size that only shows whether the machinery works."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PairRow(Row):
    """A row of Ratchet against others, in rounds that alternate. ``scripts`` maps each tool to its program.

    ``pairs`` is how many rounds of each tool are measured. Ratchet starts first and names what the others need.
    """

    pairs: int = 5

    def first_order(self) -> dict[str, Any]:
        """What Ratchet's program is told."""
        raise NotImplementedError

    def order(self, tool: str, ratchet: Details) -> dict[str, Any]:
        """What another tool's program is told, knowing what Ratchet's said when it was ready."""
        raise NotImplementedError

    def wanted(self, tool: str, ratchet: Details) -> dict[str, Any]:
        """What a round must report to count: how many tokens, of which prompts, signal in how many groups."""
        raise NotImplementedError

    def variants(self) -> Sequence[Variant]:
        """What a sweep tries, to find each tool's best."""
        return ()

    def without_settings(self) -> "PairRow":
        """Return the row without what a sweep chooses, so that a sweep stays one of the row once its best is chosen."""
        names = [name for name in _CHOSEN_BY_SWEEP if hasattr(self, name)]
        return replace(self, pairs=0, **dict.fromkeys(names, 0))


@dataclass(frozen=True, kw_only=True)
class RoundRow(PairRow):
    """A full training round: P prompts, G answers to each of exactly T tokens.

    ``trl_prompts`` is for rows in which TRL does the round with fewer prompts, as more would take it too long; seconds
    are then compared per answer. ``ratchet_tokens`` and ``trl_answers`` are the micro-batches: tokens of a packed row,
    answers of a padded batch; None leaves Ratchet's to its own default. They are the best of what ``sweep`` tried.
    """

    prompts: int
    answers: int
    answer_tokens: int
    target: float
    system_prompt: str | None = ""
    worked_examples: int = 0
    largest: int = 9
    trl_prompts: int | None = None
    ratchet_tokens: int | None = None
    trl_answers: int
    sweep_ratchet: tuple[int, ...] = (256, 512, 1024, 2048)
    sweep_trl: tuple[int, ...]
    gradient_checkpointing: bool = False

    kind = "round"
    scripts: ClassVar = {"ratchet": "ratchet_tool.py", "trl": "trl_tool.py"}

    def prompts_of(self, tool: str) -> int:
        return self.trl_prompts or self.prompts if tool == "trl" else self.prompts

    def answers_of(self, tool: str) -> int:
        """Return the answers of a tool's round, all of them in one optimizer step."""
        return self.prompts_of(tool) * self.answers

    def shrunk(self) -> "RoundRow":
        # A larger model takes minutes even so; only the number of TRL's prompts tells rows of this kind apart.
        small = replace(self, model="tiny", prompts=2, answers=4, answer_tokens=16, pairs=1, trl_answers=4)
        if self.trl_prompts is None:
            return replace(small, name="round-smoke")
        return replace(small, name="round-fewer-smoke", trl_prompts=1)

    def first_order(self) -> dict[str, Any]:
        return {"settings": self._ratchet_settings(), "peer_prompts": self.prompts_of("trl")}

    def order(self, tool: str, ratchet: Details) -> dict[str, Any]:
        return {
            "model_folder": ratchet["model_folder"],
            "conversations": ratchet["conversations"][: self.prompts_of(tool)],
            "prompts": self.prompts_of(tool),
            "answers": self.answers,
            "answer_tokens": self.answer_tokens,
            "micro_batch": self.trl_answers,
            "gradient_checkpointing": self.gradient_checkpointing,
        }

    def wanted(self, tool: str, ratchet: Details) -> dict[str, Any]:
        return {
            "answer_tokens": self.answers_of(tool) * self.answer_tokens,
            "groups_with_signal": self.prompts_of(tool),
            "prompts_digest": ratchet["peer_digest" if tool == "trl" else "digest"],
        }

    def variants(self) -> Sequence[Variant]:
        checkpointed = replace(self, gradient_checkpointing=True)
        return [
            *(("ratchet", f"{n} tokens", replace(self, ratchet_tokens=n)) for n in self.sweep_ratchet),
            *(("trl", f"{n} answers", replace(self, trl_answers=n)) for n in self.sweep_trl),
            ("trl", f"{self.trl_answers} answers, gradient checkpointing", checkpointed),
        ]

    def _ratchet_settings(self) -> dict[str, Any]:
        """Return the run settings, as a user would write them, of one optimizer step a round."""
        return run_settings(
            self.model,
            data={"source": "math_pairs", "prompts": max(self.prompts, 8), "heldout": 0, "largest": self.largest},
            prompt={
                "worked_examples": self.worked_examples,
                **({} if self.system_prompt is None else {"system_prompt": self.system_prompt}),
            },
            rl={
                "prompts_per_round": self.prompts,
                "answers_per_prompt": self.answers,
                "max_answer_tokens": self.answer_tokens,
                **({} if self.ratchet_tokens is None else {"micro_batch_tokens": self.ratchet_tokens}),
            },
        )


@dataclass(frozen=True, kw_only=True)
class UpdateRow(PairRow):
    """The update alone: one optimizer step on P prompts with G answers each, of made-up tokens of fixed lengths."""

    prompts: int
    answers: int
    prompt_tokens: int
    answer_tokens: int
    target: float | None = None
    memory_target: float | None = None
    ratchet_tokens: int | None = None
    trl_answers: int
    sweep_ratchet: tuple[int, ...] = (512, 1024, 2048)
    sweep_trl: tuple[int, ...] = (1, 2, 4, 8)
    gradient_checkpointing: bool = False

    kind = "update"
    scripts: ClassVar = {"ratchet": "ratchet_update_tool.py", "trl": "trl_update_tool.py"}

    @property
    def useful_tokens(self) -> int:
        """Tokens as they are counted for every tool: each answer with its own prompt, as the peer must compute it."""
        return self.prompts * self.answers * (self.prompt_tokens + self.answer_tokens)

    def shrunk(self) -> "UpdateRow":
        # All rows of this kind shrink to the same one, on the tiny model, so that one run stands for all.
        return UpdateRow(
            name="update-smoke",
            model="tiny",
            pairs=1,
            prompts=2,
            answers=4,
            prompt_tokens=16,
            answer_tokens=16,
            trl_answers=4,
        )

    def first_order(self) -> dict[str, Any]:
        rl = {
            "prompts_per_round": self.prompts,
            "answers_per_prompt": self.answers,
            "max_answer_tokens": self.answer_tokens,
            **({} if self.ratchet_tokens is None else {"micro_batch_tokens": self.ratchet_tokens}),
        }
        return {**self._sizes(), "settings": run_settings(self.model, rl=rl)}

    def order(self, tool: str, ratchet: Details) -> dict[str, Any]:
        return {
            **self._sizes(),
            "model_folder": ratchet["model_folder"],
            "micro_batch": self.trl_answers,
            "gradient_checkpointing": self.gradient_checkpointing,
        }

    def wanted(self, tool: str, ratchet: Details) -> dict[str, Any]:
        return {
            "answer_tokens": self.prompts * self.answers * self.answer_tokens,
            "groups_with_signal": self.prompts,
            "prompts_digest": ratchet["digest"],
        }

    def variants(self) -> Sequence[Variant]:
        checkpointed = replace(self, gradient_checkpointing=True)
        sizes = [n for n in self.sweep_trl if n <= self.prompts * self.answers]
        return [
            *(("ratchet", f"{n} tokens", replace(self, ratchet_tokens=n)) for n in self.sweep_ratchet),
            *(("trl", f"{n} answers", replace(self, trl_answers=n)) for n in sizes),
            ("trl", f"{self.trl_answers} answers, gradient checkpointing", checkpointed),
        ]

    def _sizes(self) -> dict[str, int]:
        names = ("prompts", "answers", "prompt_tokens", "answer_tokens")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class SamplerRow(PairRow):
    """The sampler alone: P prompts, G answers to each of prescribed lengths.

    ``generate_batch`` is how many of them ``model.generate`` gets at once and ``continuous_tokens`` the most tokens of
    a step of transformers' continuous batching; both the best of what ``sweep`` tried.
    """

    prompts: int
    answers: int
    longest: int
    uneven: bool
    system_prompt: str | None = ""
    target_generate: float | None = None
    target_continuous: float | None = None
    generate_batch: int
    generate_merged: bool = True
    generate_logprobs: bool = False
    continuous_tokens: int = 512
    continuous_logprobs: bool = True
    sweep_generate: tuple[int, ...]
    sweep_continuous: tuple[int, ...] = (128, 256, 512)

    kind = "sampler"
    scripts: ClassVar = {
        "ratchet": "ratchet_sampler_tool.py",
        "generate": "generate_tool.py",
        "continuous": "continuous_tool.py",
    }

    @property
    def lengths(self) -> list[int]:
        """Tokens of each answer, prompt by prompt."""
        return answer_lengths(self.prompts * self.answers, self.longest, uneven=self.uneven)

    def shrunk(self) -> "SamplerRow":
        name = f"sampler-{'uneven' if self.uneven else 'even'}-smoke"
        return replace(
            self, name=name, model="tiny", system_prompt="", pairs=1, prompts=2, answers=4, longest=16, generate_batch=4
        )

    def first_order(self) -> dict[str, Any]:
        prompt = {} if self.system_prompt is None else {"system_prompt": self.system_prompt}
        rl = {
            "prompts_per_round": self.prompts,
            "answers_per_prompt": self.answers,
            "max_answer_tokens": self.longest,
        }
        data = {"source": "math_pairs", "prompts": max(self.prompts, 8), "heldout": 0}
        return {"lengths": self.lengths, "settings": run_settings(self.model, data=data, prompt=prompt, rl=rl)}

    def order(self, tool: str, ratchet: Details) -> dict[str, Any]:
        own = {
            "generate": {
                "batch": self.generate_batch,
                "merged": self.generate_merged,
                "logprobs": self.generate_logprobs,
            },
            "continuous": {"step_tokens": self.continuous_tokens, "logprobs": self.continuous_logprobs},
        }
        shared = {"model_folder": ratchet["model_folder"], "prompts": ratchet["prompts"], "answers": self.answers}
        return {**shared, "lengths": self.lengths, **own[tool]}

    def wanted(self, tool: str, ratchet: Details) -> dict[str, Any]:
        return {"answer_tokens": sum(self.lengths), "prompts_digest": ratchet["digest"], "lengths_kept": True}

    def variants(self) -> Sequence[Variant]:
        best = self.generate_batch
        return [
            *(("generate", f"{n} at once", replace(self, generate_batch=n)) for n in self.sweep_generate),
            ("generate", f"{best} at once, adapter not merged", replace(self, generate_merged=False)),
            ("generate", f"{best} at once, with log-probabilities", replace(self, generate_logprobs=True)),
            *(("continuous", f"{n} tokens a step", replace(self, continuous_tokens=n)) for n in self.sweep_continuous),
            ("continuous", "no log-probabilities", replace(self, continuous_logprobs=False)),
        ]


@dataclass(frozen=True)
class Point:
    """One size of the growth row."""

    prompts: int
    answers: int
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, kw_only=True)
class GrowthRow(Row):
    """Ratchet alone as its work grows: one process for each size, so that each has its own peak memory.

    ``series`` names what grows; its exponent is fitted to the seconds of a round of sampling and update.
    """

    repeats: int = 3
    series: tuple[tuple[str, tuple[Point, ...]], ...]
    # Series name to the highest exponent allowed; memory may grow by so much over the prompts of a round.
    target_exponents: tuple[tuple[str, float], ...] = ()
    target_memory_growth: float = 0.05

    kind = "growth"
    scripts: ClassVar = {"ratchet": "growth_tool.py"}

    @property
    def points(self) -> list[Point]:
        """Every size once."""
        return list(dict.fromkeys(point for _, points in self.series for point in points))

    def shrunk(self) -> "GrowthRow":
        small = tuple(Point(prompts, 4, 16, 16) for prompts in (2, 4))
        return replace(self, repeats=1, series=(("answers", small), ("prompt length", (small[0], Point(2, 4, 32, 16)))))

    def order(self, point: Point, model: str) -> dict[str, Any]:
        """What the program is told for one size."""
        rl = {
            "prompts_per_round": point.prompts,
            "answers_per_prompt": point.answers,
            "max_answer_tokens": point.answer_tokens,
        }
        sizes = {"prompts": point.prompts, "answers": point.answers, "prompt_tokens": point.prompt_tokens}
        return {**sizes, "settings": run_settings(model, rl=rl)}


@dataclass(frozen=True, kw_only=True)
class OverheadRow(Row):
    """A real run through the worker: how much of a round is neither the model nor grading."""

    rounds: int
    target: float = 0.02
    # Settings laid over the demo's own.
    changes: tuple[tuple[str, Any], ...] = ()

    kind = "overhead"
    scripts: ClassVar = {"ratchet": "overhead_tool.py"}

    def shrunk(self) -> "OverheadRow":
        small = (("rl.prompts_per_round", 2), ("rl.max_answer_tokens", 16), ("rl.validation_prompts", 2))
        return replace(self, model="tiny", name="overhead-smoke", rounds=2, changes=small)


def run_settings(model: str, **given: Any) -> dict[str, Any]:
    """Return run settings that all rows share, with a row's own laid over them."""
    rl = {"rounds": 1000, "validation_prompts": 1, **given.pop("rl", {})}
    return {
        "model": model,
        "device": "cpu",
        "data": {"source": "math_pairs", "prompts": 8, "heldout": 0},
        "prompt": {"system_prompt": ""},
        "reward": {"format_bonus": "off"},
        "learning_rate": LEARNING_RATE,
        "lora": {"rank": LORA_RANK, "alpha": LORA_ALPHA},
        "rl": rl,
        **given,
    }


_SMOLLM2 = "smollm2-135m"

_ROUNDS = (
    RoundRow(
        name="tiny",
        model="tiny",
        quick=True,
        prompts=16,
        answers=8,
        answer_tokens=32,
        target=5.0,
        trl_answers=64,
        sweep_trl=(16, 32, 64, 128),
    ),
    RoundRow(
        name=_SMOLLM2,
        model=_SMOLLM2,
        quick=True,
        prompts=4,
        answers=8,
        answer_tokens=48,
        # Math Pairs' own instruction, which makes prompts of 63 tokens.
        system_prompt=None,
        target=3.0,
        trl_answers=8,
        sweep_trl=(4, 8, 16, 32),
    ),
    RoundRow(
        name=f"{_SMOLLM2}-examples",
        model=_SMOLLM2,
        pairs=3,
        prompts=16,
        answers=8,
        # The length of a right answer of the demo, such as "2 + 5 = 7, 5 + 2 = 7, 7 * 7 = 49" with its end.
        answer_tokens=27,
        worked_examples=3,
        largest=5,
        target=10.0,
        trl_prompts=4,
        trl_answers=8,
        sweep_trl=(2, 4, 8, 16),
    ),
)


def _update(prompt_tokens: int, answers: int) -> UpdateRow:
    """Return one row of the update. The one the design names a target for is a part of ``make bench``."""
    named = (prompt_tokens, answers) == (512, 8)
    return UpdateRow(
        name=f"update-{prompt_tokens}-g{answers}",
        model=_SMOLLM2,
        quick=named,
        # Rows whose step takes TRL minutes have fewer rounds.
        pairs=5 if prompt_tokens * answers <= 8192 else 3,
        prompts=2 if prompt_tokens == 64 else 1,
        answers=answers,
        prompt_tokens=prompt_tokens,
        answer_tokens=128,
        target=2.5 if named else None,
        memory_target=2.0 if named else None,
        trl_answers={64: 4, 512: 2, 2048: 1}[prompt_tokens],
    )


_UPDATES = tuple(_update(length, answers) for length in (64, 512, 2048) for answers in (4, 8, 16))


def _sampler(model: str, *, uneven: bool) -> SamplerRow:
    small = model == "tiny"
    return SamplerRow(
        name=f"sampler-{model}-{'uneven' if uneven else 'even'}",
        model=model,
        quick=small,
        pairs=5 if small else 3,
        prompts=16 if small else 4,
        answers=8,
        longest=128 if uneven else 48,
        uneven=uneven,
        system_prompt="" if small else None,
        target_generate=2.0 if uneven else None,
        target_continuous=1.0 if uneven else None,
        generate_batch=128 if small else 32,
        sweep_generate=(64, 128) if small else (16, 32),
    )


_SAMPLERS = tuple(_sampler(model, uneven=uneven) for model in ("tiny", _SMOLLM2) for uneven in (False, True))

_GROWTH = GrowthRow(
    name="growth",
    model="random-3m",
    series=(
        ("answers", tuple(Point(prompts, 8, 64, 32) for prompts in (16, 32, 64, 128, 256))),
        ("prompt length", tuple(Point(16, 8, tokens, 32) for tokens in (64, 128, 256, 512, 1024))),
        ("group size", tuple(Point(16, answers, 64, 32) for answers in (4, 8, 16, 32))),
    ),
    target_exponents=(("answers", 1.1), ("prompt length", 1.2)),
)

_OVERHEADS = (
    OverheadRow(name="overhead-tiny", model="tiny", quick=True, rounds=8),
    OverheadRow(name=f"overhead-{_SMOLLM2}", model=_SMOLLM2, rounds=3),
)

ROWS: dict[str, Row] = {row.name: row for row in (*_ROUNDS, *_UPDATES, *_SAMPLERS, _GROWTH, *_OVERHEADS)}
