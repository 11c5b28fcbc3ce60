#!/usr/bin/env python3
"""One request that proves that KV reached decode: what it counts as transferred moves, and the text is that of one engine alone.

    python3 canary.py --router http://127.0.0.1:8000 --prefill http://10.0.1.1:8100 --decode http://10.0.2.1:8200 --model NAME

`--prefill` and `--decode` may be repeated: give every worker, their /metrics are read. `--alone` is an engine that does the whole
request itself: with vLLM any decode worker can, so the first is asked when it is not given; SGLang's decode workers cannot, so
name one that serves the same model colocated, else the text is only compared with a second run through the router.
Exit code 0: disaggregation works. 1: it does not, and the sentence says what to look at. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.error
import urllib.request
import uuid

COUNTERS = {
    "vllm": r'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\}\s+(\S+)',
    "sglang": r"^sglang:kv_transfer_total_mb_sum(?:\{[^}]*\})?\s+(\S+)",
}
"""What each engine counts: vLLM on decode the prompt tokens taken from a transfer, SGLang on prefill the megabytes sent."""
SILENT = {
    "vllm": "decode computed the prompt itself: look for a connector that is missing in one role, or a router that drops "
    "kv_transfer_params (decode logs 'no KVConnector found' or 'invalid KVTransferParams')",
    "sglang": "no transfer was counted: look at --disaggregation-mode on both roles and at the bootstrap port in the router",
}
LIMIT = 16 * 2**20


def main() -> int:
    """Ask through the router, read decode's counters before and after, ask one engine alone, compare."""
    given = arguments()
    prompt = f"{uuid.uuid4().hex} " + " ".join(f"Item {number} is {number * 7 % 97}." for number in range(400))
    before = transferred(given)
    joined = complete(given.router, given.model, prompt)
    time.sleep(given.settle)
    arrived = transferred(given) - before
    print(f"through the router: {joined!r}")
    if arrived <= 0:
        print(f"FAILED: nothing was transferred. {SILENT[given.engine]}.")
        return 1
    print(f"transferred to decode: {arrived:g} {'tokens' if given.engine == 'vllm' else 'MB'}")
    alone = given.alone or (given.decode[0] if given.engine == "vllm" else given.router)
    expected = complete(alone, given.model, prompt, salt=uuid.uuid4().hex)
    print(f"from {alone}: {expected!r}")
    if joined != expected:
        print(
            "FAILED: the texts differ. The KV that arrived does not mean the same on both sides; run `diptych check`."
        )
        return 1
    print("OK: KV arrives, and the text is the same.")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Prove that KV reaches decode.")
    parser.add_argument("--router", required=True)
    parser.add_argument("--prefill", required=True, action="append")
    parser.add_argument("--decode", required=True, action="append")
    parser.add_argument("--alone", default="")
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine", choices=sorted(COUNTERS), default="vllm")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds until counters are read again")
    return parser.parse_args()


def transferred(given: argparse.Namespace) -> float:
    """What all workers that count it together say has been transferred since they started."""
    pattern = re.compile(COUNTERS[given.engine], re.MULTILINE)
    counting = given.decode if given.engine == "vllm" else given.prefill
    return sum(float(value) for url in counting for value in pattern.findall(fetch(f"{url}/metrics")))


def complete(url: str, model: str, prompt: str, salt: str = "") -> str:
    """Thirty-two tokens, greedily. A `salt` keeps vLLM from answering out of the very blocks that were transferred."""
    body = {"model": model, "prompt": prompt, "max_tokens": 32, "temperature": 0, "seed": 0}
    if salt:
        body["cache_salt"] = salt
    text = fetch(f"{url}/v1/completions", json.dumps(body).encode())
    return str(json.loads(text)["choices"][0]["text"])


def fetch(url: str, body: bytes | None = None) -> str:
    """The answer's text; ends the program with a sentence when there is none."""
    if not url.startswith(("http://", "https://")):
        sys.exit(f"FAILED: {url} is not an http address.")
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            return str(answer.read(LIMIT).decode())
    except urllib.error.HTTPError as error:
        sys.exit(f"FAILED: {url} answered {error.code}: {error.read(500).decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"FAILED: {url} does not answer: {error}")


if __name__ == "__main__":
    sys.exit(main())
