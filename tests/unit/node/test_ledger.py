"""The ledger of rejections: rule, value and limit of every exclusion, from the journal."""

from __future__ import annotations

import json

from atoll.node.cli import run
from atoll.node.journal import Journal
from atoll.node.settings import NodeSettings

PEER = "12D3KooWPT98FXMfDQYavZm66EeVjTqP9Nnehn1gyaydqV8L8BQw"


def journal_in(folder):
    return Journal(NodeSettings(folder=folder).journal_path)


def test_every_exclusion_is_listed_with_rule_value_and_limit(tmp_path, capsys):
    journal = journal_in(tmp_path)
    absurd = {"peer": PEER, "rule": "absurd norm", "why": "1e6, allowed 150", "value": 1e6, "limit": 150.0}
    journal.point("exchange.excluded", "text", round=3, level="warning", data=absurd)
    journal.point("round.voted", "not a rejection", round=3)
    left_out = {"peer": PEER, "rule": "agreement", "num_chunks": 2, "value": -0.3, "limit": 0.1}
    journal.point("exchange.left_out", "text", round=4, level="warning", data=left_out)
    journal.point("peer.rejected", "text", round=5, data={"peer": PEER, "rule": "bad signature", "detail": "of a vote"})
    journal.close()
    assert run(["ledger", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "round 3: …L8BQw: absurd norm (1e+06, limit 150)",
        "round 4: …L8BQw: agreement (-0.3, limit 0.1)",
        "round 5: …L8BQw: bad signature (of a vote)",
    ]
    assert run(["ledger", "--folder", str(tmp_path), "--json", "--limit", "1"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert (entry["round"], entry["rule"], entry["why"], entry["value"]) == (5, "bad signature", "of a vote", None)


def test_a_node_without_a_journal_is_told_what_to_do(tmp_path, capsys):
    assert run(["ledger", "--folder", str(tmp_path / "none")]) != 0
    assert "join a run first" in capsys.readouterr().err


def test_an_empty_ledger_says_so(tmp_path, capsys):
    journal_in(tmp_path).close()
    assert run(["ledger", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nobody was left out or rejected\n"
