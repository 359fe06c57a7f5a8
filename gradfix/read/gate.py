"""Which files are worth reading: told from their bytes, long before they are parsed.

A fault needs a backward, or a write (an op of the effect table that writes, ``+=``, an item or ``.data`` that is
assigned to, ``inplace=``, ``max_norm=``, an optimizer's step) beside what requires grad. A file that holds no backward
and no ``forward`` can only lead to one if its main part does something: a statement at the margin that is no import, no
definition and no value that is merely kept.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from keyword import kwlist

_LETTERS = bytes(each if each < 0x80 else ord("z") for each in range(256))
_GRAD = re.compile(rb"grad\s*\((?!\s*\))")
_QUOTE = re.compile(rb"[\"']")
_AFTER = re.compile(rb"(?<![\w.%!])([^\W\d]\w*)[ \t]+\Z")
_KEYWORDS = frozenset(word.encode() for word in (*kwlist, "print", "exec")) - {
    b"def"
}  # a call may follow them
_BACKWARD = re.compile(rb"backward\b")
_NAMED = re.compile(rb"[(,\[]\s*([\"'])backward\1\s*(?![:\s]|(?:if|in|not)\b|[=!]=)")
_IMPORTED = re.compile(rb"autograd\s+import\b[^\n]*\b(?:grad|backward)\b")
_FORWARD = re.compile(rb"forward\b")
LIBRARIES = frozenset(
    [
        "torch",
        "numpy",
        "scipy",
        "torchvision",
        "pandas",
        "sklearn",
        "matplotlib",
        "typing",
        "math",
        "os",
        "sys",
    ]
)  # that are no module of the program's, whatever lies beside it
_BROUGHT = re.compile(
    rb"^[ \t]*(?:from\s*\.|import\s[^\n]*,|(?:from|import)\s+(?!(?:%s)\b)\w)"
    % "|".join(sorted(LIBRARIES)).encode(),
    re.M,
)
# makers of what is kept at the margin of every library
_KEPT = (
    rb"(?:typing\.)?(?:TypeVar|ParamSpec|TypeVarTuple|NewType|NamedTuple)|(?:\w+\.)*get_?(?:\w+_)?[lL]ogger\w*"
    rb"|(?:collections\.)?(?:namedtuple|defaultdict|OrderedDict|deque|Counter)|re\.compile|os\.\w[\w.]*"
    rb"|Path|pathlib\.\w+|threading\.\w+|contextvars\.\w+|functools\.partial|struct\.\w+"
    rb"|set|dict|list|tuple|frozenset|object"
)
# a statement at the margin that does something
_ACTIVE = re.compile(
    rb"\n(?:if\s+__name__|(?:for|while|with)\b[^\n]*[:(\[{]|async\s+(?:for|with)|await\b"
    rb"|(?!(?:__all__|from|import|class|def|async|return|raise|assert|del|if|else|elif|try|except|finally|global)\b)"
    rb"[^\W\d][\w.]*[ \t]*(?:\(|[-+*/%@&|^<>]+=|\[[^\n]*\][^\n=]*=(?!=)|(?::[^\n=]*)?=[ \t]*(?!(?:"
    + _KEPT
    + rb")\()[\w.\[\]]+\())"
)
_OPENS = rb"\s*\("


class _Any:
    """Patterns any of which may be found. They stand apart, and each begins with the words it looks for: that is found
    many times as fast as one pattern of them all, or one that begins with a boundary."""

    def __init__(self, *patterns: bytes) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def within(self, raw: bytes) -> bool:
        return any(pattern.search(raw) for pattern in self._patterns)


def _whole(word: bytes) -> bytes:
    """A pattern of `word` where no other word ends in it."""
    return rb"%s(?<!\w%s)" % (word, word)


_GRADIENT = _Any(
    rb"requires_grad",
    rb"\.grad\b",
    *(w + rb"\b" for w in (b"Parameter", b"nn", b"optim", b"forward", b"Variable")),
)
_LEAF = _Any(
    rb"requires_grad(?:_\s*\(|\s*=(?!=|\s*False\b))",
    *(_whole(w) + _OPENS for w in (b"Parameter", b"Variable")),
    rb"\.parameters" + _OPENS,
    rb"\.weight\b",
    rb"\.bias\b",
)
_OLD = _Any(rb"\.data\b", rb"\.grad\b", rb"volatile", rb"clip_grad_norm\b")
_OWN = _Any(rb"\.grad\b", rb"\.data\b", rb"\.step\b", rb"optim\b", rb"volatile", rb"clip_grad_norm\b")
_FLAGGED = (b"ReLU", b"ReLU6", b"SELU", b"SiLU", b"Mish", b"LeakyReLU", b"ELU", rb"Hardtanh")
_WRITES = _Any(
    rb"inplace", rb"max_norm", rb"\.data\b", _whole(b"out") + rb"\s*=(?!=)", rb"setattr", rb"load_state_dict",
    rb"init\s*\.", rb"_foreach_\w+_\b", rb"set_data",
    rb"=(?<=[-+*/%@&|^]=)(?!\s*(?:[frbFRB]?['\"\[]))",
    # the activations whose first, second or third argument is inplace
    *(_whole(w) + _OPENS + rb"[^)]*\bTrue\b" for w in _FLAGGED),
    _whole(b"Dropout") + rb"\w*" + _OPENS + rb"[^)]*\bTrue\b",
)  # fmt: skip
_PARAMETER = re.compile(rb"Parameter\s*\(")
_PARENTHESIS = re.compile(rb"[()]")
_GOES_ON = re.compile(rb"[ \t]*(?:[-+*/@](?!=)|\.(?!requires_grad|to\b|cuda\b|data\b))")
_ITEM = re.compile(rb"\]\s*=(?!=)")
_TYPED = re.compile(rb"[ \t]*(?:\**[\w.]+[ \t]*:|(?:async[ \t]+)?def\b)")
_CALLED = re.compile(rb"\(\s*(_\w+)")  # read backwards, where a parenthesis is what to look for


def might_matter(raw: bytes) -> bool:
    """Whether a file of these bytes could show a fault, or lead to one: a quick test that never says no to one that
    does."""
    raw = _plain(raw)
    if differentiates(raw) or (is_module(raw) and writes(raw)):
        return True
    if _ACTIVE.search(b"\n" + raw) is None:
        return False
    return _BROUGHT.search(raw) is not None or (gradients(raw) and (own(raw) or writes(raw)))


def _plain(raw: bytes) -> bytes:
    """`raw` as the patterns take it: every line ends in a ``\\n``, and every letter, whatever its alphabet, is one."""
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return raw if raw.isascii() else raw.removeprefix(BOM_UTF8).translate(_LETTERS)


def differentiates(raw: bytes) -> bool:
    """Whether `raw` calls a backward."""
    if named(raw) or b"def training_step" in raw:
        return True
    for found in _BACKWARD.finditer(raw):
        at = found.start()
        at -= 7 * raw.startswith(b"manual_", max(at - 7, 0))  # Lightning's
        if raw[max(at - 40, 0) : at].rstrip(b" \t\r\n\\")[-1:] == b"." and not _told(raw, at):
            return True
    for found in _GRAD.finditer(raw):
        before = raw[found.start() - 1 : found.start()]
        if not before.isalnum() and before != b"_" and not _told(raw, found.start()):
            return True
    return imported(raw)


def named(raw: bytes) -> bool:
    """Whether `raw` has a backward by its name alone, as ``getattr(loss, "backward")`` does: a value that is handed
    on, not one that is compared or kept."""
    return (b'"backward"' in raw or b"'backward'" in raw) and _NAMED.search(raw) is not None


def imported(raw: bytes) -> bool:
    """Whether `raw` brings one in, by whatever name."""
    return b"autograd" in raw and _IMPORTED.search(raw) is not None


def _told(raw: bytes, at: int) -> bool:
    """Whether what stands at `at` is part of a comment, an example or a sentence for certain: told from its line."""
    begin = raw.rfind(b"\n", 0, at) + 1
    line = raw[begin:at]
    if b'"""' in line or b"'''" in line:
        return False
    comment = line.find(b"#")
    if comment >= 0 and not _QUOTE.search(line, 0, comment):
        return raw[begin - 2 : begin] != b"\\\n"
    code = line.rfind(b"`")  # of marked text
    if line.lstrip().startswith(b">>>") or (code >= 0 and not _QUOTE.search(line, code)):
        return True
    word = _AFTER.search(line)
    return word is not None and word[1] not in _KEYWORDS


def is_module(raw: bytes) -> bool:
    """Whether `raw` defines what a module does."""
    return b"forward" in raw and any(
        raw[max(found.start() - 4, 0) : found.start()] in (b"def ", b"def\t")
        or raw[found.end() : found.end() + 3].lstrip()[:1] == b"="
        for found in _FORWARD.finditer(raw)
    )


def writes(raw: bytes) -> bool:
    """Whether something in `raw` may write into a tensor, or free what is not made again."""
    return _WRITES.within(raw) or _item(raw) or in_place(raw) or _standing(raw)


def _standing(raw: bytes) -> bool:
    """Whether something is made of a parameter where that is made: ``nn.Parameter(…).exp()``."""
    for found in _PARAMETER.finditer(raw):
        depth = 1
        for each in _PARENTHESIS.finditer(raw, found.end(), found.end() + 400):
            depth += 1 if each[0] == b"(" else -1
            if depth == 0:
                if _GOES_ON.match(raw, each.end()):
                    return True
                break
    return False


def _item(raw: bytes) -> bool:
    """Whether an item is assigned to: a bracket before an equals sign that ends no annotation."""
    for found in _ITEM.finditer(raw):
        line = raw[raw.rfind(b"\n", 0, found.start()) + 1 : found.start()]
        if not _TYPED.match(line):
            return True
    return False


def in_place(raw: bytes) -> bool:
    """Whether `raw` calls an op of the effect table that writes."""
    if b"_(" not in raw and b"_ (" not in raw:
        return False
    from gradfix.read import effects

    known = effects.table()
    return any(name[::-1].decode("utf-8", "replace") in known for name in set(_CALLED.findall(raw[::-1])))


def gradients(raw: bytes) -> bool:
    """Whether `raw` speaks of what requires grad."""
    return _GRADIENT.within(raw)


def leaves(raw: bytes) -> bool:
    """Whether `raw` makes or names what autograd keeps gradients of."""
    return _LEAF.within(raw)


def old(raw: bytes) -> bool:
    """Whether `raw` reads what is old style, or only there once a backward has been."""
    return _OLD.within(raw)


def own(raw: bytes) -> bool:
    """Whether `raw` touches gradients, optimizers or what autograd has given up."""
    return _OWN.within(raw)
