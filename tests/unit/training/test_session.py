"""A session against a scripted reducer: what it contributes after commits, misses, aborts, restarts and NaNs."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from atoll.kernels.codec import NonFiniteError
from atoll.training.checkpoint import Checkpoint, CheckpointStore
from atoll.training.data import Lease
from atoll.training.flat import initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.reducer import (
    Aborted,
    Committed,
    Evaluate,
    Evaluation,
    Progress,
    Save,
    Saved,
    Start,
    Stop,
    Withheld,
)
from atoll.training.session import Carry, Session, merge
from atoll.training.shared_buffers import NotSealed


class Script:
    """A reducer that answers contributions with prepared events; ``between`` maps (round, step) to an event."""

    def __init__(self, anchors, answers, between=None, lease=None, start=None):
        self.anchors, self.answers, self.between = anchors, deque(answers), between or {}
        self.pending = deque([start or Start(round=1, generation=1, lease=lease or Lease(0, 16))])
        self.contributions, self.reports, self.samples_at = [], [], []

    def load_anchor(self, round, out):  # noqa: A002
        if self.anchors[round] is None:
            raise NotSealed("replaced")
        out[:] = self.anchors[round]

    def reduce(self, contribution):
        if not np.isfinite(contribution.delta).all():
            raise NonFiniteError("value 0 is nan")
        self.contributions.append(contribution)
        return self.wait()

    def poll(self):
        return self.pending.popleft() if self.pending else None

    def wait(self):
        return self.poll() or (self.answers.popleft() if self.answers else Stop(save=False))

    def report(self, report):
        self.reports.append(report)
        if isinstance(report, Progress) and (report.round, report.step) in self.between:
            self.pending.append(self.between.pop((report.round, report.step)))

    def checkpoint_tensors(self):
        return {}

    def heard(self, kind):
        return [r for r in self.reports if isinstance(r, kind)]


@pytest.fixture
def anchors(config):
    initial = initial_state(config.model)
    return [initial + np.float32(0.01 * i) for i in range(5)]


@pytest.fixture
def run(config, data):
    def run(script, store=None, checkpoint=None, **settings):
        loop = InnerLoop(config, data)
        session = Session(loop, script, store, **settings)
        if checkpoint:
            session.restore(checkpoint)
        session.run()
        return session

    return run


def committed(round_, counted=True):
    return Committed(round=round_, counted=counted, generation=round_ + 1, lease=Lease(100 * round_, 16))


def test_a_round_is_contributed_after_its_steps_and_the_next_starts_from_the_new_anchor(config, anchors, run):
    script = Script(anchors, [committed(1), committed(2)])
    session = run(script)
    assert [(c.round, c.num_steps, c.num_tokens) for c in script.contributions] == [(r, 4, 4 * 32) for r in (1, 2, 3)]
    assert session.work.lease == Lease(200, 16)
    assert session.loop.num_steps_done == 12  # the inner optimizer's state is kept


def test_after_an_abort_training_goes_on_and_the_next_contribution_contains_the_work(anchors, run):
    """S3: nothing is added anywhere, the lease goes on."""
    script = Script(anchors, [Aborted(reason="no quorum", generation=2)])
    session = run(script)
    assert [(c.num_steps, c.num_tokens) for c in script.contributions] == [(4, 128), (8, 256)]
    assert session.work.generation == 2
    whole = session.loop.pseudo_gradient(anchors[0])
    assert np.array_equal(script.contributions[1].delta, whole)


def test_a_used_up_lease_is_contributed_again_without_repeating_samples(anchors, run):
    aborts = [Aborted(reason="no quorum", generation=g) for g in (2, 3)]
    script = Script(anchors, aborts)
    session = run(script)
    assert [c.num_steps for c in script.contributions] == [4, 8, 8]
    assert session.work.lease_step == 8


def test_a_missed_commit_becomes_a_carry_in_the_next_contribution(anchors, run):
    """S6: weighted by tokens, and gone once it counted."""
    missed = Script(anchors, [committed(1, counted=False), committed(2), committed(3)])
    run(missed)
    assert [c.num_tokens for c in missed.contributions] == [128, 256, 128, 128]
    merged = missed.contributions[1].delta
    plain = Script(anchors, [committed(1), committed(2)])
    run(plain)
    own = plain.contributions[1].delta
    assert np.allclose(merged, (own + plain.contributions[0].delta) / 2, atol=1e-7)


@pytest.mark.parametrize(("is_another_state", "tokens"), [(False, [128, 256]), (True, [128, 128])])
def test_a_carry_waits_for_a_lease_that_comes_later_than_the_commit(anchors, run, is_another_state, tokens):
    """In two-tier rounds a follower hears of its samples from its delegate, perhaps after the commit."""
    missed = Committed(round=1, counted=False, generation=2, lease=Lease(0, 0))
    late = Start(round=2, generation=3, lease=Lease(16, 16), reset_optimizer=is_another_state)
    script = Script(anchors, [missed, late])
    run(script)
    assert [c.num_tokens for c in script.contributions] == tokens


def test_a_carry_is_at_most_one_round_old(anchors, run):
    script = Script(anchors, [committed(1, counted=False), committed(2, counted=False)])
    run(script)
    assert [c.num_tokens for c in script.contributions] == [128, 256, 256]  # never 384


def test_a_straggler_keeps_the_steps_it_had_done(anchors, run):
    """The commit comes in the middle of its round, when the shared anchor is already the next one."""
    script = Script(anchors, [], between={(1, 3): committed(1, counted=False)})
    session = run(script)
    assert [(c.round, c.num_tokens) for c in script.contributions] == [(2, 128 + 96)]
    assert session.work.lease == Lease(100, 16)


def test_a_nan_is_withheld_and_training_goes_on_from_the_anchor(anchors, run, monkeypatch):
    """QNT-09: nothing is contributed, the parameters are finite again, and the same round is tried on further data."""
    poison = [True]
    plain = InnerLoop.pseudo_gradient

    def poisoned(loop, anchor):
        delta = plain(loop, anchor)
        if poison:
            delta[0] = np.nan
            poison.clear()
        return delta

    monkeypatch.setattr(InnerLoop, "pseudo_gradient", poisoned)
    script = Script(anchors, [])
    session = run(script)
    assert [r.reason for r in script.heard(Withheld)] == ["pseudo-gradient of round 1: value 0 is nan"]
    assert [(c.round, c.num_steps, c.num_tokens) for c in script.contributions] == [(1, 4, 128)]
    assert session.work.lease_step == 8  # no sample was used twice
    assert np.isfinite(script.contributions[0].delta).all()
    assert np.isfinite(session.loop.parameters()).all()


def test_with_a_used_up_lease_and_nothing_done_it_waits(anchors, run):
    script = Script(anchors, [], lease=Lease(0, 0))
    run(script)
    assert script.contributions == []


def test_the_anchor_is_evaluated_whatever_is_being_trained(config, anchors, run, data):
    script = Script(anchors, [], between={(1, 2): Evaluate()})
    run(script)
    loop = InnerLoop(config, data)
    [evaluation] = script.heard(Evaluation)
    assert evaluation.round == 0
    assert evaluation.validation_loss == loop.evaluate(anchors[0]).loss


def steps_before_saves(script):
    done, at = 0, []
    for report in script.reports:
        done += isinstance(report, Progress)
        if isinstance(report, Saved):
            at.append(done)
    return at


def test_it_saves_on_request_and_at_the_end(anchors, run, tmp_path):
    script = Script(anchors, [Stop()], between={(1, 1): Save()})
    run(script, CheckpointStore(tmp_path, "inner"))
    assert steps_before_saves(script) == [1, 4]


def test_it_saves_at_most_every_interval(anchors, run, tmp_path):
    now = [0.0]

    def clock():
        now[0] += 1.0  # read three times a step, and once by a save
        return now[0]

    script = Script(anchors, [committed(1)])
    run(script, CheckpointStore(tmp_path, "inner"), save_interval_s=7.0, clock=clock)
    assert steps_before_saves(script) == [3, 6]


def interrupted(run, tmp_path, anchors, between, **fields):
    store = CheckpointStore(tmp_path, "inner")
    script = Script(anchors, [], between=between, **fields)
    run(script, store)
    checkpoint = store.load_latest()
    assert isinstance(checkpoint, Checkpoint)
    return checkpoint


def test_a_restarted_trainer_ends_its_round_as_if_nothing_had_happened(anchors, run, tmp_path):
    checkpoint = interrupted(run, tmp_path, anchors, {(1, 3): Stop()})
    resumed, whole = Script(anchors, []), Script(anchors, [])
    run(resumed, checkpoint=checkpoint)
    run(whole)
    assert resumed.contributions[0].delta.tobytes() == whole.contributions[0].delta.tobytes()
    assert resumed.contributions[0].loss == whole.contributions[0].loss
    assert len(resumed.heard(Progress)) == 1


def test_a_trainer_that_saved_after_its_contribution_contributes_it_again_unchanged(anchors, run, tmp_path):
    store = CheckpointStore(tmp_path, "inner")
    first = Script(anchors, [Stop()])
    run(first, store)
    again = Script(anchors, [])
    run(again, checkpoint=store.load_latest())
    assert again.heard(Progress) == []
    assert again.contributions[0].delta.tobytes() == first.contributions[0].delta.tobytes()


@pytest.mark.parametrize(("previous_counted", "num_tokens"), [(True, 128), (False, 128 + 96)])
def test_work_of_the_round_that_was_missed_while_down_is_carried_only_if_it_did_not_count(
    anchors, run, tmp_path, previous_counted, num_tokens
):
    checkpoint = interrupted(run, tmp_path, anchors, {(1, 3): Stop()})
    start = Start(round=2, generation=1, lease=Lease(100, 16), previous_counted=previous_counted)
    script = Script(anchors, [], start=start)
    session = run(script, checkpoint=checkpoint)
    assert [c.num_tokens for c in script.contributions] == [num_tokens]
    assert session.loop.num_steps_done == 3 + 4


def test_work_that_is_two_rounds_old_is_dropped_and_the_optimizer_warms_up(anchors, run, tmp_path):
    checkpoint = interrupted(run, tmp_path, anchors, {(1, 3): Stop()})
    start = Start(round=3, generation=1, lease=Lease(200, 16), previous_counted=False)
    script = Script(anchors, [], start=start)
    session = run(script, checkpoint=checkpoint)
    assert [c.num_tokens for c in script.contributions] == [128]
    assert session.loop.num_steps_done == 4


def test_a_checkpoint_against_another_anchor_of_the_round_is_not_resumed(anchors, run, tmp_path):
    checkpoint = interrupted(run, tmp_path, anchors, {(1, 3): Stop()})
    script = Script([anchors[1], *anchors[1:]], [])
    run(script, checkpoint=checkpoint)
    assert len(script.heard(Progress)) == 4


def test_after_a_state_sync_the_optimizer_starts_afresh(anchors, run):
    sync = Start(round=4, generation=9, lease=Lease(300, 16), reset_optimizer=True)
    script = Script(anchors, [], between={(1, 2): sync})
    session = run(script)
    assert [(c.round, c.num_tokens) for c in script.contributions] == [(4, 128)]
    assert session.loop.num_steps_done == 4


def test_an_anchor_that_was_replaced_before_it_was_read_is_skipped(anchors, run):
    """Two commits while one long step ran: the first one's anchor is gone, the second one's counts."""
    script = Script([anchors[0], None, *anchors[2:]], [], between={(1, 2): committed(1, counted=False)})
    script.answers.append(committed(2, counted=False))
    session = run(script)
    assert [(c.round, c.num_tokens) for c in script.contributions] == [(3, 128)]
    assert session.work.lease == Lease(200, 16)


def test_the_steps_of_a_round_are_the_ones_it_is_told(anchors, run):
    start = Start(round=1, generation=1, lease=Lease(0, 16), num_steps=3)
    longer = Committed(round=1, counted=True, generation=2, lease=Lease(100, 16), num_steps=7)
    script = Script(anchors, [longer, committed(2)], start=start)
    run(script)
    assert [c.num_steps for c in script.contributions] == [3, 7, 4]


def test_steps_end_where_the_lease_does(anchors, run):
    start = Start(round=1, generation=1, lease=Lease(0, 16), num_steps=50)
    script = Script(anchors, [], start=start)
    session = run(script)
    assert [c.num_steps for c in script.contributions] == [8]
    assert session.work.lease_step == 8


def test_the_speed_of_a_contribution_is_that_of_its_steps_without_waiting_for_others(anchors, run):
    now = [0.0]

    def clock():
        now[0] += 0.5  # read at the begin and the end of a step
        return now[0]

    class Slow(Script):
        def reduce(self, contribution):
            now[0] += 1000.0
            return super().reduce(contribution)

    script = Slow(anchors, [Aborted(reason="no quorum", generation=2), committed(1)])
    run(script, clock=clock)
    assert [c.tokens_per_s for c in script.contributions] == [32 / 0.5] * 3


def test_a_joiner_warms_its_learning_rate_up_again(anchors, run):
    """L4: after a state sync the first steps are as careful as a newcomer's."""
    sync = Start(round=4, generation=9, lease=Lease(300, 16), reset_optimizer=True)
    script = Script(anchors, [committed(1)], between={(2, 4): sync})
    run(script)
    rates = {(report.round, report.step): report.lr for report in script.heard(Progress)}
    warm = [rates[1, step] for step in (1, 2, 3)]
    assert warm[0] < warm[1] < warm[2] == rates[2, 4]
    assert [rates[4, step] for step in (1, 2, 3)] == warm


def test_merging_weighs_by_tokens_and_leaves_the_carry_alone():
    delta, carry = np.full(3, 1.0, np.float32), Carry(np.full(3, 5.0, np.float32), 300)
    assert merge(delta, 100, carry) == 400
    assert np.allclose(delta, 4.0)
    assert (carry.delta == 5.0).all()
    assert merge(delta, 100, None) == 100
