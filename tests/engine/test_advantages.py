"""Advantages against hand-worked numbers and the properties training relies on."""

import pytest
import torch

from ratchet.engine.advantages import group_advantages, informative_groups


def test_grpo_divides_by_the_sample_std_plus_the_offset_worked_by_hand():
    # mean 0.25; deviations .75 -.25 -.25 -.25; squares sum to .75; std = sqrt(.75 / 3) = .5
    # .75 / .5001 = 1.4997001, -.25 / .5001 = -0.4999000
    advantages = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), scale="group_std")
    torch.testing.assert_close(advantages, torch.tensor([[1.4997001, -0.4999, -0.4999, -0.4999]]), atol=1e-6, rtol=0)


def test_dr_grpo_only_subtracts_the_mean():
    advantages = group_advantages(torch.tensor([[1.0, 0.0], [0.2, 0.6]]), scale="none")
    torch.testing.assert_close(advantages, torch.tensor([[0.5, -0.5], [-0.2, 0.2]]))


def test_the_offset_keeps_a_tiny_difference_from_counting_like_right_against_wrong():
    # rewards 0 and 2e-5: mean 1e-5, std = sqrt(2 * 1e-10) = 1.41421e-5; 1e-5 / 1.141421e-4 = 0.0876101
    advantages = group_advantages(torch.tensor([[0.0, 2e-5]], dtype=torch.float64), scale="group_std")
    torch.testing.assert_close(
        advantages, torch.tensor([[-0.0876101, 0.0876101]], dtype=torch.float64), atol=1e-7, rtol=0
    )


@pytest.mark.parametrize("scale", ["group_std", "none"])
@pytest.mark.parametrize(
    "group",
    [[0.0] * 8, [1.0] * 8, [0.98] * 15, [0.98, 0.98 + 6e-8]],
    ids=["all wrong", "all right", "mean is inexact", "apart by rounding"],
)
def test_a_group_that_agrees_teaches_exactly_nothing(group, scale):
    rewards = torch.tensor([group])
    assert not informative_groups(rewards).any()
    assert group_advantages(rewards, scale=scale).eq(0).all()


def test_a_group_is_informative_when_its_rewards_spread_by_more_than_a_millionth():
    rewards = torch.tensor([[0.5, 0.5 + 0.9e-6], [0.5, 0.5 + 1.1e-6], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert informative_groups(rewards).tolist() == [False, True, True, False]


def test_an_agreeing_group_does_not_silence_its_neighbours():
    advantages = group_advantages(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), scale="none")
    assert advantages.tolist() == [[0.5, -0.5], [0.0, 0.0], [-0.5, 0.5]]


def test_groups_do_not_leak_into_one_another():
    torch.manual_seed(0)
    rewards = torch.rand(5, 8)
    together = group_advantages(rewards, scale="group_std")
    alone = torch.cat([group_advantages(row[None], scale="group_std") for row in rewards])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(together.sum(dim=1), torch.zeros(5), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_of_the_rewards_is_kept(dtype):
    assert group_advantages(torch.tensor([[1.0, 0.0]], dtype=dtype), scale="group_std").dtype == dtype


@pytest.mark.parametrize(
    "rewards", [torch.zeros(8), torch.zeros(4, 1), torch.zeros(1, 2, 2)], ids=["flat", "no siblings", "nested"]
)
def test_shapes_that_cannot_be_groups_are_refused(rewards):
    with pytest.raises(ValueError, match="group size >= 2"):
        group_advantages(rewards, scale="none")
    with pytest.raises(ValueError, match="group size >= 2"):
        informative_groups(rewards)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_unusable_score_stops_here_and_not_in_the_weights(bad):
    with pytest.raises(ValueError, match="NaN or an infinity"):
        group_advantages(torch.tensor([[bad, 0.0]]), scale="group_std")
    with pytest.raises(ValueError, match="NaN or an infinity"):
        informative_groups(torch.tensor([[bad, 0.0]]))
