#!/usr/bin/env bash
# Pushes and pulls chains with servers that nobody here wrote: a git remote on disk with its large files on giftless (from
# PyPI) over HTTP, and a git remote behind OpenSSH that points to the same LFS server. Needs git, git-lfs, python3 with
# venv, sshd for the second, and PyPI the first time.
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
server= daemon=
trap 'kill $server $daemon 2>/dev/null || true; rm -rf "$work"' EXIT
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
# A chain of three releases to the remote, back on another machine, rolled back there, and every object fetched.
through() {
    local name=$1 remote=$2
    shift 2
    mkdir -p "$work/$name/one" "$work/$name/two"
    cd "$work/$name/one"
    "$reef" scenario create s -q
    mkdir a
    for _ in 1 2 3; do
        head -c 700000 /dev/urandom >a/w.safetensors
        "$reef" release import a --kind harness-tree -q >/dev/null
    done
    "$reef" release push "$remote" "$@"
    cd "$work/$name/two"
    "$reef" release pull "$remote" "$@"
    "$reef" release export head out -q
    cmp out/w.safetensors ../one/a/w.safetensors
    "$reef" release rollback head~1 -q --release.remote "$remote" "$@" >/dev/null
    "$reef" release pull "$remote" "$@" --objects all
    "$reef" release verify
    echo "ok: $name: a chain of three releases went there and came back whole"
}

git init -q --bare "$work/http.git"
through "files and an LFS server" "$work/http.git" --release.lfs-url "http://127.0.0.1:$port/org/http"
[ "$(find "$work/store" -type f | wc -l)" = 3 ]

# Over ssh as with a hosting service: git itself by its own protocol, and the LFS server as `git-lfs-authenticate` names it.
sshd=$(command -v sshd || echo /usr/sbin/sshd)
if [ ! -x "$sshd" ]; then
    echo "skipped: ssh: there is no sshd (apt-get install openssh-server)"
    exit 0
fi
git init -q --bare "$work/ssh.git"
mkdir "$work/ssh" "$work/ssh/bin"
ssh-keygen -q -t ed25519 -N '' -f "$work/ssh/host"
ssh-keygen -q -t ed25519 -N '' -f "$work/ssh/user"
printf '#!/bin/sh\necho \x27{"href": "http://127.0.0.1:%s/org/ssh", "header": {}}\x27\n' "$port" >"$work/ssh/bin/git-lfs-authenticate"
chmod +x "$work/ssh/bin/git-lfs-authenticate"
ssh_port=$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$work/ssh/sshd_config" <<CONF
Port $ssh_port
ListenAddress 127.0.0.1
HostKey $work/ssh/host
AuthorizedKeysFile $work/ssh/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
SetEnv PATH=$work/ssh/bin:$PATH
CONF
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
"$sshd" -D -f "$work/ssh/sshd_config" 2>"$work/ssh/log" &
daemon=$!
for _ in $(seq 100); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$ssh_port") 2>/dev/null; then break; fi
    kill -0 "$daemon" || { cat "$work/ssh/log"; exit 1; }
    sleep 0.2
done
export GIT_SSH_COMMAND="ssh -i $work/ssh/user -o IdentitiesOnly=yes -o LogLevel=ERROR -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
through ssh "ssh://$(id -un)@127.0.0.1:$ssh_port$work/ssh.git"
