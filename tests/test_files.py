"""What is on disk is for its owner: others read at most what the umask lets them, and write nothing."""

import os
import stat

import pytest

from ratchet.files import make_folder, ratchet_home
from ratchet.run.run_folder import RunFolder
from ratchet.store import Database

from .small_runs import small, trained


@pytest.fixture(params=[0o000, 0o022, 0o077], ids="umask {:03o}".format)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes_below(folder):
    """Return the mode of a folder and of all that is in it."""
    return {path: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")] if not path.is_symlink()}


def test_nobody_else_looks_into_the_home_or_its_database(umask):
    Database().close()
    make_folder(ratchet_home() / "models" / "one")
    home = ratchet_home()
    modes = modes_below(home)
    assert modes[home] == 0o700
    assert {mode for path, mode in modes.items() if path.name.startswith("ratchet.db")} == {0o600}
    assert modes[home / "models" / "one"] == 0o755 & ~umask


def test_nobody_else_writes_in_a_run_folder_or_an_adapter(umask, tmp_path):
    folder = trained(tmp_path / "deep" / "down" / "run", rl=small(rl__rounds="1").rl.model_dump())
    modes = modes_below(tmp_path / "deep")
    assert RunFolder(folder.path).adapter_path in modes
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o022} == {}
    assert modes[folder.rollouts_path] == 0o700
