"""Fault schedules that once violated a property, as short as they could be made, each with what was wrong then."""

from __future__ import annotations

import pytest

from atoll.protocol.simulator.faults import FaultSchedule
from atoll.protocol.simulator.hunt import run_schedule

SCHEDULES = {
    "a founder that had voted in round 2 lost its disk, learnt round 1 again, and voted in round 2 again": (
        '{"faults":[{"at_s":1.0,"for_s":6.0,"kind":"deaf_at","moment":"voting","number":2},{"at_s":5.2,"for_s":3.7,'
        '"groups":[[0,1],[2]],"kind":"partition"},{"at_s":6.0,"for_s":0.3,"kind":"lose_disk","peer":0}],'
        '"num_peers":3,"probes":[],"seed":2000751}'
    ),
    "founders that were restarted in their first seconds took their own words for an earlier life's": (
        '{"delegates":[2,1],"fault_tolerance":0,"faults":[{"at_s":0.2,"for_s":1.0,"kind":"crash","peer":2},'
        '{"at_s":0.2,"for_s":1.0,"kind":"crash","peer":0}],"num_peers":3,"probes":["dead_peer"],"seed":3100}'
    ),
    "evidence of a lie could not be judged after an amendment, so half a roster did without the other half's plans": (
        '{"faults":[{"at_s":12.6,"for_s":2.0,"groups":[[0,2,4,5],[1,3]],"kind":"partition"},{"at_s":17.4,"for_s":9.2,'
        '"groups":[[2],[0,5],[1,3,4]],"kind":"partition"},{"at_s":23.3,"for_s":5.5,"kind":"crash_at",'
        '"moment":"exchanging"},{"at_s":23.4,"for_s":4.4,"groups":[[2],[0,1,3,4,5]],"kind":"partition"},{"at_s":25.7,'
        '"for_s":2.2,"groups":[[3,4,5],[0,1,2]],"kind":"partition"},{"at_s":27.3,"finder":1,"for_s":1.0,"is_lie":true,'
        '"kind":"accuse","peer":2},{"at_s":32.1,"change":"keys","for_s":0.2,"kind":"amend","peer":0}],'
        '"max_per_owner":2,"num_peers":6,"probes":[],"seed":17}'
    ),
    "leaders that were cut off when evidence was spread went on planning with the liar": (
        '{"delegates":[0],"faults":[{"at_s":0.1,"for_s":4.6,"kind":"leave","peer":2},{"at_s":7.2,"for_s":4.0,'
        '"kind":"sleep","peer":3},{"at_s":9.7,"for_s":4.0,"groups":[[0,2,4,5,6],[1,3,7]],"kind":"partition"},'
        '{"at_s":10.7,"finder":5,"for_s":1.0,"is_lie":true,"kind":"accuse","peer":7}],"num_joiners":2,"num_peers":8,'
        '"seed":6000412}'
    ),
    "a delegate that the others had ejected completed a reset that nobody heard of": (
        '{"delegates":[1,0,4],"faults":[{"at_s":1.0,"finder":2,"for_s":0.6,"is_lie":true,"kind":"accuse","peer":0},'
        '{"at_s":5.0,"for_s":28.6,"groups":[[0,1,5],[2,3,4,6]],"kind":"partition"}],"num_peers":7,"probes":[],'
        '"seed":1081}'
    ),
    "the second in line could not vote, had lost its disk, and everybody waited for it to lead": (
        '{"fault_tolerance":0,"faults":[{"at_s":0.2,"for_s":0.0,"kind":"join","peer":4},{"at_s":6.0,"for_s":1.7,'
        '"kind":"lose_disk","peer":2},{"at_s":8.4,"for_s":0.5,"kind":"crash","peer":0},{"at_s":8.7,"for_s":10.9,'
        '"in_rounds":0,"kind":"pause_run","peer":3},{"at_s":9.2,"for_s":8.7,"kind":"sleep","peer":0},{"at_s":12.3,'
        '"for_s":4.5,"kind":"crash_at","moment":"announcing","number":3},{"at_s":15.0,"for_s":12.5,"kind":"crash",'
        '"peer":2}],"invites":[{"invite":2,"owner":1}],"max_per_owner":2,"num_joiners":1,"num_peers":4,'
        '"probes":["minority","dead_leader"],"seed":7000356}'
    ),
    "an owner that had kept a mean to itself was waited for, and served nobody when it was honest again": (
        '{"faults":[{"at_s":1.4,"for_s":5.0,"how":"silent_owner","kind":"misbehave","peer":5},{"at_s":1.0,"for_s":0.0,'
        '"kind":"join","peer":8}],"invites":[{"invite":1,"owner":0}],"max_per_owner":2,"num_joiners":1,"num_peers":8,'
        '"probes":[],"seed":9201537}'
    ),
    "nobody remembered a founder's first life: one was down, the other restarted from an older state": (
        '{"faults":[{"at_s":5.2,"for_s":11.0,"kind":"crash","peer":1},{"at_s":6.0,"for_s":1.0,"kind":"lose_disk",'
        '"peer":2},{"at_s":6.8,"for_s":1.0,"kind":"restore_state","num_rounds":4,"peer":0}],"num_peers":3,"probes":[],'
        '"seed":40101513}'
    ),
    "only the banned peer knew that its ban was lifted, after the other that knew had lost its disk": (
        '{"faults":[{"at_s":3.9,"banned":0,"for_s":3.5,"kind":"ban_peer","peer":2},{"at_s":4.6,"for_s":3.0,"kind":'
        '"sleep","peer":1},{"at_s":8.0,"for_s":0.9,"kind":"lose_disk","peer":2}],"num_peers":3,"probes":[],'
        '"seed":40000518}'
    ),
    "a proven liar led, and the only one that knew it kept the evidence to itself": (
        '{"fault_tolerance":0,"faults":[{"at_s":0.8,"for_s":16.1,"groups":[[0],[2,3],[1]],"kind":"partition"},'
        '{"at_s":1.0,"for_s":0.0,"kind":"join","peer":4},{"at_s":3.1,"for_s":1.5,"kind":"leave","peer":1},{"at_s":3.2,'
        '"for_s":1.1,"kind":"sleep","peer":2},{"at_s":8.0,"finder":0,"for_s":1.0,"is_lie":true,"kind":"accuse",'
        '"peer":1}],"num_joiners":1,"num_peers":4,"probes":["straggler"],"seed":50100975}'
    ),
    "evidence that was found while cut off had not spread when the leader died": (
        '{"faults":[{"at_s":1.2,"for_s":29.8,"groups":[[0,1,3],[2]],"kind":"partition"},{"at_s":6.4,"for_s":2.1,'
        '"groups":[[0],[1,2],[3]],"kind":"partition"},{"at_s":8.8,"finder":2,"for_s":1.0,"kind":"accuse","peer":0},'
        '{"after":true,"at_s":20.3,"for_s":2.6,"kind":"crash_at","moment":"planning"}],"num_peers":4,"probes":'
        '["progress","dead_leader"],"seed":50101014}'
    ),
}


@pytest.mark.parametrize("story", SCHEDULES)
def test_what_went_wrong_once_does_not_again(story):
    outcome = run_schedule(FaultSchedule.from_json(SCHEDULES[story]))
    assert not outcome.is_violation, outcome.detail
