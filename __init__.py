"""Marks the repository root, so that no folder in it is mistaken for a top-level package (see CONTRIBUTING).

In a clone whose folder is called atoll, pytest imports this file under that name; then it is the package in `.pkg`.
"""

from pathlib import Path

if __name__ == "atoll":
    _package = Path(__file__).parent / ".pkg" / "atoll"
    __path__ = [str(_package)]
    exec((_package / "__init__.py").read_text(encoding="utf-8"))
