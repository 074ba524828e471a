"""``atoll identity``: this node's key, of which only the public part is ever shown."""

from __future__ import annotations

import sys

from ...protocol.identity import Identity
from .options import AsJson, Config, Folder, command_app, print_json, settings_for

app = command_app()


@app.callback()
def _identity() -> None:
    """This node's key."""


@app.command()
def show(folder: Folder = None, config: Config = None, as_json: AsJson = False) -> None:
    """Print the peer id, made with a new key if there is none yet."""
    path = settings_for(folder, config).identity_path
    is_new = not path.exists()
    identity = Identity.load_or_create(path)
    if as_json:
        print_json({"peer_id": identity.peer_id, "file": str(path), "is_new": is_new})
        return
    print(identity.peer_id)
    note = "new key" if is_new else "key"
    print(f"{note} in {path}; nobody from the project ever asks you for it", file=sys.stderr)
