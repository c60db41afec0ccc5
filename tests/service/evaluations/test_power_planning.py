"""What is said beforehand of how many questions show a gain: in points, as it was asked."""

import json

import pytest

from ratchet.errors import InvalidSetting
from ratchet.service.evaluations.benchmarks import plan_power


@pytest.mark.parametrize(("points", "shown"), [(0.0001, "0.0001"), (0.0005, "0.0005")])
def test_a_gain_that_no_benchmark_shows_is_refused_in_the_points_that_were_given(points, shown):
    with pytest.raises(InvalidSetting) as refused:
        plan_power(points, 40)
    assert str(refused.value) == (
        f"A gain of {shown} points over 40 percent takes more than 100,000,000 questions to detect. Give a larger gain."
    )
    assert refused.value.field == "gain"


def test_so_it_is_on_the_command_line(ratchet_command):
    code, out, err = ratchet_command("bench", "power", "--gain", "0.0001", "--base", "40", "--json")
    assert code == 2, err
    assert json.loads(out)["error"]["message"].startswith("A gain of 0.0001 points over 40 percent")
    assert "1e-06" not in out + err


def test_the_readmes_gain_of_five_points(ratchet_command):
    code, out, err = ratchet_command("bench", "power", "--gain", "5", "--base", "40", "--questions", "1000")
    assert code == 0, err
    assert "a gain of 5 points over 40 percent in four of five evaluations takes about 805 questions" in out
    assert "With 1,000 questions it is detected in " in out
