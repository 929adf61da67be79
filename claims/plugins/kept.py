"""What was measured on models that nobody trains, kept between sessions as trained runs are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from claims.harness.files import cache_dir
from claims.training import sealed


def kept(measure: Callable[[], Any], code: Iterable[ModuleType], *facts: str) -> Any:
    """`measure()`, plain data as JSON has it, or what it came to in an earlier session.

    Args:
        measure: the measurement; it is repeated where what was kept is damaged.
        code: the modules that measure: a change of their files makes it anew.
        facts: what else the value depends on, such as the digest of the implementation's source.
            The torch version needs no mention.
    """
    files = [Path(str(module.__file__)).read_bytes() for module in code]
    parts = [torch.__version__, *(hashlib.sha256(file).hexdigest() for file in files), *facts]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]
    path = cache_dir() / "measured" / key
    with suppress(sealed.TornFile, OSError):
        if (body := sealed.read(path)) is not None:
            return json.loads(body)
    value = measure()
    with suppress(OSError):  # that the cache cannot be written has been said of the tokens
        sealed.write(path, json.dumps(value).encode())
    return value
