"""``atoll stop``: asks the running node to save, leave and end, and waits until it has."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from ..endpoint import NodeStopped, ask, read_endpoint
from ..errors import UserError
from .options import AsJson, Config, Folder, command_app, print_json, settings_for

app = command_app()

_POLL_S = 0.1
_MARGIN_S = 5.0


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # a zombie has ended
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return True


@app.command()
def stop(folder: Folder = None, config: Config = None, as_json: AsJson = False) -> None:
    """Save, leave the swarm and end the running node; waits until it has ended."""
    settings = settings_for(folder, config)
    endpoint = read_endpoint(settings.endpoint_path)
    if endpoint is None:
        raise NodeStopped(settings.folder)
    ask(settings.endpoint_path, "POST", "api/v1/stop", body={})
    deadline = time.monotonic() + settings.stop_grace_s + _MARGIN_S
    while _is_running(endpoint.pid):
        if time.monotonic() > deadline:
            todo = "see the end of its log, then end the process"
            raise UserError("the node did not end in time", f"process {endpoint.pid}", todo, code="still_running")
        time.sleep(_POLL_S)
    print_json({"stopped": True}) if as_json else print("Stopped. What was trained is saved.")
