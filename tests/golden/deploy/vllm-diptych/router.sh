#!/usr/bin/env bash
# The router: clients talk to port 8000. It takes the workers' addresses from hosts.env.
set -euo pipefail
cd "$(dirname "$0")"
source ./hosts.env

workers=()
for address in $PREFILL_WORKERS; do
  workers+=(--prefill-url "http://$address"",$((8400 + (${address##*:} - 8100) * 2))")
done
for address in $DECODE_WORKERS; do
  workers+=(--decode-url "http://$address")
done

exec diptych serve --engine vllm --connector diptych --ownership push \
  "${workers[@]}" \
  --host 127.0.0.1 --port 8000
