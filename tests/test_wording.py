"""Code inside sentences: one line, without comments, never cut within a word."""

import pytest

from gradfix.tape import Site
from gradfix.wording import briefly, line, quoted, shortened


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("d = D(f)", "d = D(f)"),
        ("loss = torch.cat(\n    [a, b],  # both\n    dim=1,\n)", "loss = torch.cat([a, b], dim=1)"),
        ("f(\n    # why\n    x,\n)", "f(x)"),
        ("log('a # b')", "log('a # b')"),
        (
            "noise = torch.randn(batch_size, latent_size, device=real.device, dtype=real.dtype)",
            "noise = torch.randn(…)",
        ),
        (
            "a_long_name and another_long_name and a_third_name_of_some_length or none",
            "a_long_name and another_long_name and …",
        ),
    ],
)
def test_briefly(code, said):
    assert briefly(code) == said


def test_only_what_is_quoted_is_said_briefly():
    assert quoted("move `f(\n  x,  # y\n)` behind it") == "move `f(x)` behind it"


def test_shortened_ends_with_a_sentence_or_a_word():
    assert shortened("A sentence of some words. Another one that is long.", 40) == "A sentence of some words."
    assert shortened("one two three", 9) == "one two …"


def test_lines_of_a_notebook_count_within_their_cell():
    text = "# %% cell 2\nx = 1\n# %% cell 5\ny = 2\nz = 3\n"
    texts = {"/n.ipynb": text, "/n.py": text}
    said = [line(Site(file, 5, 0, 5, 5), texts) for file in ("/n.ipynb", "/n.py", "/gone.ipynb")]
    assert said == ["cell 5, line 2", "line 5", "line 5"]
