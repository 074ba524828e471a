"""What the pages say of the protocol is what the code does: names, constants, limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from atoll.kernels import hash_tree
from atoll.kernels.formats import FORMATS, INT8, BlockFormat
from atoll.kernels.sparse import CHOICES
from atoll.protocol import commitments, envelope, lag, messages, parsing, receipts, sealing, spec, transport
from atoll.protocol.exchange import wire as span_wire
from atoll.protocol.round_machine import Phase
from atoll.protocol.state_sync import wire as state_wire

ROOT = Path(__file__).parents[2]
ROUND = (ROOT / "docs" / "round.md").read_text(encoding="utf-8")
WIRE = (ROOT / "docs" / "wire-format.md").read_text(encoding="utf-8")
HEX_DIGITS_OF_A_DIGEST = 64


def first_cells(page: str, header: str) -> list[str]:
    """Code in the first column of the table that begins with ``header``."""
    rows = page.split(header, 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_every_kind_of_message_is_listed_and_no_other() -> None:
    union = get_args(messages.AnyMessage)[0]
    kinds = {kind.model_fields["kind"].default for kind in get_args(union)}
    assert set(first_cells(WIRE, "| kind | says |\n")) == kinds


def test_every_control_frame_of_a_span_stream_is_listed_and_no_other() -> None:
    frames = (span_wire.CHUNK, span_wire.RESET, span_wire.KEEPALIVE, span_wire.EXCLUDED, span_wire.FINAL)
    listed = first_cells(WIRE, "| frame | means |\n")
    assert sorted(listed) == sorted(frame.decode() for frame in frames)


DOMAINS = [
    envelope.DOMAIN,
    spec.DOMAIN,
    receipts.DOMAIN,
    commitments._LEAF_DOMAIN,
    commitments._NODE_DOMAIN,
    commitments._ROOT_DOMAIN,
]


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_domains_of_signatures_and_hashes_are_named(domain: bytes) -> None:
    assert f"`{domain.decode().removesuffix(chr(0))}\\0`" in WIRE


@pytest.mark.parametrize(
    "fact",
    [
        f"“{hash_tree.ROOT_CONTEXT}”",
        f"`{span_wire._MAGIC.decode()}`",
        f"⌈n/{INT8.block}⌉",
        f"(n ≤ {state_wire.MAX_COMMITS})",
        f"at most {transport.MAX_MESSAGE_BYTES >> 20} MiB, a directory",
        f"at most {transport.MAX_FRAME_BYTES >> 20} MiB",
        f"{parsing.MAX_ITEMS:,} items or {parsing.MAX_KEYS:,} keys",
        f"leaves of {hash_tree.LEAF_BYTES >> 20} MiB",
        f"a multiple of\n{spec.ALIGNMENT_ELEMENTS}",
        f"protocol version {spec.PROTOCOL_VERSION}",
        f"digests in JSON are {HEX_DIGITS_OF_A_DIGEST} ",
    ],
)
def test_the_wire_format_page_has_the_numbers_of_the_code(fact: str) -> None:
    assert fact in WIRE


@pytest.mark.parametrize("layout", [each for each in FORMATS.values() if isinstance(each, BlockFormat)])
def test_the_wire_format_page_has_every_block_format(layout: BlockFormat) -> None:
    num = 4096
    bits = f"{8 * layout.nbytes(num) / num:g}"
    (row,) = [line for line in WIRE.splitlines() if line.startswith(f"| `{layout.name}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:3] == [bits, str(layout.block)]
    assert cells[4].startswith(str(layout.num_scales))
    assert cells[5] == f"`0x{layout.max_scale_bits:X}`"


def test_the_wire_format_page_names_every_codec() -> None:
    for name in FORMATS:
        assert f"`{name}`" in WIRE
    for kind in CHOICES:
        assert f"`{kind}" in WIRE


def test_the_lifetime_of_a_message_is_the_one_described() -> None:
    assert sealing.LIFETIME_S == 3 * 3600
    assert "three hours after sending; more than six ahead is refused" in WIRE


def test_the_round_page_has_the_numbers_and_phases_of_the_code() -> None:
    assert f"means of its last {lag.FAR_BEHIND_ROUNDS} rounds" in ROUND
    rows = ROUND.split("| phase | since | it ends with |\n", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    assert [row.split("|")[1].strip() for row in rows] == [phase.value for phase in Phase]


@pytest.mark.parametrize("page", [ROUND, WIRE], ids=["round", "wire-format"])
def test_sources_that_a_page_names_exist(page: str) -> None:
    named = set(re.findall(r"`((?:node|protocol|training|kernels)/[\w/.]+)`", page))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`(?:timing|limits|membership|exchange)\.(\w+)`", ROUND + WIRE)))
)
def test_settings_that_a_page_names_exist(name: str) -> None:
    tables = (spec.TimingConfig, spec.LimitsConfig, spec.MembershipConfig, spec.ExchangeConfig)
    assert any(name in table.model_fields for table in tables)
