"""The one kind of error that a user meets: what is wrong, where, and what to do about it, in one line."""

from __future__ import annotations

EXIT_USAGE = 2
EXIT_ERROR = 1


class UserError(Exception):
    """Something a user can cause and mend. The command line prints it as one line, the API as a problem document."""

    def __init__(self, what: str, where: str, todo: str, *, code: str = "error", exit_code: int = EXIT_ERROR) -> None:
        super().__init__(f"{what}: {where}; {todo}" if where else f"{what}; {todo}")
        self.what = what
        self.where = where
        self.todo = todo
        self.code = code
        self.exit_code = exit_code

    def as_json(self) -> dict[str, str]:
        """For ``--json``: the same three parts and a stable code."""
        return {"code": self.code, "error": self.what, "where": self.where, "fix": self.todo}
