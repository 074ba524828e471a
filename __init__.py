"""Marks the repository root, so that no folder in it is mistaken for a top-level package (see CONTRIBUTING)."""
