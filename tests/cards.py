"""Verifier report cards made by hand, for those who store, show and confirm them."""

from ratchet.run.report_card import CardSetup, ProbeResult, Probes, PromptScores, ReportCard, WorthReading

KEY = "0123456789abcdef" * 2


def made(**changes):
    fields = {
        "verifier": {"kind": "math_pairs", "read": "whole"}, "reward": {"format_bonus": "off"}, "data": "sha256:d",
        "model": "sha256:m", "quantization": "none", "prompt": {"system_prompt": "", "worked_examples": []},
        "model_name": "tiny", "source": "math_pairs", "training_prompts": 32, "temperature": 1.0, "top_p": 1.0,
        "top_k": 0, "max_answer_tokens": 32, "seed": 0, "device": "cpu", "versions": {"torch": "2"},
    }  # fmt: skip
    return CardSetup(**{**fields, **changes})


def worth(text="56", **changes):
    fields = {
        "why": "highest score", "prompt_id": 7, "prompt": "(3 + 4) * (2 + 6)", "ground_truth": "56", "text": text,
        "reward": 1.0, "correctness": 1.0, "format": 0.0, "parts": {"accuracy_strict": 1.0}, "outcome": "graded",
        "failure": None, "tokens": 3,
    }  # fmt: skip
    return WorthReading(**{**fields, **changes})


def card(**changes):
    """Return a card of eight answers to two prompts: three right, one unparseable, four wrong."""
    fields = {
        "key": KEY, "made_at": "2026-11-29T22:00:00+00:00", "made_with": made(), "answers": 8, "was_extended": False,
        "scores": [
            PromptScores(prompt_id=7, rewards=[1.0, 1.0, 1.0, 0.0], has_signal=True),
            PromptScores(prompt_id=9, rewards=[0.0] * 4, has_signal=False),
        ],
        "histogram": [5, 0, 0, 0, 0, 0, 0, 0, 0, 3], "mean_reward": 0.375, "accuracy": 0.375, "right": 3, "partly": 0,
        "wrong": 4, "outcomes": {"graded": 7, "unparseable": 1, "cut_off": 0, "failed": 0}, "failures": {},
        "format": 0.0, "parts": {"accuracy_strict": 0.375}, "mean_tokens": 4.0, "longest_tokens": 9,
        "probes": Probes(prompts=2, results=[
            ProbeResult(name="echo", what="the prompt repeated", must_pass=False, tried=2, wrong=1, failed=0),
            ProbeResult(name="right", what="the right answer", must_pass=True, tried=2, wrong=0, failed=0),
        ]),
        "worth_reading": [worth()], "advice": ["Look at this."], "refusal": "",
    }  # fmt: skip
    return ReportCard(**{**fields, **changes})
