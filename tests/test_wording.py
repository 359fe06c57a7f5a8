"""Code inside sentences: one line, without comments, never cut within a word."""

import pytest

from gradfix.wording import briefly, quoted, shortened


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
