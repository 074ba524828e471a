from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from atoll.training import checkpoint as module
from atoll.training.checkpoint import CheckpointError, CheckpointStore, Saved, SaveFailed

TENSORS = {"weights": np.arange(1000, dtype=np.float32)}


def tensors(number: int) -> dict[str, np.ndarray]:
    return {"weights": np.full(5000, number, np.float32)}


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def store(tmp_path, warnings):
    return CheckpointStore(tmp_path / "new" / "folder", on_warning=warnings.append, sleep=lambda _: None)


def failing(monkeypatch, code, times):
    """Let the next ``times`` writes of tensors fail half-way with ``code``."""
    plain, left = module.write_tensors, [times]

    def save(values, path):
        if left[0] > 0:
            left[0] -= 1
            path.write_bytes(b"half")
            raise OSError(code, os.strerror(code), str(path))
        return plain(values, path)

    monkeypatch.setattr(module, "write_tensors", save)


def test_what_was_saved_is_loaded(store):
    assert store.load_latest() is None
    assert isinstance(store.save(TENSORS, {"round": 3}), Saved)
    loaded = store.load_latest()
    assert (loaded.number, loaded.state) == (1, {"round": 3})
    assert np.array_equal(loaded.tensors["weights"], TENSORS["weights"])


def test_the_first_save_makes_the_folder_where_it_was_meant_to_be(tmp_path, monkeypatch):
    """CKP-04: keep=2, folder absent, relative path, another working directory by then."""
    monkeypatch.chdir(tmp_path)
    store = CheckpointStore("relative", keep=2)  # type: ignore[arg-type]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert isinstance(store.save(TENSORS, {}), Saved)
    assert len(list((tmp_path / "relative").iterdir())) == 2


def test_500_saves_leave_three_checkpoints_and_nothing_else(tmp_path, monkeypatch):
    """CKP-09"""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    store = CheckpointStore(tmp_path, keep=3)
    for number in range(500):
        store.save({"x": np.zeros(1, np.float32)}, {"n": number})
    assert store.numbers() == [498, 499, 500]
    assert len(list(tmp_path.iterdir())) == 6


def test_two_kinds_of_checkpoints_share_a_folder(tmp_path):
    first, second = CheckpointStore(tmp_path, "inner", keep=1), CheckpointStore(tmp_path, "state", keep=1)
    for _ in range(3):
        first.save(TENSORS, {"kind": 1})
        second.save(TENSORS, {"kind": 2})
    assert first.load_latest().state == {"kind": 1}
    assert second.load_latest().state == {"kind": 2}


@pytest.mark.parametrize("size", [0, 20, 3000])
def test_a_truncated_checkpoint_is_named_and_the_previous_one_is_used(store, warnings, size):
    """CKP-05: cut at 0 bytes, inside the header, inside the last tensor."""
    store.save(TENSORS, {"round": 1})
    damaged = store.save(TENSORS, {"round": 2})
    os.truncate(damaged.path, size)
    assert store.load_latest().state == {"round": 1}
    assert len(warnings) == 1
    assert str(damaged.path) in warnings[0]
    assert f"has {size} bytes instead of {damaged.num_bytes}" in warnings[0]
    assert "the previous checkpoint is used" in warnings[0]


def test_a_flipped_bit_is_found(store, warnings):
    store.save(TENSORS, {"round": 1})
    path = store.save(TENSORS, {"round": 2}).path
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert store.load_latest().state == {"round": 1}
    assert "another digest" in warnings[0]


@pytest.mark.parametrize("manifest", ["", "[]", '{"bytes": 1}', "\0\0\0"])
def test_a_damaged_manifest_is_named(store, manifest):
    path = store.save(TENSORS, {}).path.with_suffix(".json")
    path.write_text(manifest)
    with pytest.raises(CheckpointError, match=r"checkpoint-00000001\.json cannot be read"):
        store.load(1)


def test_a_full_disk_keeps_the_old_checkpoint_and_is_said_once(store, warnings, monkeypatch):
    """CKP-02, with the error injected: temporary removed, one warning, saving works again later."""
    store.save(TENSORS, {"round": 1})
    failing(monkeypatch, errno.ENOSPC, times=2)
    results = [store.save(TENSORS, {"round": r}) for r in (2, 3)]
    assert all(
        isinstance(r, SaveFailed) and "No space left on device; the previous one is kept" in r.reason for r in results
    )
    assert len(warnings) == 1
    assert len(list(store.folder.iterdir())) == 2
    assert store.load_latest().state == {"round": 1}
    assert isinstance(store.save(TENSORS, {"round": 4}), Saved)
    assert warnings[1].endswith("again")


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs privileges")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_really_full_disk_keeps_the_old_checkpoint(tiny_disk, warnings):
    """CKP-02 on a tmpfs of 64 KB."""
    store = CheckpointStore(tiny_disk, keep=2, on_warning=warnings.append)
    assert isinstance(store.save({"x": np.zeros(8000, np.float32)}, {"round": 1}), Saved)
    failed = store.save({"x": np.zeros(12_000, np.float32)}, {"round": 2})
    assert isinstance(failed, SaveFailed)
    assert "No space left on device" in failed.reason
    assert len(list(tiny_disk.iterdir())) == 2
    assert CheckpointStore(tiny_disk).load_latest().state == {"round": 1}


def test_a_transient_write_error_is_retried_with_back_off(tmp_path, warnings, monkeypatch):
    """CKP-03"""
    delays = []
    store = CheckpointStore(tmp_path, on_warning=warnings.append, sleep=delays.append)
    failing(monkeypatch, errno.EIO, times=2)
    assert isinstance(store.save(TENSORS, {}), Saved)
    assert (delays, warnings) == ([0.1, 1.0], [])


def test_an_error_that_stays_is_returned_not_raised(store, monkeypatch):
    failing(monkeypatch, errno.EIO, times=3)
    assert isinstance(store.save(TENSORS, {}), SaveFailed)
    assert list(store.folder.iterdir()) == []


def save_for_ever(folder, began):
    store = CheckpointStore(folder, keep=2)
    latest = store.load_latest()
    assert latest is not None
    number = latest.state["n"]
    os.write(began, b"\n")
    while True:
        number += 1
        store.save(tensors(number), {"n": number})


def kill_while_saving(folder, delay_s):
    reader, began = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_for_ever(folder, began)
        finally:
            os._exit(1)
    os.close(began)
    assert os.read(reader, 1)
    os.close(reader)
    time.sleep(delay_s)  # the moment of the kill is the test's input, not its synchronisation
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_kill_9_at_50_random_moments_of_saving_always_leaves_a_checkpoint(tmp_path, warnings):
    """CKP-01: each process goes on where the last one was killed; numbers never go back, nothing piles up."""
    moments, last, num_kills = random.Random(0), 0, 0
    CheckpointStore(tmp_path).save(tensors(0), {"n": 0})
    while num_kills < 50 or last <= 20:  # a busy machine saves less between two kills
        num_kills += 1
        kill_while_saving(tmp_path, moments.uniform(0.001, 0.04))
        loaded = CheckpointStore(tmp_path, on_warning=warnings.append).load_latest()
        assert loaded is not None
        assert (loaded.tensors["weights"] == loaded.state["n"]).all()
        assert loaded.state["n"] >= last
        assert len(list(tmp_path.iterdir())) <= 3 * 2
        last = loaded.state["n"]
    assert warnings == []


@pytest.mark.parametrize("step", range(8))
def test_a_crash_between_any_two_system_calls_leaves_a_checkpoint(store, monkeypatch, step):
    """Every rename and sync of a save in turn is the last thing that happens."""
    store.save(TENSORS, {"round": 1})
    count = [0]

    class Crash(BaseException):
        pass

    def crashing(plain):
        def call(*arguments):
            if count[0] == step:
                raise Crash
            count[0] += 1
            return plain(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", crashing(os.fsync))
        patch.setattr(os, "replace", crashing(os.replace))
        with contextlib.suppress(Crash):
            store.save(TENSORS, {"round": 2})
    restarted = CheckpointStore(store.folder)
    assert restarted.load_latest().state["round"] in (1, 2)
    restarted.save(TENSORS, {"round": 3})
    assert restarted.load_latest().state == {"round": 3}
    assert len(list(store.folder.iterdir())) == 4


def test_each_file_is_on_disk_before_its_name_and_its_name_before_the_next_file(store, monkeypatch):
    store.save(TENSORS, {})
    calls = []
    for name in ("fsync", "replace"):
        plain = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, plain=plain, name=name: (calls.append(name), plain(*a))[1])
    store.save(TENSORS, {})
    assert calls == ["fsync", "replace", "fsync"] * 2  # data then manifest: the file, its name, the folder


def test_any_safetensors_reader_reads_the_data_file(store):
    values = {"a": np.float32([[1, 2], [3, 4]]), "none": np.zeros(0, np.uint8), "one": np.int64(7), "t": np.eye(3).T}
    path = store.save(values, {}).path
    loaded = load_file(path)
    assert loaded.keys() == values.keys()
    assert all(
        np.array_equal(loaded[name], value) and loaded[name].shape == value.shape for name, value in values.items()
    )


def test_the_save_point_fires_while_the_save_does_not_count_yet(tmp_path):
    seen = []
    store = CheckpointStore(tmp_path, on_point=lambda point: seen.append((point, store.numbers())))
    store.save(TENSORS, {})
    assert seen == [("checkpoint.saving", [])]


@pytest.mark.parametrize("manifest", ["[" * 100_000, '{"bytes":[' + "0," * 50_000 + '0],"blake3":"","state":{}}'])
def test_a_manifest_that_was_made_to_harm_leaves_the_one_before(store, warnings, manifest):
    store.save(TENSORS, {"round": 1})
    store.save(TENSORS, {"round": 2})
    store._manifest_path(2).write_text(manifest)
    assert store.load_latest().state == {"round": 1}
    assert len(warnings) == 1
    assert len(warnings[0]) < 1000
