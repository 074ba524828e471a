"""Drives a status board as a daemon would, with made-up figures, so that the page can be looked at and tested."""

from __future__ import annotations

import math
import random
import time
from typing import Any

from atoll.node.reasons import Reason, State
from atoll.node.snapshot import (
    AgreementInfo,
    Alert,
    CheckpointInfo,
    ContributionInfo,
    ExchangeInfo,
    NetworkInfo,
    NodeInfo,
    PeerInfo,
    Phase,
    RoundInfo,
    RunInfo,
    TrainingInfo,
)
from atoll.node.status import StatusBoard, utc

PEER_IDS = [
    "12D3KooWCkq2aVREnpekyQw3jVxJyG44aRg5GtYhhQYRmzp9fKq2",
    "12D3KooWCkq2aVREnpekyQw3jVxJyG44aRg5GtYhhQYRmzpHs7Lw",
    "12D3KooWCkq2aVREnpekyQw3jVxJyG44aRg5GtYhhQYRmzpZt4cN",
    "12D3KooWCkq2aVREnpekyQw3jVxJyG44aRg5GtYhhQYRmzpb8VxE",
    "12D3KooWCkq2aVREnpekyQw3jVxJyG44aRg5GtYhhQYRmzpQm1Rd",
]
STATE_HASH = "b4d0" + "0" * 56 + "19f3"


def peers(now: float, **changes: Any) -> list[PeerInfo]:
    """petrel (this node), tern (leader), mangrove, kelp-attic (late), grouper (rejected)."""
    names = ["petrel", "tern", "mangrove", "kelp-attic", "grouper"]
    states = ["done", "done", "done", "late", "rejected"]
    notes = ["", "", "", "missed the start by 4 s", "norm 9.3 × the median"]
    shares = [0.29, 0.41, 0.30, None, None]
    return [
        PeerInfo(
            peer_id=PEER_IDS[index],
            name=names[index],
            version="0.1.0",
            is_self=index == 0,
            is_leader=index == 1,
            state=states[index],  # pyright: ignore[reportArgumentType]
            note=notes[index],
            num_rounds=411 - 37 * index,
            share=shares[index],
            tokens=25_600,
            tokens_per_s=4_100.0 - 410 * index,
            round_trip_ms=None if index == 0 else (0.0, 0.42, 31.0, 184.0, 1260.0)[index],
            clock_offset_ms=None if index == 0 else (0.0, 12.0, -310.0, 2.0, 4700.0)[index],
            last_seen_at=utc(now - 0.3 * index),
            **changes,
        )
        for index in range(5)
    ]


def fill(board: StatusBoard, *, num_rounds: int = 11) -> None:
    """A node in the middle of the reduce phase of round ``num_rounds + 1``."""
    now = time.time()
    board.update(
        run=RunInfo(
            name="reef-1b",
            run_id="7e02" + "c" * 56 + "d91b",
            signer=PEER_IDS[1],
            model="139,584 parameters, 2 layers",
            num_parameters=139_584,
            inner_method="AdamW, 50 steps of 8 × 64 tokens",
            outer_method="Nesterov 0.7, momentum 0.9",
            codec="int8",
            num_rounds=100,
        ),
        node=NodeInfo(name="petrel", peer_id=PEER_IDS[0], version="0.1.0", started_at=utc(now - 900), device="cpu"),
        peers=tuple(peers(now)),
        contribution=ContributionInfo(
            joined_round=2, num_counted=9, num_skipped=1, tokens=230_400, tokens_this_round=25_600, last_share=0.29
        ),
        training=TrainingInfo(step=50, num_steps=50, tokens_per_s=4_123.4, loss=2.431, gradient_norm=0.734),
        exchange=ExchangeInfo(
            round=num_rounds,
            bytes_at_32_bits=1_488_896,
            sent_bytes=381_204,
            received_bytes=380_990,
            codec_error=0.0041,
            gather_s=1.8,
            seconds=2.9,
        ),
        agreement=AgreementInfo(round=num_rounds, state_hash=STATE_HASH, num_same=5, num_known=5, agrees=True),
        checkpoint=CheckpointInfo(
            round=num_rounds,
            saved_at=utc(now - 40),
            size_bytes=1_675_008,
            is_verified=True,
            num_kept=3,
            kept_bytes=5_025_024,
        ),
        network=NetworkInfo(sent_bytes=4_193_244, received_bytes=4_190_112),
    )
    board.alert(Alert(code="clock", text="This machine’s clock is 1.2 s behind the other peers’.", at=now))  # pyright: ignore[reportArgumentType]
    exchanging(board, num_rounds + 1)
    loss_curve(board, num_rounds)
    for text in (
        "node started",
        f"round {num_rounds}: committed, state b4d0…19f3",
        f"round {num_rounds + 1}: planned by tern",
    ):
        board.log(text)
    board.log("kelp-attic not ready within 4.0 s of grace", "warning")


def exchanging(board: StatusBoard, number: int) -> None:
    now = time.time()
    board.set_state(State.EXCHANGING, ends_at_unix_s=now + 32, round=number, num_others=2)
    board.update(
        round=RoundInfo(
            number=number,
            phase="reduce",
            phases=(
                Phase(name="train", seconds=31.2),
                Phase(name="gather", seconds=1.8),
                Phase(name="reduce", started_at=utc(now - 46), expected_s=73.0),
                Phase(name="commit", expected_s=2.0),
                Phase(name="apply", expected_s=3.0),
            ),
            ends_at=utc(now + 32),
            num_members=3,
            quorum=3,
            leader=PEER_IDS[1],
        )
    )


def training(board: StatusBoard, number: int) -> None:
    now = time.time()
    board.set_state(State.TRAINING, ends_at_unix_s=now + 671, round=number, device="the CPU")
    phases = (Phase(name="train", started_at=utc(now - 400), expected_s=1071.0, progress=0.37),)
    board.update(
        round=RoundInfo(number=number, phase="train", phases=phases, ends_at=utc(now + 671)),
        peers=tuple(peer.model_copy(update={"state": "training", "note": ""}) for peer in peers(now)),
    )


def alone(board: StatusBoard, number: int) -> None:
    training(board, number)
    board.set_state(State.TRAINING, Reason.ALONE, ends_at_unix_s=time.time() + 20)
    board.patch("round", is_provisional=True, ends_at=None)
    now = time.time()
    board.update(
        peers=tuple(
            peer if peer.is_self else peer.model_copy(update={"state": "absent", "note": "", "is_leader": False})
            for peer in peers(now)
        )
    )


def loss_curve(board: StatusBoard, num_rounds: int) -> None:
    """Local points ten a round, validation after each."""
    noise = random.Random(7)
    for step in range(10 * num_rounds + 4):
        at = step / 10
        board.add_loss("local", at, 1.75 + 4 * math.exp(-at / 1.6) + 0.12 * noise.random(), tokens=int(25_600 * at))
    for number in range(num_rounds + 1):
        board.add_loss("validation", number, 1.7 + 4.3 * math.exp(-number / 1.6), tokens=25_600 * number)


__all__ = ["alone", "exchanging", "fill", "loss_curve", "peers", "training"]
