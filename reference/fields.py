"""Strict reading of JSON: every error is one line that says where (the JSON path), what was expected, what is there."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection
from typing import Any, NoReturn

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

_LONGEST_SHOWN = 60


class CaseError(ValueError):
    """A case that cannot be read. The message is one line, ``where: what``."""


def read_json(path: str | os.PathLike[str]) -> object:
    """The JSON value in a UTF-8 file. Names given twice and NaN are refused; CaseError says why it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse_json(file.read())
    except CaseError as error:
        raise CaseError(f"{printable(path)}: {error}") from None
    except UnicodeDecodeError as error:
        raise CaseError(f"{printable(path)}: not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise CaseError(f"{printable(path)}: {error.strerror or error}") from None
    except ValueError as error:  # a path with a NUL in it
        raise CaseError(f"{printable(path)}: {error}") from None


def parse_json(text: str) -> object:
    """The JSON value of ``text``; names given twice, NaN and numbers too large for a float are refused. Raises
    CaseError.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_names, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise CaseError(f"line {error.lineno} column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise CaseError("not a case: nested too deeply") from None
    except CaseError:
        raise
    except ValueError:  # Python converts no integer of more than 4300 digits
        raise CaseError("not a case: it holds an integer of thousands of digits") from None


def _unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise CaseError(f"not a case: the field {shown(name)} is given twice in one object")
        found[name] = value
    return found


def _finite(digits: str) -> float:
    """Python makes an infinity of 1e999, which no JSON holds when it is written again."""
    number = float(digits)
    if math.isinf(number):
        raise CaseError(f"not a case: the number {digits[:_LONGEST_SHOWN]} is too large")
    return number


def _no_constant(name: str) -> NoReturn:
    raise CaseError(f"not JSON: {name} is no JSON number")


def printable(path: str | os.PathLike[str]) -> str:
    """A path on one line, whatever characters it holds."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path))


def shown(value: object) -> str:
    """A JSON value in a message: short, on one line, in JSON's own words."""
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float | str):
        text = json.dumps(value)
        return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
    return f"a Python {type(value).__name__}"


def joined(where: str, name: str) -> str:
    """The path of field ``name`` in the object at ``where``."""
    if not name.isidentifier() or not name.isascii():
        return f"{where}[{shown(name)}]"
    return f"{where}.{name}" if where else name


def fields(value: object, where: str, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """An object that has every ``required`` field and no field that is neither required nor optional."""
    if not isinstance(value, dict):
        raise CaseError(f"{where or 'case'}: expected an object, got {shown(value)}")
    for name in required:
        if name not in value:
            raise CaseError(f"{joined(where, name)}: missing")
    for name in value:
        if name not in required and name not in optional:
            known = ", ".join((*required, *optional))
            raise CaseError(f"{joined(where, str(name))}: unknown field; known are {known}")
    return value


def items(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise CaseError(f"{where}: expected a list, got {shown(value)}")
    return value


def integer(value: object, where: str, low: int = INT32_MIN, high: int = INT32_MAX) -> int:
    """An integer in [low, high]. ``true`` and ``1.0`` are none."""
    if type(value) is int and low <= value <= high:
        return value
    if type(value) is int and value > high:
        limit = f" <= {high}"
    elif low in (INT32_MIN, INT64_MIN) and type(value) is not int:
        limit = ""
    else:
        limit = f" >= {low}"
    raise CaseError(f"{where}: expected an integer{limit}, got {shown(value)}")


def integers(value: object, where: str, low: int = INT32_MIN, high: int = INT32_MAX) -> tuple[int, ...]:
    return tuple(integer(item, f"{where}[{index}]", low, high) for index, item in enumerate(items(value, where)))


def boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise CaseError(f"{where}: expected true or false, got {shown(value)}")
    return value


def choice(value: object, where: str, options: Collection[str]) -> str:
    if not isinstance(value, str) or value not in options:
        raise CaseError(f"{where}: expected {' or '.join(map(shown, options))}, got {shown(value)}")
    return value
