"""The version of this installation."""

from __future__ import annotations

# Absolute: relative to this file's place in the repository, the package above is the repository's root.
from atoll import __version__

VERSION: str = __version__
