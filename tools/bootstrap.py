"""Make or refresh ``.venv``, with nothing but Python's standard library.

Runs before anything is installed, hence on any Python from 3.6 on (an old one must get a sentence,
not a syntax error) and without importing fpgapipe. Debian and Ubuntu split ``ensurepip`` into a
package of its own, so pip comes from the wheel beside this file, checked against its hash.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "fpgapipe-setup.json"
LOG = VENV / "setup.log"
LOCK = ROOT / "requirements.lock"
# Those of pyproject.toml's package-dir.
FOLDERS = ("boards", "host", "hw", "lowering", "network", "partition", "sim_tb")
PIP = ROOT / "tools" / "pip-26.3-py3-none-any.whl"
PIP_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
MINIMUM_PYTHON = (3, 11)

# Which package of which distribution has the program; g++, make and perl build the simulators.
PACKAGES = {
    "apt": {"python3": "python3", "g++": "g++", "make": "make", "perl": "perl"},
    "dnf": {"python3": "python3", "g++": "gcc-c++", "make": "make", "perl": "perl"},
    "zypper": {"python3": "python311", "g++": "gcc-c++", "make": "make", "perl": "perl"},
    "pacman": {"python3": "python", "g++": "gcc", "make": "make", "perl": "perl"},
    "apk": {"python3": "python3", "g++": "g++", "make": "make", "perl": "perl"},
}
INSTALL = {
    "apt": "apt install",
    "dnf": "dnf install",
    "zypper": "zypper install",
    "pacman": "pacman -S",
    "apk": "apk add",
}


def fail(message):
    """End with one line."""
    sys.exit(f"fpgapipe: {message}")


def check_machine():
    """Name what is missing on the machine, in one line, before anything else happens."""
    manager = next((name for name in INSTALL if shutil.which(name)), "apt")
    names = PACKAGES[manager]
    if sys.version_info < MINIMUM_PYTHON:
        fail(
            f"Python {MINIMUM_PYTHON[0]}.{MINIMUM_PYTHON[1]} or newer is needed, not "
            f"{sys.version.split()[0]}; install it ({INSTALL[manager]} {names['python3']}) or name "
            "another: make PYTHON=python3.12 run"
        )
    missing = [program for program in ("g++", "make", "perl") if not shutil.which(program)]
    if missing:
        packages = " ".join(names[program] for program in missing)
        verb = "is" if len(missing) == 1 else "are"
        fail(f"{', '.join(missing)} {verb} missing: {INSTALL[manager]} {packages}")


def fingerprint():
    """Digest of the sources of the installation.

    The editable installation is a tree of links (setuptools' strict mode), so a file that was added
    needs a fresh one; a file that was only edited does not. Every file counts, whatever its ending,
    but those that Python and editors leave there.
    """
    digest = hashlib.sha256()
    digest.update(f"{ROOT} {sys.version}\0".encode())
    for path in (ROOT / "pyproject.toml", LOCK, Path(__file__)):
        digest.update(path.read_bytes())
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            inner = path.relative_to(ROOT)
            passing = any(part == "__pycache__" or part.startswith(".") for part in inner.parts)
            if path.is_file() and not passing and not path.name.endswith("~"):
                digest.update(f"{inner}\0".encode())
    return digest.hexdigest()


def run(*command):
    """Run one step, its output kept in the log; end with the log's last lines if it fails."""
    environment = dict(os.environ, PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    environment.pop("PYTHONPATH", None)
    environment.pop("PYTHONHOME", None)
    with LOG.open("ab") as log:
        log.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        log.flush()
        status = subprocess.call(
            [str(word) for word in command], stdout=log, stderr=log, env=environment, cwd=str(ROOT)
        )
    if status:
        last = LOG.read_text(errors="replace").splitlines()[-30:]
        print("\n".join(last), file=sys.stderr)
        fail(f"set-up failed (exit code {status}); the whole log is {LOG}")


def installed():
    """Digest and extras of what ``.venv`` holds; ``(None, set())`` if nothing whole."""
    links = list((ROOT / "build").glob("__editable__.fpgapipe-*"))
    if not links or not (VENV / "bin" / "fpgapipe").exists():
        return None, set()
    try:
        stamp = json.loads(STAMP.read_text())
        return stamp["fingerprint"], set(stamp["extras"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, set()


@contextlib.contextmanager
def alone():
    """Let one set-up at a time work on ``.venv``; the kernel frees the lock of a killed one."""
    folder = os.open(str(ROOT), os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("fpgapipe: waiting for another set-up in this folder", file=sys.stderr)
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def main():
    """Check the machine, then make ``.venv`` match the repository."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--extra", action="append", default=[], help="an extra of pyproject.toml")
    wanted = set(parser.parse_args().extra)
    check_machine()
    with alone():
        set_up(wanted)


def set_up(wanted):
    """Install what is missing or stale, nothing if all is there."""
    digest = fingerprint()
    have, extras = installed()
    if have == digest and wanted <= extras:
        return
    extras |= wanted

    python = VENV / "bin" / "python"
    print(f"fpgapipe: setting up {VENV} (a minute or two the first time)", file=sys.stderr)
    if hashlib.sha256(PIP.read_bytes()).hexdigest() != PIP_SHA256:
        fail(f"{PIP} is damaged; restore it with 'git checkout {PIP.relative_to(ROOT)}'")
    if STAMP.exists():
        STAMP.unlink()
    healthy = (
        python.exists()
        and subprocess.call(
            [str(python), "-c", f"import sys; sys.exit(sys.version != {sys.version!r})"],
            stderr=subprocess.DEVNULL,
        )
        == 0
    )
    if not healthy or have is None:
        shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(exist_ok=True)
    if not python.exists():
        run(sys.executable, "-m", "venv", "--without-pip", VENV)
    pip = [python, PIP / "pip", "install", "--constraint", LOCK]
    # The build runs in .venv itself, so that the pinned setuptools is the one that is used.
    run(*pip, "setuptools", PIP)
    target = f".[{','.join(sorted(extras))}]" if extras else "."
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    strict = ["--config-settings", "editable_mode=strict"]
    run(*pip, "--no-build-isolation", *strict, "--editable", target)
    STAMP.write_text(json.dumps({"fingerprint": digest, "extras": sorted(extras)}))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("set-up interrupted; make starts it again")
    except OSError as error:
        fail(f"set-up failed: {error}")
