"""Which faults the person wants to hear of: by kind, by file, by fingerprint and by comments in the source."""

from __future__ import annotations

from collections.abc import Mapping

from gradfix.detect import Conflict
from gradfix.fingerprint import fingerprint
from gradfix.meant import meant
from gradfix.patterns import matches
from gradfix.result import Settings
from gradfix.suppress import suppressed


def asked(conflict: Conflict, settings: Settings, texts: Mapping[str, str]) -> bool:
    """Whether `conflict` is to be reported and cured. `texts` are the files it was found in, as they were then."""
    text = texts.get(conflict.at.file, "")
    if not selected(conflict, settings) or suppressed(conflict, text) or meant(conflict, text):
        return False
    if not settings.only and not settings.spared:
        return True
    name = fingerprint(conflict, texts)
    return name not in settings.spared and (not settings.only or name in settings.only)


def selected(conflict: Conflict, settings: Settings) -> bool:
    """The same by kind and file only."""
    kind, file = conflict.kind, conflict.at.file
    if (settings.select and kind not in settings.select) or kind in settings.ignore:
        return False
    return not any(kind in e.kinds and matches(e.base, (e.pattern,), file) for e in settings.exempt)
