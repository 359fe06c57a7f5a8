"""gradfix's dataclass does what the standard library's does."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, replace

import pytest

from gradfix.dataclass import dataclass


def described(make, module=__name__):
    """The same classes by one decorator or the other."""

    @make(frozen=True, slots=True)
    class Base:
        """An event."""

        time: int
        names: tuple = ()

    @make(frozen=True, slots=True)
    class Whole(Base):
        text: str = field(default="", repr=False)
        table: dict = field(default_factory=dict, hash=False)
        aside: object = field(default=None, compare=False)

        @property
        def twice(self):
            return self.time * 2

    @make(frozen=True)
    class Open:
        value: float

    @make(frozen=True, slots=True, eq=False)
    class Itself:
        value: int = 0

    @make(slots=True)
    class Changing:
        values: list = field(default_factory=list)
        inner: object = None

    @make(frozen=True, slots=True)
    class Empty:
        pass

    return {c.__name__: c for c in (Base, Whole, Open, Itself, Changing, Empty)}


OURS, THEIRS = described(dataclass), described(dataclasses.dataclass)
both = pytest.mark.parametrize("classes", [OURS, THEIRS], ids=["ours", "theirs"])


@both
def test_values_defaults_and_factories(classes):
    whole = classes["Whole"](1, text="a")
    assert (whole.time, whole.names, whole.text, whole.table, whole.aside) == (1, (), "a", {}, None)
    assert whole.twice == 2
    assert classes["Whole"](1).table is not classes["Whole"](1).table
    assert classes["Whole"].__match_args__ == ("time", "names", "text", "table", "aside")
    for wrong in ((), (1, 2, 3, 4, 5, 6)):
        with pytest.raises(TypeError):
            classes["Whole"](*wrong)


@both
def test_equality_and_hash(classes):
    base, whole, own, empty = (classes[n] for n in ("Base", "Whole", "Itself", "Empty"))
    assert whole(1, aside=2) == whole(1, aside=3) != whole(1, text="b")
    assert base(1) != whole(1)
    assert hash(whole(1, table={1: 2}, aside=[])) == hash(whole(1))
    assert {base(1), base(1), base(2)} == {base(1), base(2)}
    assert empty() == empty()
    assert hash(empty()) == hash(empty())
    assert own() != own()
    assert len({own(), own()}) == 2
    nan = float("nan")
    assert classes["Open"](nan) == classes["Open"](nan)
    assert classes["Changing"]() == classes["Changing"]()
    with pytest.raises(TypeError):
        hash(classes["Changing"]())


@both
def test_what_is_frozen_stays(classes):
    for made, name in (
        (classes["Whole"](1), "time"),
        (classes["Open"](1.0), "value"),
        (classes["Itself"](), "value"),
    ):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(made, name, 2)
        with pytest.raises(FrozenInstanceError, match=name):
            delattr(made, name)
    changing = classes["Changing"]()
    changing.inner = 3
    assert changing.inner == 3
    with pytest.raises(AttributeError):
        changing.other = 1


@both
def test_shown(classes):
    assert repr(classes["Whole"](1, text="a")).endswith(".Whole(time=1, names=(), table={}, aside=None)")
    changing = classes["Changing"]()
    changing.inner = changing
    assert repr(changing).endswith(".Changing(values=[], inner=...)")


@both
def test_the_modules_own_functions(classes):
    whole = classes["Whole"](1, ("a",))
    assert replace(whole, time=2) == classes["Whole"](2, ("a",))
    assert dataclasses.asdict(classes["Base"](1)) == {"time": 1, "names": ()}
    assert [f.name for f in dataclasses.fields(whole)] == ["time", "names", "text", "table", "aside"]
    assert copy.copy(whole) == copy.deepcopy(whole) == whole


@dataclass(frozen=True, slots=True)
class Kept:
    number: int
    names: tuple = ()


def test_pickled_for_another_process():
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Kept(1, ("a",)), protocol)) == Kept(1, ("a",))


def test_signatures_are_the_same():
    for name, theirs in THEIRS.items():
        ours = OURS[name]
        assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
        assert ours.__init__.__qualname__.endswith(f"{name}.__init__")
