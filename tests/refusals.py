"""A ``ValueError`` by the start of its message: the clause, the values and the limit."""

from __future__ import annotations

import re

import pytest


def refusal(message: str) -> pytest.RaisesExc[ValueError]:
    """The context in which a ``ValueError`` must be raised whose text starts with ``message``."""
    return pytest.raises(ValueError, match=f"^{re.escape(message)}")


def first_word(value: object) -> str:
    """The clause or argument that a message names, as a test id."""
    return value.partition(":")[0] if isinstance(value, str) else ""
