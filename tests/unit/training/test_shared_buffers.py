from __future__ import annotations

import os
import resource
import tempfile
from contextlib import suppress

import numpy as np
import pytest

from atoll.training.shared_buffers import NotSealed, SharedBuffers


@pytest.fixture
def buffers():
    created = SharedBuffers.create(num_elements=1000, num_chunks=3, contribution_bytes=1016)
    yield created
    created.close()


def write_contribution(buffers, chunks=range(3), value=7):
    buffers.open_contribution().fill(value)
    for chunk in chunks:
        buffers.mark_complete(chunk)


def test_nothing_is_sealed_at_first(buffers):
    with pytest.raises(NotSealed, match="the anchor is being written"):
        buffers.anchor()
    with pytest.raises(NotSealed, match="the contribution is being written"):
        buffers.contribution()


def test_the_trainer_sees_the_anchor_that_the_daemon_sealed(buffers):
    buffers.open_anchor()[:] = np.arange(1000)
    buffers.seal_anchor(4)
    trainer = SharedBuffers.attach(os.dup(buffers.fd))
    assert np.array_equal(trainer.anchor(4), np.arange(1000, dtype=np.float32))
    trainer.close()


def test_the_anchor_of_another_round_is_refused_and_both_are_named(buffers):
    buffers.open_anchor()
    buffers.seal_anchor(4)
    with pytest.raises(NotSealed, match="round 4, generation 0, not of 3"):
        buffers.anchor(3)


def test_a_contribution_with_a_missing_chunk_cannot_be_sealed(buffers):
    write_contribution(buffers, chunks=[0, 2])
    with pytest.raises(NotSealed, match="1 of 3 chunks are missing"):
        buffers.seal_contribution(1, 0)
    assert buffers.seal_of("contribution") is None


def test_a_writer_that_dies_half_way_has_contributed_nothing(buffers):
    write_contribution(buffers)
    buffers.seal_contribution(1, 0)
    if (child := os.fork()) == 0:
        SharedBuffers.attach(buffers.fd).open_contribution()[:10] = 9
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(NotSealed, match="its writer died"):
        buffers.contribution(1, 0)


def test_a_contribution_of_an_older_generation_is_refused(buffers):
    write_contribution(buffers)
    buffers.seal_contribution(round=2, generation=5)
    seal = buffers.seal_of("contribution")
    assert (seal.round, seal.generation) == (2, 5)
    with pytest.raises(NotSealed, match="generation 5, not of 2, 6"):
        buffers.contribution(2, 6)


class Interrupted:
    """A target of a copy during which something else happens."""

    def __init__(self, during):
        self.during = during

    def __setitem__(self, where, values):
        self.during()


def sealed_again(buffers, round_):
    def replace():
        buffers.open_anchor().fill(round_)
        buffers.seal_anchor(round_)

    return replace


def test_a_copy_of_the_anchor_is_the_anchor(buffers):
    sealed_again(buffers, 4)()
    copy = np.zeros(1000, np.float32)
    buffers.copy_anchor(4, copy)
    assert np.all(copy == 4)


@pytest.mark.parametrize("what", ["opened", "replaced by the next round", "written again for the same round"])
def test_a_copy_is_refused_if_meanwhile_the_anchor_was(buffers, what):
    sealed_again(buffers, 4)()
    during = {
        "opened": buffers.open_anchor,
        "replaced by the next round": sealed_again(buffers, 5),
        "written again for the same round": sealed_again(buffers, 4),
    }[what]
    with pytest.raises(NotSealed, match="replaced while it was copied"):
        buffers.copy_anchor(4, Interrupted(during))


def test_no_reader_ever_gets_a_mixture_of_two_rounds(buffers):
    """One process seals round after round while this one copies whichever it finds."""
    last = 3_000
    sealed_again(buffers, 1)()
    if (child := os.fork()) == 0:
        writer = SharedBuffers.attach(buffers.fd)
        for round_ in range(2, last + 1):
            sealed_again(writer, round_)()
        os._exit(0)
    copy, newest = np.zeros(1000, np.float32), 0
    while newest < last:
        with suppress(NotSealed):
            round_ = getattr(buffers.seal_of("anchor"), "round", newest)
            buffers.copy_anchor(round_, copy)
            assert set(copy) == {round_}
            newest = round_
    os.waitpid(child, 0)


def test_readers_cannot_write(buffers):
    buffers.open_anchor()
    buffers.seal_anchor(0)
    with pytest.raises(ValueError, match="read-only"):
        buffers.anchor()[0] = 1


def test_a_foreign_file_is_refused():
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 8192)
        file.flush()
        with pytest.raises(ValueError, match="does not hold shared buffers"):
            SharedBuffers.attach(file.fileno())


def test_buffers_in_a_folder_leave_no_name_behind(tmp_path):
    buffers = SharedBuffers.create(1000, 1, 100, folder=tmp_path)
    buffers.open_anchor().fill(1)
    assert list(tmp_path.iterdir()) == []
    buffers.close()


def test_missing_space_is_an_error_at_creation(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            SharedBuffers.create(1_000_000, 1, 100, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
