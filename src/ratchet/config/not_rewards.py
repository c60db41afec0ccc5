"""Measures that people know by name and that are never a reward here, with the reason for each kind of them.

A reward must say of one answer, alone and the same each time, whether it is right. A table of names is all there is:
none of these measures is computed anywhere.
"""

import re

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
    if not isinstance(name, str):
        return None
    plain = re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")
    return next(
        (
            reason
            for known, reason in _REASONS.items()
            if plain == known or (plain.startswith(known) and _SIZES.fullmatch(plain[len(known) :]))
        ),
        None,
    )
