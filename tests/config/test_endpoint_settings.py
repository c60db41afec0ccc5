"""The settings of an endpoint: labelled, limited, closed, and refusing what may hold a secret without repeating it."""

import pytest
from pydantic import ValidationError

from ratchet.config import walk_settings
from ratchet.config.endpoint_settings import EndpointSettings, secret_field

SETTINGS = list(walk_settings(EndpointSettings))


def settings_of(**fields):
    return EndpointSettings(**{"url": "http://localhost:8000/v1", "model": "small", **fields})


@pytest.mark.parametrize(("key", "field"), SETTINGS, ids=[key for key, _ in SETTINGS])
def test_every_setting_has_a_label_and_a_help_sentence(key, field):
    assert field.title[0].isupper()
    assert field.description.endswith(".")


@pytest.mark.parametrize(
    ("name", "least", "most", "below", "above"),
    [
        ("concurrency", 1, 64, 0, 65),
        ("timeout_seconds", 0.01, 3600, 0.009, 3601),
        ("attempts", 1, 20, 0, 21),
        ("rate_limit_minutes", 0.001, 1440, 0, 1441),
    ],
)
def test_the_limits_of_a_setting_are_hard(name, least, most, below, above):
    for value in (least, most):
        assert getattr(settings_of(**{name: value}), name) == value
    for value in (below, above):
        with pytest.raises(ValidationError):
            settings_of(**{name: value})


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8000/v1",
        "https://api.openai.com/v1",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "http://[::1]:8000/v1",
    ],
)
def test_addresses_of_endpoints(url):
    assert settings_of(url=url).url == url
    assert settings_of(url=f"{url}/").url == url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/v1", "must begin with http"),
        ("localhost:8000/v1", "must begin with http"),
        ("http:///v1", "must begin with http"),
        ("http://ho st/v1", "must begin with http"),
        ("http://host:99999/v1", "is not a valid address"),
        ("http://[::1/v1", "is not a valid address"),
        ("http://localhost:8000", "where the API begins"),
        ("http://localhost:8000/", "where the API begins"),
        ("http://localhost:8000/v1/chat/completions", "where the API begins"),
        ("http://user:hunter2@host/v1", "contains a user or password"),
        ("ftp://user:hunter2@host/v1", "contains a user or password"),
        ("http://host/v1?api-key=hunter2", "after ?"),
        ("http://host/v1#hunter2", "after ?"),
        ("", "must begin with http"),
    ],
)
def test_addresses_that_are_refused_are_not_repeated(url, says):
    with pytest.raises(ValidationError) as refused:
        settings_of(url=url)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("key", ["sk-Abc0123", "hf_AbCdEfGh", "gsk_abc", "", "A B", "A" * 65])
def test_a_key_given_as_the_name_of_its_variable_is_refused_and_not_repeated(key):
    with pytest.raises(ValidationError) as refused:
        settings_of(api_key_env=key)
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize(
    "extra", [{"messages": []}, {"n": 2}, {"stream": True}, {"temperature": 0.5}, {"seed": 1}, {"x": float("nan")}]
)
def test_extra_fields_may_not_change_what_is_asked(extra):
    with pytest.raises(ValidationError, match=r"Extra fields|finite"):
        settings_of(extra_body=extra)


def test_extra_fields_are_any_json():
    extra = {"reasoning": {"effort": "low", "exclude": [1, None, 2.5]}, "temperature": None}
    assert settings_of(extra_body=extra).extra_body == extra


def test_one_price_alone_is_refused_and_nothing_is_free_by_default():
    assert settings_of().price_per_million_prompt_tokens is None
    with pytest.raises(ValidationError, match="Give both"):
        settings_of(price_per_million_answer_tokens=1.0)
    assert settings_of(price_per_million_prompt_tokens=0.0, price_per_million_answer_tokens=1.5)


def test_stored_settings_are_read_back():
    settings = settings_of(extra_body={"a": [1]}, api_key_env="MY_KEY")
    assert EndpointSettings.model_validate(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"api_key": "x"}, "api_key"),
        ({"Api-Key": "x"}, "Api-Key"),
        ({"options": [{"auth_token": "x"}]}, "auth_token"),
        ({"headers": {"Authorization": "Basic eA=="}}, "Authorization"),
        ({"client_secret": "x"}, "client_secret"),
        ({"db_password": "x"}, "db_password"),
        ({"note": "use sk-abcdefghijklmnop"}, "note"),
        ({"any": ["Bearer abcdefghijklmnop"]}, "any"),
    ],
)
def test_what_looks_like_a_key_is_named(extra, named):
    assert secret_field(extra) == named


@pytest.mark.parametrize(
    "extra",
    [{"max_thinking_tokens": 5}, {"api_key": None}, {"stop_token_ids": [1]}, {"tokenizer": "x"}, {"user": "secretary"}],
)
def test_other_extra_fields_are_no_keys(extra):
    assert secret_field(extra) is None
