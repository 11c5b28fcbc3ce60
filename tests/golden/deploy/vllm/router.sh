#!/usr/bin/env bash
# The router: clients talk to port 8000. It takes the workers' addresses from hosts.env.
set -euo pipefail
cd "$(dirname "$0")"
source ./hosts.env

workers=()
for address in $PREFILL_WORKERS; do
  workers+=(--prefill "http://$address")
done
for address in $DECODE_WORKERS; do
  workers+=(--decode "http://$address")
done

exec vllm-router \
  --vllm-pd-disaggregation --kv-connector nixl \
  --prefill-policy cache_aware --decode-policy power_of_two \
  "${workers[@]}" \
  --host 127.0.0.1 --port 8000 \
  --prometheus-host 127.0.0.1 --prometheus-port 29000
