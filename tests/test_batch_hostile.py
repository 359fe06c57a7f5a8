"""Repositories that are odd, or mean harm: handled, or refused with a sentence; nothing of theirs is executed."""

import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile

import pytest
from repositories import faulty, git, plain, repository, sound, state
from test_batch import migrate, said

from gradfix.batch.migrate import Wish
from gradfix.batch.values import Options

BRANCH = Wish(branch="cured")


def one(tmp_path, place, wish=BRANCH):
    (found,) = migrate(tmp_path / "ws", [place], wish=wish).values()
    return found, said(tmp_path / "ws", found.name).get("branch cured", ("", ""))


def test_nothing_of_a_repository_is_executed(tmp_path):
    """Hooks, filters, fsmonitor, pager, ssh, credential helper, textconv, aliases: all of them would leave a mark."""
    repo = repository(tmp_path / "repo", {"train.py": faulty(), ".gitattributes": "*.py filter=f diff=d\n"})
    mark = tmp_path / "executed"
    program = plain(tmp_path, {"program": f"#!/bin/sh\necho $0 $* >> {mark}\ncat\n"}) / "program"
    program.chmod(0o755)
    for hook in (
        "reference-transaction",
        "post-commit",
        "pre-commit",
        "post-index-change",
        "post-checkout",
        "update",
    ):
        (repo / ".git/hooks" / hook).write_text(f"#!/bin/sh\necho {hook} >> {mark}\nexit 1\n")
        (repo / ".git/hooks" / hook).chmod(0o755)
    for key in ("core.fsmonitor", "filter.f.clean", "filter.f.smudge", "filter.f.process", "diff.d.textconv",
                "diff.external", "core.pager", "core.sshCommand", "core.editor", "credential.helper", "gpg.program",
                "alias.rev-parse", "core.alternateRefsCommand", "core.askPass"):  # fmt: skip
        git(repo, "config", key, str(program))
    git(repo, "config", "commit.gpgSign", "true")
    git(repo, "config", "core.hooksPath", str(repo / ".git/hooks"))
    os.utime(repo / "train.py", (1, 1))  # git would look at it again
    mark.unlink(missing_ok=True)
    before = state(repo, "cured")
    found, (result, _) = one(tmp_path, repo)
    assert (found.ended, result) == ("done", "done")
    assert not mark.exists(), mark.read_text()
    assert state(repo, "cured") == before


def test_a_partial_clone_fetches_nothing(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    mark = tmp_path / "fetched"
    blob = git(repo, "rev-parse", "HEAD:train.py")
    (repo / ".git/objects" / blob[:2] / blob[2:]).unlink()
    git(repo, "config", "core.repositoryFormatVersion", "1")
    git(repo, "config", "extensions.partialClone", "origin")
    git(repo, "config", "remote.origin.url", f"ext::sh -c 'touch {mark}'")
    git(repo, "config", "remote.origin.promisor", "true")
    git(repo, "config", "protocol.ext.allow", "always")
    _, (result, why) = one(tmp_path, repo)
    assert result == "refused"
    assert "partial clone" in why
    assert not mark.exists()


def test_uncommitted_changes_are_not_mixed_in(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty(), "other.py": faulty("b")})
    (repo / "other.py").write_text(faulty("b") + "\n# mine\n")
    before = state(repo)
    found, (result, why) = one(tmp_path, repo, Wish(branch="cured", write=True))
    assert found.dirty == ("other.py",)
    assert (result, why) == ("refused", "other.py: not committed, and what was measured was measured with it")
    assert said(tmp_path / "ws", "repo")["write"][0] == "refused"
    assert state(repo) == before


def test_untracked_files_have_no_commit(tmp_path):
    repo = repository(tmp_path / "repo", {"a.txt": "x"})
    (repo / "train.py").write_text(faulty())
    why = "train.py is not in the commit that is checked out; commit it first, or --write"
    assert one(tmp_path, repo)[1] == ("refused", why)
    git(repo, "add", "train.py")
    assert one(tmp_path, repo)[1] == ("refused", why)


def test_a_branch_that_is_somebody_elses_stays(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    git(repo, "branch", "cured")
    before = state(repo)
    assert "something else on it" in one(tmp_path, repo)[1][1]
    git(repo, "checkout", "-q", "cured")
    assert "checked out" in one(tmp_path, repo)[1][1]
    git(repo, "checkout", "-q", "main")
    assert state(repo) == before or git(repo, "status", "--porcelain") == ""


def test_a_head_that_moved_is_not_built_on(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    migrate(tmp_path / "ws", [repo])
    git(repo, "commit", "--allow-empty", "-m", "second")
    assert "HEAD has moved" in one(tmp_path, repo)[1][1]
    migrate(tmp_path / "ws", wish=BRANCH, retry=("repo",))
    assert git(repo, "rev-parse", "cured~1") == git(repo, "rev-parse", "main")


def test_a_detached_head_and_a_shallow_clone_get_their_branch(tmp_path):
    origin = repository(tmp_path / "origin", {"train.py": faulty()})
    git(origin, "commit", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{origin}", "clone")
    repo = tmp_path / "clone"
    git(repo, "checkout", "-q", "--detach")
    found, (result, _) = one(tmp_path, repo)
    assert result == "done"
    assert [r.split(":")[0].split(";")[0] for r in found.remarks] == [
        "HEAD is detached",
        "This is a shallow clone",
    ]
    assert git(repo, "rev-parse", "cured~1") == git(repo, "rev-parse", "HEAD")
    assert git(repo, "reflog", "cured")


def test_a_bare_repository_is_read_from_its_objects(tmp_path):
    origin = repository(tmp_path / "origin", {"train.py": faulty(), "pkg/a.py": faulty("b")})
    git(tmp_path, "clone", "-q", "--bare", str(origin), "bare.git")
    found, (result, _) = one(tmp_path, tmp_path / "bare.git", Wish(branch="cured", write=True))
    assert (found.kind, result, len(found.faults)) == ("bare", "done", 2)
    assert git(tmp_path / "bare.git", "rev-list", "--count", "HEAD..cured") == "2"
    assert not (tmp_path / "bare.git/logs").exists()  # it keeps none of its own
    assert said(tmp_path / "ws", found.name)["write"][1].startswith("a bare repository has no working tree")


def test_an_empty_repository_is_a_sentence(tmp_path):
    repo = plain(tmp_path / "repo", {"train.py": faulty()})
    git(repo, "init")
    assert one(tmp_path, repo)[0].sentence.startswith("nothing is committed in it")


def test_submodules_and_repositories_inside_are_left_alone(tmp_path):
    inner = repository(tmp_path / "inner", {"train.py": faulty()})
    repo = repository(tmp_path / "repo", {"train.py": faulty("outer")})
    git(repo, "submodule", "add", "-q", str(inner), "lib")
    git(repo, "commit", "-m", "lib")
    repository(repo / "nested", {"train.py": faulty()})
    found, (result, _) = one(tmp_path, repo)
    assert [f.path for f in found.faults] == ["train.py"]
    assert any(r.startswith("lib: left out; it is a submodule") for r in found.remarks)
    assert any(r.startswith("nested: left out; it is a repository of its own") for r in found.remarks)
    assert result == "done"


def test_repositories_inside_a_plain_folder_are_said(tmp_path):
    plain(tmp_path / "folder", {"a.py": sound()})
    repository(tmp_path / "folder/inside", {"train.py": faulty()})
    found = migrate(tmp_path / "ws", [tmp_path / "folder"])["folder"]
    assert (found.kind, found.faults) == ("folder", ())
    assert found.remarks == ("inside: left out; it is a repository of its own.",)


def test_odd_files_are_left_out_and_said(tmp_path):
    (tmp_path / "outside.py").write_text(faulty())
    repo = plain(
        tmp_path / "repo",
        {
            "train.py": faulty(),
            "Train.py": faulty("upper"),
            "big.py": faulty() + "#" * 2_100_000,
            "lfs.py": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "broken.py": "import torch\nloss.backward(\n",
            "null.py": b"loss.backward()\0",
        },
    )
    (repo / "loop.py").symlink_to("loop.py")
    (repo / "around").symlink_to(".")
    (repo / "link.py").symlink_to(tmp_path / "outside.py")
    with open(os.fsencode(repo) + b"/\xff.py", "w") as odd:
        odd.write(faulty())
    git(repo, "init")
    git(repo, "add", "-A")
    git(repo, "commit", "-m", "odd")
    found, (result, _) = one(tmp_path, repo, Wish(branch="cured", write=True))
    assert (found.ended, result) == ("done", "done")
    assert {f.path for f in found.faults} == {"train.py", "Train.py"}
    said_ = " ".join(found.remarks)
    for words in ("big.py: left out; it is longer than 2 MB", "lfs.py: left out; it is a pointer of git LFS",
                  "link.py: left out; it is a symbolic link", "has a name that is not UTF-8", "broken.py:"):  # fmt: skip  # noqa: E501
        assert words in said_, said_
    assert (tmp_path / "outside.py").read_text() == faulty()


def test_a_script_is_known_by_its_first_line(tmp_path):
    script = "#!/usr/bin/env python3\n" + faulty()
    files = {
        "bin/train": script,
        "bin/other": faulty(),
        "bin/tool": "#!/bin/sh\necho python\n",
        "Makefile": "a:\n",
    }
    repo = plain(tmp_path / "repo", files)
    (repo / "bin/train").chmod(0o755)
    found = migrate(tmp_path / "ws", [repo], Options(prove=True), Wish(diff=True, write=True))["repo"]
    assert (found.files, [(f.path, f.status) for f in found.faults]) == (1, [("bin/train", "cured")])
    assert [s.verdict for s in found.steps] == ["proved"]
    assert (repo / "bin/train").read_text() == "#!/usr/bin/env python3\n" + sound()
    assert (repo / "bin/train").stat().st_mode & 0o777 == 0o755
    tree = plain(tmp_path / "tree", files)
    call = [sys.executable, "-m", "gradfix", "apply", str(tmp_path / "ws/patches/repo.json"), "--write"]
    assert subprocess.run(call, cwd=tree, capture_output=True, check=False).returncode == 0
    assert (tree / "bin/train").read_text() == "#!/usr/bin/env python3\n" + sound()
    (tree / "bin/train").write_text(faulty())
    done = subprocess.run(call, cwd=tree, capture_output=True, text=True, check=False)
    assert (done.returncode, "does not begin as a Python script does" in done.stdout) == (1, True), done
    assert (tree / "bin/train").read_text() == faulty()


@pytest.mark.parametrize(
    "config", ["[tool.gradfix]\nselect = ['nonsense']", "[tool.gradfix]\npython = '/bin/evil'"]
)
def test_a_repositorys_configuration_names_no_interpreter(tmp_path, config):
    repo = plain(tmp_path / "repo", {"train.py": faulty(), "pyproject.toml": config})
    found, _ = one(tmp_path, repo)
    if "python" in config:
        assert found.faults
    else:
        assert found.sentence.startswith("its configuration can't be used: pyproject.toml")


# ---- archives


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as out:
        for name, text in members.items():
            out.writestr(name, text)
    return path


def tarred(path, *members):
    with tarfile.open(path, "w:gz") as out:
        for info, data in members:
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def member(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_archives_are_read(tmp_path):
    source = faulty().encode()
    for archive in (
        zipped(tmp_path / "a.zip", {"pkg-1.0/train.py": faulty()}),
        tarred(
            tmp_path / "b.tar.gz",
            (member("pkg-1.0/train.py"), source),
            (member("l.py", tarfile.SYMTYPE, "/x"), b""),
        ),
    ):
        found = migrate(tmp_path / "ws", [archive], wish=Wish(diff=True, branch="cured"))[archive.name]
        assert found.kind == "archive"
        assert [f.path for f in found.faults] == ["train.py"]
        assert "+    value = value + 1" in (tmp_path / f"ws/patches/{archive.name}.patch").read_text()
        assert said(tmp_path / "ws", archive.name)["branch cured"] == (
            "refused", "an archive has no branches; --diff makes a patch")  # fmt: skip


def test_what_an_archive_links_to_is_left_out_and_said(tmp_path):
    link = zipfile.ZipInfo("p/l.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("p/a.py", sound())
        out.writestr(link, "/x")
    kinds = {"s.py": tarfile.SYMTYPE, "h.py": tarfile.LNKTYPE, "dev": tarfile.CHRTYPE}
    links = [(member(f"p/{name}", kind, "p/a.py"), b"") for name, kind in kinds.items()]
    tarred(tmp_path / "a.tar.gz", (member("p/a.py"), sound().encode()), *links)
    found = migrate(tmp_path / "ws", [tmp_path / "a.zip", tmp_path / "a.tar.gz"])
    assert found["a.zip"].remarks == ("p/l.py: left out; it is a link or a device.",)
    assert found["a.tar.gz"].remarks == ("p/s.py, p/h.py, p/dev: left out; each is a link or a device.",)
    assert [r.files for r in found.values()] == [1, 1]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_in_each_others_way_are_refused(tmp_path):
    both = (("a.py", "x"), ("a.py", "y")), (("a", "x"), ("a/b.py", "y")), (("a/b.py", "x"), ("a", "y"))
    for n, members in enumerate(both):
        with zipfile.ZipFile(tmp_path / f"{n}.zip", "w") as out:
            for name, text in members:
                out.writestr(name, text)
    found = migrate(tmp_path / "ws", [tmp_path / f"{n}.zip" for n in range(len(both))])
    for result in found.values():
        assert result.sentence.startswith("two of its files can't lie side by side here (a")


def test_an_encrypted_archive_is_a_sentence(tmp_path):
    zipped(tmp_path / "a.zip", {"a.py": "x"})
    data = bytearray((tmp_path / "a.zip").read_bytes())
    for header, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(header) + at] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    assert migrate(tmp_path / "ws", [tmp_path / "a.zip"])["a.zip"].sentence == "a.zip is encrypted"


def test_a_relative_workspace_is_as_good(tmp_path):
    """The default is one: what is unpacked below it is run and proved as what lies where it was."""
    zipped(tmp_path / "packed.zip", {"packed/train.py": faulty()})
    repository(tmp_path / "repo", {"train.py": faulty()})
    git(tmp_path, "clone", "--bare", "repo", "bare")
    call = [sys.executable, "-m", "gradfix", "migrate", "packed.zip", "bare", "--prove", "--workspace", "ws"]
    subprocess.run(call, cwd=tmp_path, capture_output=True, check=False)
    document = json.loads((tmp_path / "ws/report.json").read_text())
    found = {r["name"]: [f["status"] for f in r.get("faults", [])] for r in document["repositories"]}
    assert found == {"packed.zip": ["cured"], "bare": ["cured"]}, document["repositories"]


def odd(text: str) -> dict[str, bytes]:
    """A program as four people's editors write it."""
    accented = text.replace("value", "wértz")
    return {
        "crlf.py": text.replace("\n", "\r\n").encode(),
        "latin.py": f"# coding: latin-1\n{accented}".encode("latin-1"),
        "marked.py": accented.replace("\n", "\r\n").encode("utf-8-sig"),
        "ended.py": text.rstrip("\n").encode(),
    }


@pytest.mark.parametrize("kind", ["zip", "sdist", "bare"])
def test_patches_keep_bytes_that_lie_in_no_folder(tmp_path, kind):
    files, cured = odd(faulty()), odd(sound())
    if kind == "bare":
        origin = repository(tmp_path / "origin", {"pkg/x.txt": "x", **files})
        place = tmp_path / "pkg.git"
        git(tmp_path, "clone", "-q", "--bare", str(origin), str(place))
    elif kind == "zip":
        place = zipped(tmp_path / "pkg.zip", {f"pkg-1.0/{name}": data for name, data in files.items()})
    else:
        place = tarred(tmp_path / "pkg.tar.gz", *((member(f"pkg-1.0/{n}"), d) for n, d in files.items()))
    migrate(tmp_path / "ws", [place], wish=Wish(diff=True))
    made = tmp_path / f"ws/patches/{place.name}"
    for tool in (
        ["git", "apply", f"{made}.patch"],
        ["patch", "-p1", "-i", f"{made}.patch"],
        [sys.executable, "-m", "gradfix", "apply", f"{made}.json", "--write"],
    ):
        tree = plain(tmp_path / tool[0].replace("/", "_"), files)
        done = subprocess.run(tool, cwd=tree, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {name: (tree / name).read_bytes() for name in files} == cured


@pytest.mark.parametrize("name", ["../out.py", "/tmp/out.py", "a/../../out.py", "..\\out.py", "C:/out.py"])
def test_an_archive_that_would_write_elsewhere_is_refused(tmp_path, name):
    for archive in (
        zipped(tmp_path / "a.zip", {"ok.py": "x", name: "y"}),
        tarred(tmp_path / "a.tar.gz", (member("ok.py"), b"x"), (member(name), b"y")),
    ):
        found = migrate(tmp_path / "ws", [archive])[archive.name]
        assert found.ended == "refused"
        assert "outside of its folder" in found.sentence
    assert not (tmp_path / "out.py").exists()


def test_a_bomb_and_a_broken_archive_are_refused(tmp_path, monkeypatch):
    (tmp_path / "broken.zip").write_bytes(b"PK\3\4nonsense")
    (tmp_path / "broken.tar.gz").write_bytes(b"\x1f\x8bnonsense")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as out:
        for n in range(11):
            out.writestr(f"{n}.bin", b"\0" * 100_000_000)
    places = [tmp_path / n for n in ("broken.zip", "broken.tar.gz", "bomb.zip")]
    found = migrate(tmp_path / "ws", places)
    assert found["bomb.zip"].sentence == "it holds more than 1 GB"
    assert found["broken.zip"].sentence.startswith("broken.zip can't be unpacked")
    assert found["broken.tar.gz"].sentence.startswith("broken.tar.gz can't be unpacked")


def test_a_tree_that_leads_out_of_its_folder_is_refused(tmp_path):
    """git itself would not check such a tree out; its objects can hold one all the same."""
    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    blob = git(bare, "hash-object", "-w", "--stdin", input="x = 1\n")
    entry = b"100644 out.py\0" + bytes.fromhex(blob)
    inner = subprocess.run(
        ["git", "hash-object", "-w", "-t", "tree", "--literally", "--stdin"],
        cwd=bare, input=entry, capture_output=True, check=True).stdout.decode().strip()  # fmt: skip
    outer = subprocess.run(
        ["git", "hash-object", "-w", "-t", "tree", "--literally", "--stdin"],
        cwd=bare, input=b"40000 ..\0" + bytes.fromhex(inner), capture_output=True, check=True)  # fmt: skip
    git(
        bare,
        "update-ref",
        "refs/heads/main",
        git(bare, "commit-tree", outer.stdout.decode().strip(), "-m", "x"),
    )
    found, _ = one(tmp_path, bare)
    assert found.ended == "refused"
    assert "outside of its folder" in found.sentence


def test_without_git_a_folder_is_read_and_a_repository_is_a_sentence(tmp_path, monkeypatch):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    folder = plain(tmp_path / "folder", {"train.py": faulty()})
    monkeypatch.setenv("PATH", str(tmp_path))
    found = migrate(tmp_path / "ws", [repo, folder], wish=Wish(write=True))
    assert found["repo"].sentence == "git is not installed, and this is a git repository"
    assert len(found["folder"].steps) == 1
