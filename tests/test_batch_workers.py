"""Workers that take one repository after the other, and the interpreter that stays warm meanwhile."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from repositories import faulty, nobody_works_in, plain, working_in

from gradfix.batch import repository, workers
from gradfix.batch.engine import Engine, local
from gradfix.batch.values import Options, RepoResult, Spec, loads
from gradfix.batch.warm import Warm
from gradfix.prove.runner import Runner
from gradfix.result import Settings
from gradfix.run import Run


def nothing(here: Engine, tmp_path: Path) -> RepoResult:
    """A repository that is soon done with."""
    return loads(RepoResult, here.submit(Spec("x", str(tmp_path / "none")), Options()).result())


def test_a_worker_is_kept_for_the_next_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "MANY", 2)
    seen = []
    with local(1, tmp_path) as here:
        for _ in range(3):
            assert nothing(here, tmp_path).ended == "refused"
            seen.append([p.name for p in tmp_path.iterdir()])
    assert [len(names) for names in seen] == [1, 0, 1]  # the second was its last
    assert seen[0] != seen[2]


def test_a_worker_that_dies_while_it_waits_costs_nothing(tmp_path):
    with local(1, tmp_path) as here:
        nothing(here, tmp_path)
        for pid in working_in(tmp_path):
            os.kill(pid, signal.SIGKILL)
        assert nobody_works_in(tmp_path)
        assert nothing(here, tmp_path).sentence == "there is no such folder or archive"
    assert list(tmp_path.iterdir()) == []


def test_a_worker_does_not_wait_for_ever(tmp_path):
    """A Dask worker is never told that there is no more to come."""
    mine = workers.Workers(str(tmp_path), rest=0.5)
    with ThreadPoolExecutor(1) as pool:
        nothing(Engine(pool, 1, mine.work), tmp_path)
    assert nobody_works_in(tmp_path)
    end = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < end:  # its folder goes after its process
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def test_the_next_repository_finds_no_run_of_the_one_before(tmp_path):
    """What is begun in case that it is needed goes on after its repository's end unless it is ended."""
    with Warm() as warm, warm.zygote(Settings()) as zygote, ThreadPoolExecutor(1) as pool:
        script = plain(tmp_path / "a", {"long.py": "import time\ntime.sleep(60)\n"}) / "long.py"
        zygote.ready()
        before = warm.processes
        run = pool.submit(zygote.run, Run(script, script.parent, script.parent))
        while not zygote._forked:
            time.sleep(0.01)
        assert zygote.settle()
        assert run.result(timeout=10).ended != "finished"
        assert warm.processes == before


def test_what_was_found_is_told_when_time_is_over(tmp_path, monkeypatch):
    place = plain(tmp_path / "repo", {"train.py": faulty()})
    monkeypatch.setattr(repository._Work, "_prove", lambda self, *_: setattr(self, "deadline", 0.0))
    late = repository.migrate_one(Spec("repo", str(place)), Options(prove=True), tmp_path / "scratch")
    assert [(f.kind, f.cures) for f in late.faults] == [("stale-saved-tensor", ())]
    said = "train.py: no cures were looked for in what is read only: the 900 s for a repository were over."
    assert said in late.remarks


def test_a_proof_that_was_begun_ends_when_a_repositorys_time_is_over(tmp_path):
    """Each run of it by itself would have a whole --timeout."""
    seen = []

    class Zygote:
        def run(self, run):
            seen.append(run.timeout)
            return SimpleNamespace(ended="finished")

    template = Run(tmp_path / "train.py", tmp_path, tmp_path, timeout=40.0)
    for left in (100.0, 20.0, -5.0):
        runner = Runner(Zygote(), template, time.monotonic() + left)
        runner.start({}).result()
        runner.close()
    assert seen[0] == 40.0
    assert 15.0 < seen[1] <= 20.0
    assert seen[2] == 1.0
