"""In which order repositories are begun, and how many at once."""

from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager

from repositories import git, plain, repository

from gradfix.batch import order
from gradfix.batch.engine import Engine
from gradfix.batch.migrate import Batch
from gradfix.batch.order import UNKNOWN, largest_first, size
from gradfix.batch.state import State
from gradfix.batch.values import Options, RepoResult, Spec, dumps, loads


def places(folder, sizes):
    made = [plain(folder / f"r{n}", {"train.py": "#" * n}) for n in sizes]
    return [Spec(place.name, str(place)) for place in made]


def test_the_largest_of_those_looked_at_comes_first(tmp_path, monkeypatch):
    given = places(tmp_path, [3, 9, 1, 20, 7, 5])
    assert [s.name for s in largest_first(given)] == ["r20", "r9", "r7", "r5", "r3", "r1"]
    monkeypatch.setattr(order, "LOOK", 3)
    assert [s.name for s in largest_first(given)] == ["r9", "r20", "r7", "r5", "r3", "r1"]
    monkeypatch.setattr(order, "LOOK", 1)
    assert list(largest_first(given)) == given
    assert list(largest_first([])) == []


def test_a_batch_of_any_length_begins_at_once(tmp_path):
    def many():
        for n in range(10**9):
            yield Spec(str(n), str(tmp_path / "not there"))

    assert next(largest_first(many())).name == "0"  # alike: as they were given


def test_what_is_read_counts(tmp_path):
    own = {"a.py": "1234", "more/b.py": "12"}
    others = {".venv/c.py": "123456", "node_modules/d.py": "123", "weights.bin": "123456"}
    work = repository(tmp_path / "work", own | others)
    assert size(work) == 6
    git(tmp_path, "clone", "--bare", "work", "bare.git")
    assert size(tmp_path / "bare.git") == UNKNOWN
    (tmp_path / "sdist.tar.gz").write_bytes(b"12345")
    assert size(tmp_path / "sdist.tar.gz") == 5
    assert size(tmp_path / "nowhere") == 0


class Asked(Executor):
    """Keeps what it is asked to do, and does the first of it when told."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Future[str]]] = []

    def submit(self, work, spec, options):
        name, future = loads(Spec, spec).name, Future()
        self.waiting.append((name, future))
        return future

    def finish(self) -> None:
        name, future = self.waiting.pop(0)
        future.set_result(dumps(RepoResult(name, "done")))


def test_no_more_is_begun_than_there_are_workers_and_none_of_them_waits(tmp_path, monkeypatch):
    given = places(tmp_path / "repos", [5, 4, 3, 2, 1])
    asked, seen = Asked(), []

    @contextmanager
    def two(*_):
        yield Engine(asked, 2)

    monkeypatch.setattr(Batch, "_engine", two)
    monkeypatch.setattr("gradfix.batch.migrate.wait", lambda flying, return_when: _waited(asked, flying))
    (tmp_path / "ws").mkdir()
    state = State(tmp_path / "ws")
    state.add(given)
    Batch(tmp_path / "ws", Options(), jobs=2).run(state, lambda p: seen.append((p.done, len(asked.waiting))))
    state.close()
    assert seen == [(0, 0), (1, 2), (2, 2), (3, 2), (4, 1), (5, 0)]


def _waited(asked, flying):
    asked.finish()
    return wait(flying, return_when="FIRST_COMPLETED")
