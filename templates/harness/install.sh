#!/bin/sh
# Installs @TITLE@ on the harness of @WHOSE@. Everything is inside one function: a download that
# breaks off runs none of it.
set -eu

install_harness() {
    reef=${REEF_PROGRAM:-$(command -v reef || true)}
    if [ -z "$reef" ]; then
        echo "reef: the reef program is not on PATH; install it, or set REEF_PROGRAM. Nothing was changed." >&2
        exit 1
    fi
    exec "$reef" harness install --url '@URL@' --adapter '@ADAPTER@'@SCENARIO@@RELEASE@ "$@"
}

install_harness "$@"
