#!/usr/bin/env bash
# The router: clients talk to port 8000. It takes the workers' addresses from hosts.env.
set -euo pipefail
cd "$(dirname "$0")"
source ./hosts.env

workers=()
for address in $PREFILL_WORKERS; do
  workers+=(--prefill "http://$address" "$((8998 + ${address##*:} - 8100))")
done
for address in $DECODE_WORKERS; do
  workers+=(--decode "http://$address")
done

exec python3 -m sglang_router.launch_router \
  --pd-disaggregation --disable-retries \
  --prefill-policy cache_aware --decode-policy power_of_two \
  "${workers[@]}" \
  --host 127.0.0.1 --port 8000 \
  --prometheus-host 127.0.0.1 --prometheus-port 29000
