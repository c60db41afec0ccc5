"""How much memory there is: the machine's, or the least that a control group around this process allows."""

import os

import pytest

from ratchet.models.footprint import host_memory

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def system(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (groups / "outer" / "inner").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    return proc, groups


def test_without_limits_it_is_the_machines(system, tmp_path):
    assert host_memory(*system) == MACHINE
    assert host_memory(tmp_path / "none", tmp_path / "nothing") == MACHINE


@pytest.mark.parametrize("place", ["outer/inner", "outer", "."])
def test_the_own_group_and_those_around_it_count(system, place):
    (system[1] / place / "memory.max").write_text("1048576\n")
    assert host_memory(*system) == 1 << 20


def test_no_limit_is_written_as_a_word_and_a_larger_one_is_none(system):
    (system[1] / "outer" / "memory.max").write_text("max\n")
    (system[1] / "memory.max").write_text(f"{2 * MACHINE}\n")
    assert host_memory(*system) == MACHINE


def test_the_first_version_of_control_groups_counts_too(system):
    (system[1] / "memory").mkdir()
    (system[1] / "memory" / "memory.limit_in_bytes").write_text("2097152\n")
    assert host_memory(*system) == 2 << 20
