"""The arrows of the design in order: run, detect, propose, prove, choose. A generator of Results.

The work itself is in gradfix.repair, whose imports (libcst) load while the zygote imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gradfix.result import Problem, Result, Settings
from gradfix.run import InterpreterError
from gradfix.run.zygote import Zygote


def fix(
    entry: Path,
    settings: Settings,
    text: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    zygote: Zygote | None = None,
    served: Mapping[str, str] | None = None,
) -> Iterator[Result]:
    """Run `entry`, find its faults and, unless ``settings.repair`` is off, prove cures for them: one Result.

    `text` is served in the entry's place (an unsaved buffer), `served` in place of its siblings, by path.
    `say` hears what is being done, for a progress line.
    `zygote` is one that is warm already; without it one is started for this call.
    A tape or a traceback is read, and nothing is run; nor is it without ``settings.run``. So is the text where the
    interpreter can't be used; without cures to look for, that raises gradfix.run.InterpreterError.
    """
    entry = entry.resolve()
    if settings.tape is not None or settings.traceback or not settings.run:
        from gradfix import unproved

        from_text = settings.traceback or not settings.run
        yield (unproved.from_text if from_text else unproved.from_tape)(entry, settings, text)
        return
    if zygote is None:
        try:
            with Zygote(settings.python, sandbox=settings.sandbox or "auto") as own:
                yield from fix(entry, settings, text, say, own, served)
        except InterpreterError as problem:
            if not settings.repair:
                raise
            from gradfix import unproved

            why = Problem(str(problem), getattr(problem, "detail", ""))
            yield unproved.from_text(entry, settings, text, why)
        return
    # torch is being imported in the zygote now: import libcst and parse meanwhile
    from gradfix.repair import repair

    yield repair(entry, settings, text, say, zygote, served or {})
