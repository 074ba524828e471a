"""TOML as an operator writes it: read, explained where it is wrong, one line per fault, and written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from .parsing import canonical_json

M = TypeVar("M", bound=BaseModel)

_MAX_FAULTS = 20
_MAX_KEY_DEPTH = 32
_BESIDE_KEYS = re.compile(r"""[^\w."' \t-]+""")
"""Splits a text between its dotted keys; `tomllib` takes a time that grows with the square of their depth."""


class SpecError(ValueError):
    """A run spec that cannot be used: one line per fault, each naming file, field and what to do."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


def read_text(path: Path) -> str:
    """Text of a run spec file (at most 1 MiB). Raises `SpecError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read((1 << 20) + 1)
        if len(data) > 1 << 20:
            raise SpecError([f"{path}: larger than 1 MiB; this is not a run spec"])
        return data.decode()
    except OSError as error:
        raise SpecError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise SpecError([f"{path}: not UTF-8 text; this is not a run spec"]) from None


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Tables of a TOML text. Raises `SpecError`."""
    if any(words.count(".") > _MAX_KEY_DEPTH for words in _BESIDE_KEYS.split(text)):
        raise SpecError([f"{source}: nested too deeply; this is not a run spec"])
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise SpecError([f"{source}: nested too deeply; this is not a run spec"]) from None
    except ValueError as error:  # TOMLDecodeError, and what int() says of a number with thousands of digits
        raise SpecError([f"{source}: not valid TOML: {_one_line(str(error))}"]) from None


def _one_line(text: str) -> str:
    """``text`` without line breaks and escapes, and not too long: parts of it are from the file."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return shown if len(shown) <= 300 else shown[:299] + "…"


def validated(model: type[M], table: Any, source: str, prefix: str = "") -> M:
    """The value that a table stands for. Raises `SpecError` with what `explain` says; ``prefix``: of all names."""
    try:
        # Through JSON, so that strict validation takes TOML's arrays for tuples.
        return model.model_validate_json(canonical_json(table))
    except ValidationError as error:
        raise SpecError(explain(error, model, source, prefix)) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError([f"{source}: a value has no place in a run spec: {_one_line(str(error))}"]) from None


def explain(error: ValidationError, model: type[BaseModel], source: str, prefix: str = "") -> list[str]:
    """One line per fault of ``error``, naming file and field; an unknown key comes with the closest known one."""
    faults = error.errors(include_url=False, include_context=False)
    lines = [
        f"{source}: {_one_line(_fault(fault['type'], fault['loc'], fault['msg'], fault['input'], model, prefix))}"
        for fault in faults[:_MAX_FAULTS]
    ]
    return lines if len(faults) <= _MAX_FAULTS else [*lines, f"{source}: and {len(faults) - _MAX_FAULTS} more faults"]


def _fault(
    kind: str, location: tuple[int | str, ...], text: str, value: Any, model: type[BaseModel], prefix: str
) -> str:
    name = prefix + ".".join(str(part) for part in location)
    if kind == "extra_forbidden":
        return f"unknown key {name}{_suggestion(model, location)}"
    if kind == "missing":
        return f"{name} is missing; add it"
    text = text.removeprefix("Value error, ")
    if kind == "value_error" and (not name or text.startswith(f"{name}.")):
        return text
    return f"{name} = {_short(value)}: {text[0].lower() + text[1:]}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "…"
    return text if len(text) <= 60 else text[:57] + "…"


def _suggestion(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return "; remove it"
        model = field.annotation
    close = get_close_matches(str(location[-1]), model.model_fields, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(model.model_fields)}"


# --- writing ----------------------------------------------------------------------------------------------------------


def to_toml(data: dict[str, Any]) -> str:
    """A text whose tables are ``data``, as JSON has them: first the plain values, then a section per table."""
    scalars = {key: value for key, value in data.items() if not isinstance(value, dict)}
    tables = (_toml_table(key, value) for key, value in data.items() if key not in scalars)
    return _toml_lines(scalars) + "".join(tables)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in items) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in cast("list[Any]", value)) + "]"
    # JSON's strings, numbers and booleans are TOML's, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_lines(table: dict[str, Any]) -> str:
    return "".join(f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in table.items())


def _toml_table(name: str, table: dict[str, Any]) -> str:
    """A table with its sub-tables inline: one header per section, as an operator would write it."""
    return f"\n[{name}]\n{_toml_lines(table)}"
