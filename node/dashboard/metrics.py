"""``/metrics``: the snapshot in Prometheus' text format. Unknown figures are left out, never written as zero."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..reasons import State
from ..snapshot import Snapshot
from ..status import StatusBoard

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _gauges(now: Snapshot) -> Iterable[tuple[str, str, float | None]]:
    yield "atoll_round", "Round that the node works on.", now.round.number
    yield "atoll_ready", "1 if the node contributes or rightly waits.", float(now.status.is_ready)
    yield "atoll_loss", "Local training loss, nats per token.", now.training.loss
    yield "atoll_validation_loss", "Validation loss, nats per token.", now.training.validation_loss
    yield "atoll_tokens_per_second", "Inner training speed.", now.training.tokens_per_s
    yield "atoll_peers", "Peers heard of lately, this node included.", _num_present(now)
    yield "atoll_codec_error_ratio", "RMS quantisation error of the last exchange.", now.exchange.codec_error
    yield "atoll_exchange_seconds", "Duration of the last exchange.", now.exchange.seconds
    yield "atoll_state_agrees", "1 if all known state hashes agree.", _flag(now.agreement.agrees)
    yield (
        "atoll_spread_ratio",
        "Gossip: distance from the last partner, relative.",
        now.agreement.spread,
    )
    yield "atoll_checkpoint_round", "Round of the last checkpoint.", now.checkpoint.round
    yield "atoll_alerts", "Alerts that stand.", len(now.alerts)


def _counters(now: Snapshot) -> Iterable[tuple[str, str, float | None]]:
    yield "atoll_rounds_counted", "Rounds whose mean this node is in.", now.contribution.num_counted
    yield "atoll_rounds_skipped", "Rounds without this node.", now.contribution.num_skipped
    yield "atoll_rounds_rejected", "Rounds that left this node's update out.", now.contribution.num_rejected
    yield "atoll_tokens", "Tokens trained for the run.", now.contribution.tokens
    yield "atoll_sent_bytes", "Bytes sent, counted at the socket.", now.network.sent_bytes
    yield "atoll_received_bytes", "Bytes received, counted at the socket.", now.network.received_bytes


def _num_present(now: Snapshot) -> int:
    return sum(peer.state != "absent" for peer in now.peers)


def _flag(value: bool | None) -> float | None:
    return None if value is None else float(value)


class _SnapshotCollector(Collector):
    def __init__(self, board: StatusBoard) -> None:
        self._board = board

    def collect(self) -> Iterable[Metric]:
        now = self._board.snapshot()
        yield from (GaugeMetricFamily(name, text, value) for name, text, value in _gauges(now) if value is not None)
        yield from (CounterMetricFamily(name, text, value) for name, text, value in _counters(now) if value is not None)
        states = GaugeMetricFamily("atoll_state", "1 for the state that the node is in.", labels=["state"])
        for state in State:
            states.add_metric([state.value], float(state is now.status.state))
        yield states


def metrics_text(board: StatusBoard) -> bytes:
    """One scrape. No global registry: two nodes in one process do not mix."""
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(board))
    return generate_latest(registry)
