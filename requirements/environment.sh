#!/usr/bin/env sh
# Makes the environment of one image, in two steps: environment.sh install|finish LOCK. Run by the Dockerfile.
set -eu
step=$1
lock=$2
build=${BUILD:-/opt/build}
wheels=${WHEELS:-/wheels}
out=${OUT:-/opt/twostage}

pip() { "$build/bin/python" -m pip --python "$out/bin/python" "$@"; }

install() {
    python3 -m venv --without-pip "$out"
    pip install --no-compile --no-deps --require-hashes --requirement "requirements/$lock.txt"
    # One directory with all that packages bring of CUDA; empty where they bring none.
    mkdir "$out/cuda"
    find "$out" -path '*/nvidia/*' -name '*.so*' -exec ln -s {} "$out/cuda/" \;
}

finish() {
    pip install --no-compile --no-deps --no-index "$wheels"/*.whl
    pip check
    LD_LIBRARY_PATH=$out/cuda "$out/bin/python" -I requirements/check.py "$lock"
    "$build/bin/cyclonedx-py" environment "$out/bin/python" --output-reproducible --of JSON -o "$out/sbom.cdx.json"
    # Bytecode that is trusted whatever the time stamps say, because a layer may change them.
    "$out/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$out/lib"
}

"$step"
