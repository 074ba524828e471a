"""The registry: every parser of bytes that somebody else may have written. A further parser is one more `Target`.

`test_every_parser_is_fuzzed` finds the functions of the product that take bytes apart; each must be named by a target
here, or by `exempt.EXEMPT` with the reason why nobody else's bytes reach it.
"""

from __future__ import annotations

from .direct_targets import DIRECT_TARGETS
from .evidence_targets import EVIDENCE_TARGETS
from .file_targets import DASHBOARD_TARGETS, FILE_TARGETS
from .gossip_targets import GOSSIP_TARGETS
from .group_targets import GROUP_TARGETS
from .harness import Target
from .network_targets import MESSAGE_TARGETS, STREAM_TARGETS
from .proof_targets import PROOF_TARGETS
from .rule_targets import RULE_TARGETS, TOOL_TARGETS
from .spot_targets import SPOT_TARGETS
from .swarm_targets import CODEC_TARGETS, STATE_TARGETS, SWARM_TARGETS

TARGETS: tuple[Target, ...] = (
    *MESSAGE_TARGETS,
    *STREAM_TARGETS,
    *GOSSIP_TARGETS,
    *STATE_TARGETS,
    *SWARM_TARGETS,
    *DIRECT_TARGETS,
    *CODEC_TARGETS,
    *FILE_TARGETS,
    *DASHBOARD_TARGETS,
    *PROOF_TARGETS,
    *EVIDENCE_TARGETS,
    *GROUP_TARGETS,
    *RULE_TARGETS,
    *TOOL_TARGETS,
    *SPOT_TARGETS,
)
