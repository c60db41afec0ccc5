"""Artifacts in a folder and in a bucket of a real server: what is sent, what a reader sees, what damage is called."""

import hashlib
import json
import stat
import threading
import time
from pathlib import Path

import pytest

from ratchet.errors import Conflict, Interrupted, InvalidSetting, NotFound, StorageUnavailable
from ratchet.store.artifact_store import ArtifactStore, files_of

FILES = {
    "adapter/adapter_config.json": b"{}",
    "adapter/adapter_model.safetensors": b"weights" * 1000,
    "run.json": b'{"id": "r1"}',
    "config.json": b"{}",
    "events.jsonl": b'{"seq": 1}\n',
    "run.log": b"",
    "checkpoint.safetensors": bytes(range(256)) * 40_000,  # more than one piece
    "rollouts/round-001.jsonl": '{"text": "\u2713"}\n'.encode(),
}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    for path, content in FILES.items():
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_bytes(content)
    for name in (".lock", ".adapter.tmp/adapter_model.safetensors", "heartbeat.json", "stop.json"):
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_bytes(b"of the moment")
    return made


@pytest.fixture
def store(each_storage):
    return ArtifactStore(each_storage)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tampered(store, request, path, change):
    """Change the one object of a file behind the store's back; ``change`` of None removes it."""
    file = store.manifest("r1")[path]
    if store._storage.folder is None:
        client, key = request.getfixturevalue("bucket_server").client(), f"of/mine/r1/objects/{path}/{file.sha256}"
        if change is None:
            client.delete_object(Bucket="runs", Key=key)
        else:
            body = client.get_object(Bucket="runs", Key=key)["Body"].read()
            client.put_object(Bucket="runs", Key=key, Body=change(body))
    else:
        place = store._storage.folder / f"r1/objects/{path}/{file.sha256}"
        content = place.read_bytes()
        place.unlink()
        if change is not None:
            place.write_bytes(change(content))


def flip(content):
    return content[:100] + bytes([content[100] ^ 1]) + content[101:]


def test_the_adapter_goes_first_and_what_is_of_the_moment_stays(folder):
    assert files_of(folder) == list(FILES)


def test_what_is_sent_comes_back_and_only_what_changed_is_sent_again(store, folder, tmp_path):
    assert store.upload("r1", folder, files_of(folder)) == len(FILES)
    assert store.upload("r1", folder, files_of(folder)) == 0
    listed = store.manifest("r1")
    assert {path: (file.sha256, file.bytes) for path, file in listed.items()} == {
        path: (hashlib.sha256(content).hexdigest(), len(content)) for path, content in FILES.items()
    }
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"seq": 2}\n')
    (folder / "rollouts/round-001.jsonl").unlink()
    (folder / "rollouts/round-002.jsonl").write_bytes(b"{}\n")
    assert store.missing("r1", folder, files_of(folder)) == ["events.jsonl", "rollouts/round-002.jsonl"]
    assert store.upload("r1", folder, files_of(folder)) == 2
    assert store.missing("r1", folder, files_of(folder)) == []
    assert store.verify("r1") == []
    # Rollouts that the folder had no room for stay.
    expected = {**FILES, "events.jsonl": b'{"seq": 1}\n{"seq": 2}\n', "rollouts/round-002.jsonl": b"{}\n"}
    assert store.fetch("r1", tmp_path / "new/copy") == len(expected)
    assert contents(tmp_path / "new/copy") == expected
    # A store of another process, which knows nothing yet.
    assert ArtifactStore(store._storage.url).upload("r1", folder, files_of(folder)) == 0


def test_contents_that_were_replaced_do_not_pile_up(store, folder, request):
    for number in range(3):
        (folder / "checkpoint.safetensors").write_bytes(b"%d" % number)
        store.upload("r1", folder, files_of(folder))
    if store._storage.folder is None:
        names = request.getfixturevalue("bucket_server").names()
        assert all(name.startswith("of/mine/r1/") for name in names)
    else:
        names = [str(path) for path in store._storage.folder.rglob("*") if path.is_file()]
    assert len(names) == len(FILES) + 1
    assert len([name for name in names if "checkpoint" in name]) == 1


@pytest.mark.parametrize(("change", "path"), [(flip, "adapter/adapter_model.safetensors"), (lambda c: c[:-1], "checkpoint.safetensors"), (None, "events.jsonl")])  # fmt: skip
def test_a_damaged_file_is_named_and_nothing_is_fetched(store, folder, tmp_path, request, change, path):
    store.upload("r1", folder, files_of(folder))
    tampered(store, request, path, change)
    assert store.verify("r1") == [path]
    with pytest.raises(Conflict, match="1 files of run r1 are damaged or gone") as refused:
        store.fetch("r1", tmp_path / "copy")
    assert path in str(refused.value)
    assert "ratchet runs upload r1" in str(refused.value)
    assert [entry.name for entry in tmp_path.iterdir() if "copy" in entry.name] == []
    assert store.upload("r1", folder, files_of(folder), again=[path]) == 1
    assert store.verify("r1") == []
    assert store.fetch("r1", tmp_path / "copy") == len(FILES)


def test_a_damaged_manifest_is_said_and_the_run_can_be_sent_again(store, folder, tmp_path):
    store.upload("r1", folder, files_of(folder))
    for broken in (
        b"{",
        b'{"version": 9, "files": {}}',
        b'{"version": 1, "files": {"../../x": {"sha256": "' + b"0" * 64 + b'", "bytes": 1}}}',
    ):
        store._storage.replace("r1/manifest.json", broken)
        with pytest.raises(Conflict, match="is damaged, or of another version"):
            store.fetch("r1", tmp_path / "copy")
    assert store.upload("r1", folder, files_of(folder)) == len(FILES)
    assert store.fetch("r1", tmp_path / "copy") == len(FILES)


def test_what_is_not_there_is_said(store, folder, tmp_path):
    with pytest.raises(NotFound, match="has no files of run r2"):
        store.fetch("r2", tmp_path / "copy")
    with pytest.raises(NotFound, match="no id of a run"):
        store.fetch("../r2", tmp_path / "copy")
    store.upload("r1", folder, files_of(folder))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    with pytest.raises(Conflict, match="is not empty"):
        store.fetch("r1", tmp_path / "taken")


def test_a_reader_sees_one_moment_while_the_run_is_sent_again_and_again(store, folder, tmp_path):
    """Adapter and journal of each upload carry the same number: a copy that mixes two of them would show it."""
    names = ["adapter/adapter_model.safetensors", "events.jsonl"]
    over = threading.Event()

    def send():
        number = 0
        while not over.is_set():
            number += 1
            for name in names:
                (folder / name).write_bytes(b"%d" % number * 1000)
            store.upload("r1", folder, names)

    (folder / "x").touch()
    store.upload("r1", folder, names)
    sender = threading.Thread(target=send)
    sender.start()
    seen = set()
    try:
        for attempt in range(10):
            target = tmp_path / f"copy-{attempt}"
            try:
                ArtifactStore(store._storage.url).fetch("r1", target)
            except Conflict:
                continue  # three manifests in a row were replaced while they were read: said, not mixed
            found = set(contents(target).values())
            seen |= found
            assert len(found) == 1 or found == {FILES[name] for name in names}
    finally:
        over.set()
        sender.join(60)
    assert len(seen) > 1


def test_a_file_that_is_written_over_while_it_is_sent_is_left_to_the_next_time(store, folder):
    asked = []

    def check():
        asked.append(1)
        if len(asked) == 2:  # once before the file, then between its pieces
            (folder / "checkpoint.safetensors").write_bytes(b"shorter")

    assert store.upload("r1", folder, ["checkpoint.safetensors"], check=check) == 0
    assert len(asked) > 1
    assert store.upload("r1", folder, ["checkpoint.safetensors"]) == 1
    assert store.verify("r1") == []


def test_an_upload_that_is_given_up_leaves_what_was_there(store, folder, tmp_path):
    store.upload("r1", folder, files_of(folder))
    before = store.manifest("r1")
    (folder / "checkpoint.safetensors").write_bytes(b"new" * 6_000_000)
    (folder / "adapter/adapter_model.safetensors").write_bytes(b"new")
    asked = []

    def check():
        asked.append(1)
        if len(asked) > len(FILES):
            raise Interrupted("given up")

    with pytest.raises(Interrupted):
        store.upload("r1", folder, files_of(folder), check=check)
    assert store.manifest("r1") == before
    assert store.fetch("r1", tmp_path / "copy") == len(FILES)
    assert contents(tmp_path / "copy") == FILES
    assert store.upload("r1", folder, files_of(folder)) == 2


def test_rollouts_are_their_owners_alone(folder, tmp_path):
    (tmp_path / "storage").mkdir()
    store = ArtifactStore(str(tmp_path / "storage"))
    store.upload("r1", folder, files_of(folder))
    file = store.manifest("r1")["rollouts/round-001.jsonl"]
    place = tmp_path / "storage/r1/objects/rollouts/round-001.jsonl" / file.sha256
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    store.fetch("r1", tmp_path / "copy")
    assert stat.S_IMODE((tmp_path / "copy/rollouts").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "copy/rollouts/round-001.jsonl").stat().st_mode) == 0o600


def test_a_bucket_shows_nothing_to_strangers(bucket_server, folder):
    ArtifactStore("s3://runs").upload("r1", folder, files_of(folder))
    everyone = "http://acs.amazonaws.com/groups/global/AllUsers"
    client = bucket_server.client()
    for name in bucket_server.names():
        grants = client.get_object_acl(Bucket="runs", Key=name)["Grants"]
        assert everyone not in json.dumps(grants), name


@pytest.mark.parametrize("url", ["here", "./here", "gs://bucket/x", "s3://", "s3://B/x", "file://here", "http://x/y"])
def test_what_is_no_storage_is_refused(url):
    with pytest.raises(InvalidSetting, match="RATCHET_ARTIFACTS") as refused:
        ArtifactStore(url)
    assert repr(url) in str(refused.value)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    import fsspec

    def missing(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(InvalidSetting, match=r"pip install 'ratchet-rl\[s3\]'"):
        ArtifactStore("s3://runs/x")


def test_a_storage_within_the_runs_folder_is_refused(folder):
    for url in (folder, folder.parent):
        store = ArtifactStore(str(url))
        run = folder.name if url == folder.parent else "r1"
        with pytest.raises(InvalidSetting, match="into its own folder"):
            store.upload(run, folder, files_of(folder))


def test_a_folder_that_is_not_mounted_is_not_made(tmp_path, folder):
    store = ArtifactStore(str(tmp_path / "mount"))
    with pytest.raises(StorageUnavailable, match="mount what belongs there"):
        store.upload("r1", folder, files_of(folder))
    assert not (tmp_path / "mount").exists()


def test_a_full_disk_of_the_storage_is_said(tmp_path, folder, monkeypatch):
    (tmp_path / "storage/r1/objects/run.json").mkdir(parents=True)
    full = Path("/dev/full")
    content = hashlib.sha256(FILES["run.json"]).hexdigest()
    (tmp_path / f"storage/r1/objects/run.json/{content}").symlink_to(full)
    with pytest.raises(StorageUnavailable, match=r"No space left on device.*Free some space there"):
        ArtifactStore(str(tmp_path / "storage")).upload("r1", folder, ["run.json"])


def test_a_bucket_that_vanishes_is_said_and_used_again_when_it_is_back(bucket_server, folder, tmp_path):
    store = ArtifactStore("s3://runs/x")
    store.upload("r1", folder, files_of(folder))
    client = bucket_server.client()
    for name in bucket_server.names():
        client.delete_object(Bucket="runs", Key=name)
    client.delete_bucket(Bucket="runs")
    for use in (lambda: store.upload("r1", folder, files_of(folder)), lambda: store.fetch("r1", tmp_path / "copy")):
        with pytest.raises(StorageUnavailable, match=r"s3://runs/x cannot be used.*Make the bucket"):
            use()
    client.create_bucket(Bucket="runs")
    assert store.upload("r1", folder, files_of(folder)) == len(FILES)


def test_wrong_keys_are_said_and_not_shown(bucket_server, folder, monkeypatch):
    store = ArtifactStore("s3://runs/x")
    bucket_server.check_keys()
    with pytest.raises(StorageUnavailable, match="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as refused:
        store.upload("r1", folder, files_of(folder))
    assert "hunter2" not in str(refused.value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StorageUnavailable, match="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        ArtifactStore("s3://runs/x").upload("r1", folder, files_of(folder))


def test_a_server_that_is_killed_in_the_middle_is_said_soon(bucket_server, folder):
    store = ArtifactStore("s3://runs/x")
    asked = []

    def check():
        asked.append(1)
        if len(asked) == 4:
            bucket_server.kill()

    started = time.monotonic()
    with pytest.raises(StorageUnavailable, match="Check that its server runs"):
        store.upload("r1", folder, files_of(folder), check=check)
    assert time.monotonic() - started < 60
    bucket_server.start()
    assert store.upload("r1", folder, files_of(folder)) == len(FILES)
    assert store.verify("r1") == []
