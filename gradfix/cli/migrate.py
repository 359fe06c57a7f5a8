"""``gradfix migrate``: many repositories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from gradfix.cli.declared import Argument, Option
from gradfix.cli.options import (
    FAILED,
    FAULTS,
    NOTHING,
    Ignore,
    Isolated,
    Python,
    Quiet,
    Seed,
    Select,
    cores,
    fail,
    finite,
    kinds,
    seeded,
)
from gradfix.cli.words import codemods, verdicts

if TYPE_CHECKING:
    from gradfix.verdict import Status

MIGRATE = (
    "[bold]Examples[/bold]\n\n"
    "  gradfix migrate a b c.tar.gz            what is wrong in them, read and not run\n\n"
    "  gradfix migrate --from list.txt --prove the same, cures proved by running\n\n"
    "  gradfix migrate --prove --branch cured  a branch in each, a commit a cure\n\n"
    "  gradfix migrate --status                how far it is\n\n"
    "  gradfix migrate --refuse 3f0c9a51be77   this fault is to be left alone everywhere"
)
UNPROVED = (
    "{} writes cures that hold, and nothing is proved without running: add --prove, or --accept untried to take "
    "what nobody proved"
)


def migrate(
    repositories: Annotated[
        list[str] | None,
        Argument(
            metavar="REPO", help="Git repositories, folders and archives; none: go on with the workspace."
        ),
    ] = None,
    from_: Annotated[
        Path | None, Option("--from", metavar="LIST", help="A file that names them, one a line.")
    ] = None,
    workspace: Annotated[
        Path, Option("--workspace", metavar="DIR", help="Where state, reports and patches lie.")
    ] = Path("gradfix-migrate"),
    prove: Annotated[
        bool,
        Option(
            "--prove", metavar="", help="Run the scripts that train, behind a strict wall, and prove cures."
        ),
    ] = False,
    diff: Annotated[bool, Option("--diff", metavar="", help="A patch file for each.")] = False,
    write: Annotated[
        bool, Option("--write", metavar="", help="Write the cures into the working trees.")
    ] = False,
    branch: Annotated[
        str | None,
        Option("--branch", metavar="NAME", help="Commit the cures to a new branch; nothing else is touched."),
    ] = None,
    only: Annotated[
        list[str] | None,
        Option("--only", metavar="REPO", help="Only these of the workspace (name or pattern)."),
    ] = None,
    retry: Annotated[
        list[str] | None,
        Option("--retry", metavar="failed|refused|all|REPO", help="Look at these again."),
    ] = None,
    drop: Annotated[
        list[str] | None,
        Option("--drop", metavar="REPO", help="Take these out of the workspace, and do nothing else."),
    ] = None,
    status: Annotated[
        bool, Option("--status", metavar="", help="Say how far it is, and do nothing.")
    ] = False,
    only_fingerprint: Annotated[
        list[str] | None,
        Option("--only-fingerprint", metavar="GROUP", help="Only faults of these groups."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        Option(
            "--accept", metavar="VERDICTS|GROUP", help="Verdicts good enough to apply, or a group's cures."
        ),
    ] = None,
    refuse: Annotated[
        list[str] | None,
        Option("--refuse", metavar="GROUP", help="Leave the faults of this group alone."),
    ] = None,
    reconsider: Annotated[
        list[str] | None,
        Option("--reconsider", metavar="GROUP", help="Take back what was decided on this group."),
    ] = None,
    revert: Annotated[
        list[str] | None,
        Option(
            "--revert", metavar="CODEMOD", help="Take back what this codemod has done, in working trees too."
        ),
    ] = None,
    select: Select = None,
    ignore: Ignore = None,
    codemod: Annotated[
        list[str] | None, Option("--codemod", metavar="NAME", help="Only these cures.")
    ] = None,
    no_notes: Annotated[bool, Option("--no-notes", metavar="", help="No notes, only what is wrong.")] = False,
    jobs: Annotated[
        int | None,
        Option(
            "--jobs", "-j", metavar="N", min=1, help="Repositories at once [dim](default: one a core)[/dim]."
        ),
    ] = None,
    engine: Annotated[
        Literal["processes", "dask"], Option("--engine", help="Where the work is done.")
    ] = "processes",
    scheduler: Annotated[
        str | None,
        Option("--scheduler", metavar="ADDRESS", help="With --engine dask: where its scheduler is."),
    ] = None,
    time_limit: Annotated[
        float, Option("--time-limit", metavar="SECONDS", min=1, help="For one repository.")
    ] = 900.0,
    memory_limit: Annotated[
        float, Option("--memory-limit", metavar="GB", min=0.1, help="For one repository.")
    ] = 6.0,
    entries: Annotated[
        int, Option("--entries", metavar="N", min=1, help="Scripts of one repository to run at most.")
    ] = 8,
    python: Python = None,
    steps: Annotated[int, Option("--steps", metavar="N", min=1, help="Of every optimizer, in a run.")] = 3,
    timeout: Annotated[float, Option("--timeout", metavar="SECONDS", min=0.1, help="For one run.")] = 60.0,
    seed: Seed = 0,
    isolated: Isolated = False,
    quiet: Quiet = False,
) -> int:
    """Many repositories through find, cure and prove, in parallel; a kill loses nothing, the same call goes on.

    Nothing is run without --prove (what was proved is proved again, where it is looked at again), and nothing is
    written to a repository without --write, --branch or --revert.
    """
    from gradfix.batch.command import Command, CommandError
    from gradfix.batch.migrate import Batch, Wish
    from gradfix.batch.values import Options
    from gradfix.fingerprint import is_fingerprint
    from gradfix.report.terminal import Terminal

    words = [w.strip() for given in accept or () for w in given.split(",") if w.strip()]
    accepted = [w for w in words if is_fingerprint(w)]
    good = verdicts([w for w in words if w not in accepted])
    for flag, given in (("--diff", diff), ("--write", write), ("--branch", branch)):
        if given and not prove and "untried" not in good:
            fail(UNPROVED.format(flag))
    if branch == "":
        fail("--branch needs a name")
    if drop and (
        repositories or from_ or prove or diff or write or branch or retry or revert or refuse or status
    ):
        fail("--drop does nothing else; call again without it for the rest")
    if (engine == "dask") != bool(scheduler):
        fail("--engine dask and --scheduler ADDRESS go together")
    for option, limit in (
        ("--timeout", timeout),
        ("--time-limit", time_limit),
        ("--memory-limit", memory_limit),
    ):
        finite(option, limit)
    options = Options(
        prove=prove,
        select=kinds(select),
        ignore=kinds(ignore),
        codemods=codemods(codemod),
        notes=not no_notes,
        accept=cast("tuple[Status, ...]", good),
        python=python,
        steps=steps,
        timeout=timeout,
        seed=seeded(seed),
        isolated=isolated,
        entries=entries,
        seconds=time_limit,
        memory=int(memory_limit * (1 << 30)),
        only=tuple(only_fingerprint or ()),
    )
    batch = Batch(
        workspace.resolve(),  # workers have directories of their own
        options,
        Wish(diff, write, branch or ""),
        tuple(only or ()),
        tuple(retry or ()),
        jobs or cores(),
        scheduler or "",
    )
    command = Command(
        batch,
        tuple(repositories or ()),
        from_,
        tuple(accepted),
        tuple(refuse or ()),
        tuple(reconsider or ()),
        codemods(revert),
        tuple(drop or ()),
    )
    do = command.status if status else command.dropping if drop else command.go
    try:
        left = do(Terminal(quiet))
    except CommandError as problem:
        fail(str(problem))
    if left.failed:
        return FAILED
    return FAULTS if left.faults else NOTHING
