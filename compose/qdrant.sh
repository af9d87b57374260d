#!/usr/bin/env sh
# Asks the Qdrant server something over HTTP from inside its container: qdrant.sh METHOD PATH [JSON]. Its port is
# published nowhere and its image has no curl.
set -eu
cd "$(dirname "$0")"
docker compose exec -T qdrant /bin/bash -c '
LC_ALL=C  # lengths in bytes
exec 3<>/dev/tcp/127.0.0.1/6333
printf "%s %s HTTP/1.0\r\napi-key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" \
    "$1" "$2" "$(< /run/secrets/qdrant_api_key)" "${#3}" "$3" >&3
cat <&3' qdrant "$1" "$2" "${3:-}"
