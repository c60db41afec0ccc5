"""Which numbers each kind of verifier reports, by the ids that settings, records and the API use.

One table for forms and references. The first metric of a kind is its correctness, unless its settings name another.
Every metric lies in 0..1 for one answer, so that it can be a reward.
"""

METRICS: dict[str, dict[str, str]] = {
    "math_pairs": {
        "accuracy": "The last number has the expected value.",
        "accuracy_strict": "It is also written exactly as in the reference.",
    },
    "final_number": {"accuracy": "The last number has the expected value."},
    "math": {"accuracy": "The boxed or last expression equals the reference, as mathematics."},
    "numeric": {"numeric_accuracy": "The answer is one number, within the tolerances of the reference."},
    "qa": {
        "normalized_exact_match": "The same text but for capitals, punctuation, articles and blanks.",
        "token_f1": "Harmonic mean of the shares of words that answer and reference have in common.",
    },
    "classification": {"label_accuracy": "The answer is the right label."},
    "structured_json": {
        "field_accuracy": "Share of the compared fields whose value equals the reference's.",
        "schema_valid": "The document follows the JSON schema.",
        "json_exact_match": "The whole document equals the reference.",
    },
    "tool_call": {
        "call_match": "The expected calls, no more and no fewer, with the expected arguments.",
        "name_match": "The expected tools are called, as often as expected, whatever the arguments.",
        "call_valid": "Every call names a listed tool and its arguments follow the tool's schema.",
    },
    "code": {
        "tests_passed": "Share of the row's tests that the program passes.",
        "all_passed": "The program passes every test of the row.",
    },
    "reasoning_gym": {"score": "What the task's own scorer gives."},
    "custom": {"score": "What your metric returns."},
    "composite": {"correctness": "What the part that counts as correctness finds; all parts are reported beside it."},
    "python": {"score": "What your function returns."},
}
