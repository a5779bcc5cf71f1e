#!/bin/sh
# Resolves requirements/$1.in into requirements/$1.lock: with hashes, for Python 3.11 and later, without naming any index.
set -eu
cd "$(dirname "$0")/.."
name=$1
shift
exec uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-emit-package stream-archiver --custom-compile-command "make lock" --output-file "requirements/$name.lock" "$@" \
    "requirements/$name.in"
