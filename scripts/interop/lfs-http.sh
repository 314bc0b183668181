#!/usr/bin/env bash
# Pushes and pulls a chain through an LFS server that nobody here wrote (giftless, from PyPI): a git remote on disk, the
# large files over HTTP. Needs git, git-lfs, python3 with venv, and PyPI the first time.
set -euo pipefail
cd "$(dirname "$0")/../.."
reef=${REEF:-$PWD/target/debug/reef}
venv=$PWD/target/interop/giftless
if [ ! -x "$venv/bin/flask" ]; then
    python3 -m venv "$venv"
    # giftless 0.6.2 does not declare all it imports.
    "$venv/bin/pip" install -q giftless==0.6.2 flask-marshmallow marshmallow-enum webargs flask-classful cryptography \
        'pyjwt==2.8.0' figcan pyyaml python-dotenv python-dateutil typing-extensions importlib-metadata
fi
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
port=$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$work/giftless.yaml" <<YAML
AUTH_PROVIDERS:
  - giftless.auth.allow_anon:read_write
PRE_AUTHORIZED_ACTION_PROVIDER:
  factory: giftless.auth.jwt:factory
  options: {algorithm: HS256, private_key: loopback-only, default_lifetime: 600}
TRANSFER_ADAPTERS:
  basic:
    factory: giftless.transfer.basic_streaming:factory
    options:
      storage_class: giftless.storage.local_storage:LocalStorage
      storage_options: {path: $work/store}
YAML
GIFTLESS_CONFIG_FILE="$work/giftless.yaml" "$venv/bin/flask" --app giftless.wsgi_entrypoint run --port "$port" \
    >"$work/giftless.log" 2>&1 &
server=$!
for _ in $(seq 100); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
    kill -0 "$server" || { cat "$work/giftless.log"; exit 1; }
    sleep 0.2
done
lfs=(--release.lfs-url "http://127.0.0.1:$port/org/repo")
mkdir "$work/one" "$work/two"
git init -q --bare "$work/remote.git"
cd "$work/one"
"$reef" scenario create s -q
mkdir a
for _ in 1 2 3; do
    head -c 700000 /dev/urandom >a/w.safetensors
    "$reef" release import a -q >/dev/null
done
"$reef" release push "$work/remote.git" "${lfs[@]}"
[ "$(find "$work/store" -type f | wc -l)" = 3 ]
cd "$work/two"
"$reef" release pull "$work/remote.git" "${lfs[@]}"
"$reef" release export head out -q
cmp out/w.safetensors ../one/a/w.safetensors
"$reef" release rollback head~1 -q --release.remote "$work/remote.git" "${lfs[@]}" >/dev/null
"$reef" release pull "$work/remote.git" "${lfs[@]}" --objects all
"$reef" release verify
echo "ok: a chain of three releases went through giftless and came back whole"
