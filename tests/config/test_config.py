"""The settings: every one is labelled, limited and closed, rules between them are in words, defaults fill in once."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ratchet.config import (
    LOSS_DEFAULTS,
    BoxedData,
    ClassificationVerifier,
    CompositePart,
    CompositeVerifier,
    DeepMathData,
    FinalNumberVerifier,
    Gsm8kData,
    LimitSettings,
    LoraSettings,
    MathPairsData,
    MathPairsVerifier,
    MathVerifier,
    NumericVerifier,
    OptimizerSettings,
    PromptSettings,
    PythonVerifier,
    QaVerifier,
    RewardSettings,
    RlSettings,
    RunConfig,
    SamplerSettings,
    WorkedExample,
    walk_settings,
)

SETTINGS = list(walk_settings(RunConfig))


@pytest.mark.parametrize(("key", "field"), SETTINGS, ids=[key for key, _ in SETTINGS])
def test_every_setting_has_a_label_and_a_help_sentence(key, field):
    assert field.title
    assert field.title[0].isupper()
    assert field.description
    assert field.description.rstrip(")").endswith(".")


def test_settings_of_several_variants_mean_the_same_in_each():
    labels = {}
    for key, field in SETTINGS:
        labels.setdefault(key, set()).add(field.title)
    assert {key: found for key, found in labels.items() if len(found) > 1} == {}


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().seed = 1


RANGES = [
    # section, setting, least, most (None: no limit), just below, just above
    (RlSettings, "rounds", 1, 1000, 0, 1001),
    (RlSettings, "epochs", 1, 100, 0, 101),
    (RlSettings, "prompts_per_round", 1, 1024, 0, 1025),
    (RlSettings, "answers_per_prompt", 2, 32, 1, 33),
    (RlSettings, "max_answer_tokens", 16, 32_768, 15, 32_769),
    (SamplerSettings, "gpu_memory_share", 0.1, 0.95, 0.09, 0.96),
    (SamplerSettings, "importance_cap", 1, 100, 0.99, 101),
    (RlSettings, "clip_low", 0.0, 10.0, -0.1, 10.1),
    (RlSettings, "clip_high", 0.0, 10.0, -0.1, 10.1),
    (RlSettings, "beta", 0.0, 1.0, -0.1, 1.1),
    (RlSettings, "temperature", 0.01, 5.0, 0.0, 5.1),
    (RlSettings, "top_p", 0.01, 1.0, 0.0, 1.1),
    (RlSettings, "top_k", 0, 1_000_000, -1, 1_000_001),
    (RlSettings, "validation_prompts", 1, 1024, 0, 1025),
    (RlSettings, "no_signal_rounds", 1, 1000, 0, 1001),
    (RunConfig, "learning_rate", 1e-8, 1e-2, 9e-9, 1.1e-2),
    (RunConfig, "seed", 0, 2**31 - 1, -1, 2**31),
    (LoraSettings, "rank", 1, 256, 0, 257),
    (LoraSettings, "alpha", 1, 512, 0, 513),
    (LimitSettings, "time_hours", 0.001, 8760.0, 0.0, 8761.0),
    (MathPairsData, "prompts", 8, 100_000, 7, 100_001),
    (OptimizerSettings, "beta1", 0.0, 0.999, -0.1, 1.0),
    (RewardSettings, "format_weight", 0.001, 0.1, 0.0, 1.1),
    (MathVerifier, "limit_seconds", 0.001, 60.0, 0.0, 61.0),
    (NumericVerifier, "absolute_tolerance", 0.0, 1e308, -1e-9, float("inf")),
    (NumericVerifier, "relative_tolerance", 0.0, 1e308, -1e-9, float("nan")),
    (PromptSettings, "few_shot_examples", 0, 16, -1, 17),
]


@pytest.mark.parametrize(("section", "name", "least", "most", "below", "above"), RANGES, ids=[r[1] for r in RANGES])
def test_the_limits_of_a_setting_are_hard(section, name, least, most, below, above):
    for value in (least, most):
        assert getattr(section(**{name: value}), name) == value
    for value in (below, above):
        with pytest.raises(ValidationError):
            section(**{name: value})


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        (RlSettings, "rounds", True),
        (RlSettings, "rounds", "6"),
        (RlSettings, "rounds", 6.0),
        (RlSettings, "temperature", float("nan")),
        (RlSettings, "temperature", "1"),
        (RunConfig, "learning_rate", float("inf")),
        (RunConfig, "model", 5),
        (RunConfig, "device", "gpu"),
        (RunConfig, "config_version", 2),
        (RlSettings, "loss", "ppo"),
        (SamplerSettings, "backend", "sglang"),
        (RlSettings, "nonsense", 1),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_settings_are_strict_and_closed(section, name, value):
    with pytest.raises(ValidationError):
        section(**{name: value})


@pytest.mark.parametrize(
    ("batch", "group", "prompts", "choice"),
    [
        (13, 8, 64, "Choose 8 or 16."),
        (5, 8, 64, "Choose 8."),
        (1, 2, 1, "Choose 2."),
        (63, 8, 8, "Choose 56 or 64."),
        (20, 8, 2, "Choose 16, or raise Prompts per round."),
        (24, 8, 2, "Choose 16, or raise Prompts per round."),
    ],
)
def test_a_batch_that_does_not_go_with_the_group_is_refused_with_the_nearest_that_do(batch, group, prompts, choice):
    with pytest.raises(ValidationError) as caught:
        RlSettings(batch_size=batch, answers_per_prompt=group, prompts_per_round=prompts)
    assert f"Batch size is {batch}" in str(caught.value)
    assert choice in str(caught.value)


@given(batch=st.integers(1, 2048), group=st.integers(2, 32), prompts=st.integers(1, 64))
@settings(max_examples=300, deadline=None)
def test_every_suggested_batch_size_is_accepted(batch, group, prompts):
    try:
        accepted = RlSettings(batch_size=batch, answers_per_prompt=group, prompts_per_round=prompts)
    except ValidationError as error:
        _, _, choice = str(error).partition("Choose ")
        for suggested in choice.split(".")[0].split(",")[0].split(" or "):
            RlSettings(batch_size=int(suggested), answers_per_prompt=group, prompts_per_round=prompts)
    else:
        assert accepted.batch_size % group == 0


def test_a_heavy_bonus_needs_a_reason_in_words():
    with pytest.raises(ValidationError, match="Say why in Format reason"):
        RewardSettings(format_weight=0.5, format_reason="because")
    RewardSettings(format_weight=0.5, format_reason="the form is the task")


@pytest.mark.parametrize("reward", [{"format_bonus": "pattern"}, {"format_pattern": "x"}])
def test_a_pattern_and_its_bonus_go_together(reward):
    with pytest.raises(ValidationError, match="go together"):
        RewardSettings(**reward)


def test_numbers_of_math_pairs_must_be_in_order():
    with pytest.raises(ValidationError, match="Smallest number is 9"):
        MathPairsData(smallest=9, largest=9)


SOURCES = [
    (MathPairsData(), MathPairsVerifier, "tags"),
    (Gsm8kData(), FinalNumberVerifier, "tags"),
    (BoxedData(path="rows.jsonl"), MathVerifier, "boxed"),
    (DeepMathData(), MathVerifier, "boxed"),
]


@pytest.mark.parametrize(("data", "verifier", "bonus"), SOURCES, ids=[data.source for data, _, _ in SOURCES])
def test_a_source_brings_its_verifier_and_that_its_bonus(data, verifier, bonus):
    resolved = RunConfig(data=data).resolved()
    assert isinstance(resolved.verifier, verifier)
    assert (resolved.verifier.read, resolved.reward.format_bonus) == ("whole", bonus)


def test_a_box_is_required_for_boxed_datasets_alone():
    required = [RunConfig(data=data).resolved().verifier.require_boxed for data, *_ in SOURCES[2:]]
    assert required == [True, False]
    own = RunConfig(data=BoxedData(path="x"), verifier=MathVerifier(require_boxed=False)).resolved()
    assert own.verifier.require_boxed is False


def test_a_function_of_the_users_own_has_no_bonus_unless_asked_for():
    assert RunConfig(verifier=PythonVerifier()).resolved().reward.format_bonus == "off"


@pytest.mark.parametrize("loss", LOSS_DEFAULTS)
def test_a_loss_brings_its_clip_bounds_and_dapo_refills(loss):
    rl = RunConfig(rl=RlSettings(loss=loss)).resolved().rl
    assert (rl.clip_low, rl.clip_high) == LOSS_DEFAULTS[loss][:2]
    assert rl.dynamic_sampling == ("refill" if loss == "dapo" else "off")


def test_what_the_user_chose_is_kept():
    rl = RlSettings(loss="dapo", clip_low=0.1, clip_high=0.0, dynamic_sampling="off")
    assert RunConfig(rl=rl).resolved().rl == rl


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
examples = st.builds(WorkedExample, user=texts, assistant=texts)
configs = st.builds(
    RunConfig,
    model=texts,
    seed=st.integers(0, 2**31 - 1),
    learning_rate=st.floats(1e-8, 1e-2),
    data=st.one_of(
        st.builds(MathPairsData, prompts=st.integers(8, 1000), pairs=st.integers(1, 6)),
        st.builds(
            Gsm8kData, path=texts, rows=st.none() | st.integers(1, 99), pick=st.sampled_from(["first", "sample"])
        ),
        st.builds(BoxedData, path=texts, overlong=st.sampled_from(["refuse", "leave_out"])),
        st.builds(DeepMathData, path=texts),
    ),
    verifier=st.one_of(
        st.none(),
        st.builds(MathPairsVerifier),
        st.builds(FinalNumberVerifier, read=st.sampled_from([None, "whole", "answer_tag"])),
        st.builds(MathVerifier, require_boxed=st.none() | st.booleans(), limit_seconds=st.floats(0.1, 60)),
        st.builds(PythonVerifier, module=texts, name=texts, source_hash=texts),
    ),
    prompt=st.builds(
        PromptSettings,
        system_prompt=st.none() | texts,
        few_shot_examples=st.integers(0, 16) | st.lists(examples, max_size=3).map(tuple),
        template_options=st.dictionaries(
            texts, st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | texts, max_size=3
        ),
    ),
    rl=st.builds(
        RlSettings,
        rounds=st.integers(1, 1000) | st.just("full"),
        loss=st.sampled_from(list(LOSS_DEFAULTS)),
        temperature=st.floats(0.01, 5),
        batch_size=st.none() | st.integers(1, 64).map(lambda n: 8 * n),
    ),
    limits=st.builds(LimitSettings, time_hours=st.none() | st.floats(0.01, 8760)),
)


@given(configs)
@settings(max_examples=100, deadline=None)
def test_settings_survive_the_way_through_json(config):
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert RunConfig.model_validate_json(json.dumps(config.model_dump(mode="json"))) == config


@given(configs)
@settings(max_examples=100, deadline=None)
def test_filling_in_what_was_left_out_twice_changes_nothing(config):
    resolved = config.resolved()
    assert resolved.resolved() == resolved
    assert RunConfig.model_validate_json(resolved.model_dump_json()).resolved() == resolved


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("yes",), "at least 2"),
        (tuple(map(str, range(1001))), "at most 1000"),
        (("yes", "No", " YES "), "entries 1 and 3 are the same"),
        (("strasse", "Straße"), "entries 1 and 2 are the same"),
        (("yes", " "), "entry 2 is blank"),
        (("yes", ""), "at least 1 character"),
        (("yes", 1), "valid string"),
    ],
)
def test_labels_are_told_apart(labels, said):
    with pytest.raises(ValidationError, match=said):
        ClassificationVerifier(labels=labels)


def test_two_to_a_thousand_labels_may_be_given():
    for count in (2, 1000):
        assert len(ClassificationVerifier(labels=tuple(map(str, range(count)))).labels) == count


PART = CompositePart(verifier=QaVerifier())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"parts": (PART,)}, "at least 2"),
        ({"parts": (PART,) * 9}, "at most 8"),
        ({"parts": (PART, PART), "correctness_from": 2}, r"there are 2 parts, counted from 0\. Choose 0 to 1"),
        ({"parts": (PART, PART), "correctness_from": -1}, "greater than or equal to 0"),
        ({"parts": (CompositePart(verifier=PythonVerifier()),) * 2}, "two Python functions"),
    ],
)
def test_a_composite_has_two_to_eight_parts_and_one_of_them_is_correctness(settings, said):
    with pytest.raises(ValidationError, match=said):
        CompositeVerifier(**settings)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan"), 1e7])
def test_a_weight_is_above_zero_and_finite(weight):
    with pytest.raises(ValidationError):
        CompositePart(verifier=QaVerifier(), weight=weight)


def test_parts_take_what_the_composite_says_of_reading_and_what_the_source_says_of_boxes():
    parts = (PART, CompositePart(verifier=MathVerifier(read="answer_tag")))
    config = RunConfig(data=BoxedData(path="x"), verifier=CompositeVerifier(read="after_reasoning", parts=parts))
    whole = config.resolved().verifier
    assert [part.verifier.read for part in whole.parts] == ["after_reasoning", "answer_tag"]
    assert whole.parts[1].verifier.require_boxed is True
    assert config.resolved().resolved() == config.resolved()
    assert config.resolved().reward.format_bonus == "off"
    silent = RunConfig(verifier=CompositeVerifier(parts=parts)).resolved().verifier
    assert (silent.read, silent.parts[0].verifier.read) == ("whole", "whole")
    assert silent.parts[1].verifier.require_boxed is False
