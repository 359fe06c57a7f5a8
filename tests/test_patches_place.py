"""One file's hunks into a text that has changed: each lands where it belongs, or is refused with a reason."""

import textwrap
from pathlib import Path

import pytest

from gradfix.patches import make
from gradfix.patches.place import Placed, Refused, place

FIXTURES = Path(__file__).parent.parent / "fixtures"
OLD = """
import torch

net = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def train(batches):
    total = 0
    for batch in batches:
        hidden = net(batch).exp()
        hidden += 1
        loss = hidden.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss
    return total


def show(total):
    print("total", total)
"""
NEW = OLD.replace("hidden += 1", "hidden = hidden + 1").replace(
    "        opt.step()\n", "        opt.step()\n        opt.zero_grad()\n"
)


def placed(now: str, old: str = OLD, new: str = NEW) -> Placed:
    return place(make.file_patch("x.py", old, new), now)


def lands(change) -> None:
    """The patch of OLD in what `change` makes of it is what `change` makes of NEW."""
    assert change(OLD) != OLD
    assert placed(change(OLD)).text == change(NEW)


def refused(now: str, old: str = OLD, new: str = NEW) -> str:
    with pytest.raises(Refused) as why:
        placed(now, old, new)
    return str(why.value)


def test_the_very_text():
    assert placed(OLD).text == NEW
    assert placed(OLD).lines == ((12, 12), (17, 17))


def test_further_down():
    lands(lambda text: text.replace("import torch\n", "import sys\nimport torch\n\nDEBUG = False\n"))


def test_a_name_is_another_one_everywhere():
    lands(lambda text: text.replace("hidden", "features"))


def test_a_name_is_another_one_in_a_few_places_only():
    said = refused(OLD.replace("hidden += 1", "batch += 1"))
    assert "`batch` there is not just another name for `hidden`" in said


def test_a_name_of_the_file_is_another_one():
    lands(lambda text: text.replace("opt.", "sgd.").replace("opt =", "sgd ="))


def test_a_name_is_gone():
    said = refused(OLD.replace("opt =", "sgd ="))
    assert "`opt` is bound nowhere any more" in said


def test_a_function_became_a_method():
    def method(text):
        start, end = text.index("def train"), text.index("def show")
        body = textwrap.indent(text[start:end].strip("\n"), "    ")
        return f"{text[:start]}class Trainer:\n{body}\n\n\n{text[end:]}"

    lands(method)


def test_tabs():
    lands(lambda text: text.replace("    ", "\t"))


def test_a_function_moved():
    def last(text):
        start, end = text.index("def train"), text.index("def show")
        return f"{text[:start]}{text[end:]}\n\n{text[start:end].rstrip()}\n"

    lands(last)


def test_a_comment_came_to_the_line():
    lands(
        lambda text: text.replace("hidden += 1", "hidden += 1  # shift").replace(
            "hidden + 1", "hidden + 1  # shift"
        )
    )


def test_a_comment_moves_with_its_line():
    old = OLD.replace(
        "        loss.backward()\n        opt.step()\n",
        "        loss.backward()\n        opt.step()  # now\n",
    )
    new = old.replace("        opt.step()  # now\n", "").replace("loss.backward()\n", "loss.backward()\n", 1)
    new = new.replace(
        "        loss = hidden.mean()\n", "        loss = hidden.mean()\n        opt.step()  # now\n"
    )
    assert placed(old.replace("# now", "# later"), old, new).text == new.replace("# now", "# later")


def test_blank_lines_and_comments_around():
    lands(lambda text: text.replace("        loss = hidden", "        # the mean\n\n        loss = hidden"))


def test_a_copy_of_the_function_makes_it_unclear():
    start, end = OLD.index("def train"), OLD.index("def show")
    copy = OLD[start:end].replace("def train", "def train_again")
    said = refused(OLD + "\n\n" + copy)
    assert "`hidden += 1`" in said
    assert "may be in line 12 and 29, which fit equally well" in said


def test_two_places_alike_from_the_beginning():
    half = OLD[OLD.index("def train") :]
    old = OLD + "\n\n" + half.replace("train", "other").replace("show", "tell")
    new = NEW + old[len(OLD) :]
    assert placed("import sys\n" + old, old, new).text == "import sys\n" + new


def test_its_lines_are_gone():
    said = refused(OLD.replace("        hidden += 1\n", ""))
    assert said.startswith("x.py: `hidden += 1` (line 12 of the source of the fix) can't be found any more")


def test_its_line_says_something_else():
    said = refused(OLD.replace("hidden += 1", "hidden += 2"))
    assert "the nearest to it is line 12: `hidden += 2`" in said


def test_something_came_in_between():
    assert "the place after `opt.step()`" in refused(
        OLD.replace("opt.step()\n", "opt.step()\n        record(loss)\n")
    )


def test_only_the_line_is_left():
    new = OLD.replace("hidden += 1", "hidden = hidden + 1")
    other = "import torch\n\n\ndef other(hidden):\n    hidden += 1\n    hidden.mean().backward()\n"
    found = placed(other, OLD, new)
    assert not found.open  # its values go another way, too
    once = f"hidden = torch.ones(2)\n{OLD.partition('hidden = net(batch).exp()')[2]}".replace(
        "\n        ", "\n"
    )
    found = placed(once[: once.index("    return")], OLD, new)
    assert found.doubt.startswith(
        "x.py: `hidden += 1` (line 12 of the source of the fix) may be in line 3, but too"
    )
    assert found.open
    twice = f"{other}\n\n{other.partition('torch')[2].replace('other', 'more')}"
    assert "too much around it is not what it was" in refused(twice, OLD, new)


def test_applied_already():
    assert placed("import sys\n" + NEW).already


def test_applied_already_where_its_lines_fit_elsewhere_too():
    """What the fix brings in may look like what it takes away, under another name or in another block."""
    old = OLD.replace("def show(total)", "def shown(total)")
    new = old.replace("def train(batches):", "def train_all(batches):\n    batches = list(batches)").replace(
        "        opt.zero_grad()\n        loss.backward()\n",
        "        loss.backward()\n        opt.zero_grad()\n",
    )
    assert placed(new, old, new).already
    assert placed("import sys\n" + new + "\nshown([])\n", old, new).already
    assert placed("import sys\n" + old, old, new).text == "import sys\n" + new


def test_applied_already_in_one_of_two_copies():
    """The other copy is not what the fix was made of, as far as anybody knows; so it is not called applied."""
    copy = OLD[OLD.index("def train") : OLD.index("def show")].replace("def train", "def again")
    assert not placed(f"{NEW}\n\n{copy}").already


def test_the_line_that_the_fix_brings_in_is_at_another_place():
    """Without it the text would be the fix's source, but the fix puts it elsewhere."""
    new = OLD.replace("        opt.step()\n", "        opt.zero_grad()\n        opt.step()\n")
    elsewhere = OLD.replace("        opt.zero_grad()\n", "        opt.zero_grad()\n" * 2)
    assert placed(new, OLD, new).already
    assert not placed(elsewhere, OLD, new).already


def test_the_line_that_the_fix_takes_away_was_moved():
    """Its neighbours meet, as after the fix, but it is still there."""
    new = OLD.replace("        opt.zero_grad()\n", "")
    moved = new.replace("    total = 0\n", "    total = 0\n    opt.zero_grad()\n")
    assert not placed(moved, OLD, new).already


@pytest.mark.parametrize("after", sorted(FIXTURES.glob("*/*/after.py")), ids=lambda p: p.parent.name)
def test_every_fixture_is_applied_once(after):
    old, new = after.with_name("before.py").read_text(), after.read_text()
    assert placed(new, old, new).already


def test_a_part_is_applied():
    said = refused(OLD.replace("hidden += 1", "hidden = hidden + 1"))
    assert "a part of it is there" in said


def test_what_the_fix_takes_away_is_gone():
    old = OLD.replace("loss.backward()", "loss.retain_grad()\n        loss.backward()")
    assert placed("import sys\n" + OLD, old, OLD).already


def test_the_name_that_the_fix_brings_in_is_taken():
    new = OLD.replace("        hidden += 1\n", "        shifted = hidden + 1\n").replace(
        "loss = hidden.mean()", "loss = shifted.mean()"
    )
    assert placed("import sys\n" + OLD, new=new).text == "import sys\n" + new
    said = refused(OLD.replace("total = 0", "total = shifted = 0"), new=new)
    assert "`shifted`, which the fix brings in, is a name of the file's already" in said


def test_the_end_of_a_block_that_went_below_another():
    """What goes in last may belong to the `if` or be behind it."""
    old = "import torch\nw = torch.ones(3)\nfor x in w:\n    y = x.exp()\n    y.sum()\n"
    new = old + "    y = y.detach()\n"
    now = old.replace("    y = x.exp()\n    y.sum()\n", "    if x:\n        y = x.exp()\n        y.sum()\n")
    assert "indented otherwise than what is around it" in refused(now, old, new)


def test_what_stands_in_another_order():
    swapped = OLD.replace("        hidden += 1\n", "").replace(
        "        total += loss\n", "        total += loss\n        hidden += 1\n"
    )
    assert refused(swapped).startswith("x.py: `hidden += 1`")


def test_long_lines_take_no_time():
    """Compared by the letter they would take minutes."""
    old = OLD.replace(
        "        total += loss\n", f"        total += loss; x = [{', '.join('123' * 20_000)}]\n"
    )
    now = old.replace("1, 2, 3", "1, 3, 2, 2").replace("import torch", "import torch, sys")
    assert placed(now, old, old.replace("hidden += 1", "hidden = hidden + 1")).lines == ((12, 12),)


def test_a_text_that_is_no_python():
    assert refused(OLD + "def") == "x.py has changed, and can't be parsed as it is"


def test_names_in_a_formatted_string():
    old = OLD.replace("hidden += 1", "hidden += 1; print(f'{hidden}')")
    new = old.replace("hidden += 1;", "hidden = hidden + 1;")
    now = old.replace("hidden", "features").replace("{features}", "{hidden}")
    assert "has names in a text" in refused(now, old, new)


def test_a_piece_that_would_be_torn_is_refused():
    """What is above went below an `if`, what is below did not: the new lines may belong to either."""
    old = "for n in range(9):\n    if n > 3:\n        first(n)\n\n    if n > 5:\n        second(n)\n"
    new = old.replace(
        "first(n)\n", "first(n)\n    if n > 4:\n        between(n)\n    else:\n        other(n)\n"
    )
    above, below = old.split("\n\n")
    head, *lines = above.split("\n")
    torn = "\n".join([head, "    if True:", *(f"    {line}" for line in lines)]) + "\n\n" + below
    assert "indented otherwise" in refused(torn, old, new)
    deeper = "if True:\n" + textwrap.indent(old, "    ")
    assert placed(deeper, old, new).text == "if True:\n" + textwrap.indent(new, "    ")


@pytest.mark.parametrize(
    "change", [lambda text: text, lambda text: text.replace("torch\n", "torch\nimport sys\n", 1)]
)
def test_code_that_is_put_aside_in_a_string_is_no_place(change):
    lands(lambda text: change(text) + f'\n\nOLD = """{OLD}"""\n')
    lands(lambda text: f"'''{OLD}'''\n" + change(text))
    assert "can't be found any more" in refused(f'net = None\nOLD = """{OLD}"""\n')


def test_a_docstring_is_around_a_place():
    def told(text: str) -> str:
        return text.replace(
            "    total = 0\n", '    """Train.\n\n    Gives the loss.\n    """\n    total = 0\n'
        )

    assert placed(told(OLD), told(OLD), told(NEW)).text == told(NEW)
    assert placed(OLD, told(OLD), told(NEW)).text == NEW
    lands(told)
