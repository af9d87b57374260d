#!/bin/sh
# Regenerates the committed Python modules beside the protos: sh protos/generate.sh [OUT_DIR].
set -eu
cd "$(dirname "$0")"
out=${1:-.}
bin=$(dirname "$(command -v "${PYTHON:-python3}")")
PATH="$bin:$PATH" "${PYTHON:-python3}" -m grpc_tools.protoc -I . \
    --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" \
    $(find retrieval -name '*.proto' | sort)
