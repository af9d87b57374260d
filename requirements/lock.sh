#!/usr/bin/env sh
# Resolves what each image installs, with hashes, under the versions that the project is tested with.
# UV names the uv to use; `sh requirements/lock.sh --upgrade` also moves what constraints.txt does not pin.
set -eu
cd "$(dirname "$0")/.."

lock() { # output, then what to resolve
    output=requirements/$1.txt
    shift
    "${UV:-uv}" --no-config --quiet pip compile "$@" --output-file "$output" \
        --constraint constraints.txt --universal --python-version 3.11 --generate-hashes --no-annotate \
        --custom-compile-command "make lock" ${UPGRADE:-} --native-tls
}

UPGRADE=${1:-}
lock gateway pyproject.toml --extra qdrant --extra writer
lock cpu pyproject.toml --extra cpu
lock gpu pyproject.toml --extra gpu requirements/cuda.in
lock tools pyproject.toml --extra cpu --extra demo --extra evaluation --extra parquet --extra qdrant --extra writer
lock export pyproject.toml --extra cpu --extra demo --extra evaluation --extra export --extra parquet --extra qdrant
lock build requirements/build.in
