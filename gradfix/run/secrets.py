"""What a run is not given: secrets of the environment and of the home directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

# Parts of a variable's name, between underscores: GITHUB_TOKEN, WANDB_API_KEY, PGPASSWORD.
_NAMES = re.compile(
    r"(^|_)(API_?KEYS?|ACCESS_KEY(_ID)?|PRIVATE_KEY|SECRET(_?KEY)?S?|TOKENS?|[A-Z]*TOKEN|PASSPHRASE|\w*PASSWORD"
    r"|\w*PASSWD|PASS|MYSQL_PWD|PAT|CREDENTIALS?|CREDS?|COOKIES?|JWT|DSN|AUTH|KEY|KEYS|KEYFILE|WEBHOOK(_URL)?)($|_)"
)
# Whose every variable is about an account, an agent or a session.
_FAMILIES = re.compile(
    r"(AWS|AZURE|ARM|GOOGLE|GCLOUD|GCP|CLOUDSDK|SSH|GPG|DBUS|KRB5|VAULT|KUBE\w*|DOCKER|PODMAN|CONTAINER_HOST"
    r"|XAUTHORITY|DISPLAY|WAYLAND_DISPLAY|XDG_RUNTIME_DIR|TMUX|STY|NETRC|SUDO|GITHUB|GITLAB|CI_JOB|ACTIONS"
    r"|DATABASE_URL|REDIS_URL|MONGO\w*)($|_)"
)
_PROXIES = re.compile(r"(\w+_)?PROXY$")
# Values that are secrets whatever they are called.
_VALUES = re.compile(
    r"gh[opsru]_\w{20}|github_pat_|glpat-|hf_\w{20}|sk-\w{16}|xox[abprs]-|AKIA[0-9A-Z]{12}|AIza[\w-]{30}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|eyJ[\w-]{10,}\.eyJ|\w+://[^/\s:@]*:[^/\s@]+@"
)
_HARMLESS = frozenset(("PWD", "OLDPWD"))
_PLAIN = re.compile(r"[\d.,]{0,6}|true|false|yes|no|on|off", re.IGNORECASE)  # MAX_TOKENS=512

# Below a home directory.
_HOME = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".oci", ".kube", ".docker", ".password-store", ".vault-token"),
    *(".netrc", "_netrc", ".pypirc", ".npmrc", ".yarnrc", ".git-credentials", ".pgpass", ".my.cnf", ".s3cfg"),
    *(".boto", ".rclone.conf", ".dockercfg", ".terraform.d", ".databrickscfg", ".snowflake", ".modal.toml"),
    *(".kaggle", ".comet.config", ".huggingface/token", ".cache/huggingface/token"),
    *(".cache/huggingface/stored_tokens", ".local/share/keyrings", ".local/share/kwalletd", ".cargo/credentials"),
    *(".cargo/credentials.toml", ".gem/credentials", ".config/gcloud", ".config/gh", ".config/hub"),
    *(".config/glab-cli", ".config/git/credentials", ".config/op", ".config/rclone", ".config/wandb/settings"),
    *(".config/google-chrome", ".config/chromium", ".config/BraveSoftware", ".config/Signal", ".config/Slack"),
    *(".mozilla", ".thunderbird", ".electrum", ".bitcoin", ".ethereum", ".bash_history", ".zsh_history"),
    *(".python_history", ".psql_history", ".mysql_history", ".lesshst", ".viminfo", "Library/Keychains"),
)  # fmt: skip
_MACHINE = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/krb5.keytab",
    "/etc/ssl/private",
    "/etc/sudoers.d",
    "/run/secrets",
)


def scrubbed(environment: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    """What of `environment` a run gets to see, and the names of what it does not."""
    withheld = frozenset(name for name, value in environment.items() if _is_secret(name, value))
    return {name: value for name, value in environment.items() if name not in withheld}, withheld


def _is_secret(name: str, value: str) -> bool:
    upper = name.upper()
    if upper in _HARMLESS or _PLAIN.fullmatch(value):
        return False
    known = _NAMES.search(upper) or _FAMILIES.match(upper) or _PROXIES.match(upper)
    return bool(known or _VALUES.search(value))


def masked(spared: Iterable[Path]) -> tuple[str, ...]:
    """Files and folders with secrets that are there, as real paths, none inside another; not those around
    `spared`, which the run can't do without."""
    kept = [Path(os.path.realpath(path)) for path in spared]
    found = []
    for path in _candidates():
        real = Path(os.path.realpath(path))
        if real.exists() and real != Path("/") and not any(k.is_relative_to(real) for k in kept):
            found.append(real)
    return tuple(str(p) for p in sorted(set(found)) if not any(p != o and p.is_relative_to(o) for o in found))


def _candidates() -> Iterable[Path]:
    for home in _homes():
        yield from (home / name for name in _HOME)
    yield from map(Path, _MACHINE)


def _homes() -> set[Path]:
    """The owner's home, by the environment and by the system; for root, who reads all of them, everybody's."""
    found = set()
    with suppress(RuntimeError):
        found.add(Path.home())
    try:
        import pwd

        found.add(Path(pwd.getpwuid(os.geteuid()).pw_dir))
        if os.geteuid() == 0:
            found.update(path for path in Path("/home").iterdir() if path.is_dir())
    except (ImportError, KeyError, OSError):  # Windows; a user without an entry; no /home
        pass
    return {home for home in found if home != Path("/")}
