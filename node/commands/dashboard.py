"""``atoll dashboard``: the link of the running node's page."""

from __future__ import annotations

from ..endpoint import NodeStopped, ask, read_endpoint
from .options import AsJson, Config, Folder, command_app, print_json, settings_for

app = command_app()


@app.command()
def show(folder: Folder = None, config: Config = None, as_json: AsJson = False) -> None:
    """Print the link of the running node's dashboard. It carries the token: whoever has it may stop the node."""
    path = settings_for(folder, config).endpoint_path
    ask(path, "GET", "livez")
    endpoint = read_endpoint(path)
    if endpoint is None:
        raise NodeStopped(path.parent)
    if as_json:
        print_json({"url": endpoint.url, "link": endpoint.link})
    else:
        print(endpoint.link)
