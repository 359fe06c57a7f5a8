"""What was proved in a workspace is not lost to a call that only reads, decides or looks again."""

import json

from repositories import faulty, plain
from test_batch import call


def cures(folder) -> dict[str, list[str]]:
    document = json.loads((folder / "gradfix-migrate/report.json").read_text())
    return {
        r["name"]: [c["verdict"] for f in r["faults"] for c in f["cures"][:1]]
        for r in document["repositories"]
    }


def test_proofs_outlive_calls_that_do_not_ask_for_them(tmp_path):
    plain(tmp_path / "one", {"train.py": faulty()})
    plain(tmp_path / "two", {"train.py": faulty().replace("exp()", "sigmoid()")})
    call("one", "two", "--prove", "--diff", cwd=tmp_path)
    patches = {p: p.read_text() for p in (tmp_path / "gradfix-migrate/patches").iterdir()}
    assert len(patches) == 4
    plain(tmp_path / "new", {"train.py": faulty()})
    done = call("new", cwd=tmp_path)  # a quick look at another one
    assert cures(tmp_path) == {"one": ["proved"], "two": ["proved"], "new": ["untried"]}
    assert "one:" not in done.stderr
    (group,) = (
        g
        for g in json.loads((tmp_path / "gradfix-migrate/report.json").read_text())["groups"]
        if "one" in g["repositories"]
    )
    done = call("--refuse", group["fingerprint"], cwd=tmp_path)
    assert "two:" not in done.stderr
    assert cures(tmp_path) == {"one": [], "two": ["proved"], "new": []}
    call("--reconsider", group["fingerprint"], cwd=tmp_path)
    call("--retry", "two", cwd=tmp_path)
    assert cures(tmp_path) == {"one": ["proved"], "two": ["proved"], "new": ["untried"]}
    kept = {p: t for p, t in patches.items() if p.stem == "two"}
    assert {p: p.read_text() for p in (tmp_path / "gradfix-migrate/patches").iterdir()} == kept
    call("--prove", "--diff", "--only", "one", cwd=tmp_path)
    assert {p: p.read_text() for p in (tmp_path / "gradfix-migrate/patches").iterdir()} == patches


def test_a_proof_is_made_anew_with_what_it_was_made_with(tmp_path):
    plain(tmp_path / "one", {"train.py": faulty()})
    call("one", "--prove", "--steps", "2", "--diff", cwd=tmp_path)
    call("--revert", "out-of-place", cwd=tmp_path)
    (repository,) = json.loads((tmp_path / "gradfix-migrate/report.json").read_text())["repositories"]
    (step,) = repository["steps"]
    assert (step["codemod"], step["verdict"]) == ("clone-before-write", "proved")
    assert "over 2 steps" in step["reason"]
    assert "clone" in (tmp_path / "gradfix-migrate/patches/one.patch").read_text()
