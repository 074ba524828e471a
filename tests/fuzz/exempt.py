"""Functions that take bytes apart and are no fuzz targets, each with the reason."""

from __future__ import annotations

OWN = "reads what this process, or one that it started, has written"
WRITES = "writes: its input is a value of ours"
DELEGATES = "hands the bytes to a function that a target covers"
CHECKED = "gets bytes whose length and digest were checked"
SIMULATED = "reads what the simulator itself has made"
USERS = "reads what this machine's user gives to this user's own process"

EXEMPT: dict[str, str] = {
    "protocol/exchange/wire.py:SpanHeader.encode": WRITES,
    "protocol/identity.py:base58_encode": WRITES,
    "protocol/identity.py:Identity.load": "a key file: compared with its exact length, see test_identity",
    "protocol/quotas.py:MeteredStream.read": DELEGATES,
    "protocol/simulator/nodes.py:world_genesis": SIMULATED,
    "protocol/simulator/hunt.py:_replay": DELEGATES,
    "protocol/simulator/heartbeats.py:_heartbeat_of": SIMULATED,
    "protocol/spec.py:Genesis.amended": "takes values that were read and verified before",
    "protocol/swarm/addresses.py:_tail": DELEGATES,
    "protocol/swarm/addresses.py:by_use": USERS,
    "protocol/swarm/addresses.py:keep_ports": USERS,
    "protocol/swarm/p2pd.py:_P2P._read_outputs": OWN,
    "protocol/swarm/p2pd.py:_texts": DELEGATES,
    "protocol/swarm/run_folder.py:start_time": "reads what the kernel writes",
    "protocol/receipts.py:_leaf": WRITES,
    "node/receipts.py:read_receipts": OWN,
    "node/commands/receipts.py:verify": DELEGATES,
    "node/signing.py:Signing._present_round": "counts the lines of its own node's chain",
    "node/commands/stop.py:_is_running": "reads what the kernel writes",
    "node/dashboard/guard.py:read_token": USERS,
    "node/dashboard/server.py:page_files": "reads the package's own files",
    "node/demo.py:DemoSwarm._read": OWN,
    "node/demo.py:DemoSwarm._check_exit": OWN,
    "node/donor.py:Donor.read_leaf": OWN,
    "node/journal.py:_decoded": OWN,
    "node/replica.py:Replica.commits": DELEGATES,
    "node/replica.py:Replica._apply": CHECKED,
    "node/replica.py:Replica._install": CHECKED,
    "node/run_spec.py:_value": USERS,
    "node/settings.py:load_settings": USERS,
    "node/settings.py:_from_file": USERS,
    "node/status.py:StatusBoard.patch": OWN,
    "kernels/arguments.py:require_bytes": DELEGATES,
    "kernels/initial.py:parameter_key": WRITES,
    "kernels/reference/arithmetic.py:float_bits": WRITES,
    "kernels/reference/values.py:read_float32": "four bytes, whichever they are, are a float",
    "kernels/reference/values.py:read_float16": "two bytes, whichever they are, are a float",
    "kernels/reference/values.py:read_bfloat16": "two bytes, whichever they are, are a float",
    "kernels/reference/arithmetic.py:from_bfloat16": "two bytes, all 65,536 of which the codec's tests try",
    "training/channel.py:TrainerChannel._read": DELEGATES,
    "training/channel.py:DaemonChannel.receive": DELEGATES,
    "training/data.py:load_text": "the corpus: bytes are its tokens, whatever they are",
    "training/shared_buffers.py:SharedBuffers.__init__": OWN,
    "training/shared_buffers.py:SharedBuffers.attach": OWN,
    "training/trainer.py:main": OWN,
}
