#!/usr/bin/env bash
# Draws the pictures of the dashboard in docs/pictures from the fixed data of its tests: every screen as SVG, from the
# very cells a terminal would show. Needs nothing but the build.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p docs/pictures
REEF_PICTURES="$PWD/docs/pictures" cargo test --quiet --lib ${REEF_FEATURES:---no-default-features} -- --exact dash::pictures::the_pictures_are_in_step
ls docs/pictures
