"""Turn public Kubernetes CRDs and a Helm values schema into JSON schemas that refuse what they do not name.

    python tools/close_schemas.py FOLDER [--out src/diptych/deploy/data/schemas]

`FOLDER` has the published files, plain or gzipped. An API server prunes what a CRD does not name, and a typo vanishes; here
every object that names its properties, and does not ask to keep unknown fields, takes no others. Descriptions are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import yaml

CRDS = {
    "dynamo_dynamographdeployments.yaml": ("dynamographdeployment", ("v1alpha1", "v1beta1")),
    "kserve_llminferenceservices.yaml": ("llminferenceservice", ("v1alpha1", "v1alpha2")),
    "leaderworkersets.yaml": ("leaderworkerset", ("v1",)),
    "disaggregatedsets.yaml": ("disaggregatedset", ("v1",)),
    "inferencepools.yaml": ("inferencepool", ("v1",)),
}
VALUES = {"llmd_modelservice.values.schema.json": "modelservice.values"}
_UNUSED = ("description", "title", "default", "example", "externalDocs", "$schema", "format")


def closed(schema: Any) -> Any:
    """The schema with its objects closed and Kubernetes' own keywords turned into plain ones."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    either = schema.get("x-kubernetes-int-or-string")
    kept = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if either:
        kept.pop("anyOf", None)
        kept["type"] = ["integer", "string"]
    opened = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and not opened:
        kept["additionalProperties"] = False
    if "required" in schema:  # the API server fills in defaults before it looks
        named = schema.get("properties", {})
        kept["required"] = [name for name in schema["required"] if "default" not in named.get(name, {})]
    return {key: _inner(key, value) for key, value in kept.items() if key not in _UNUSED}


def _inner(key: str, value: Any) -> Any:
    """`properties` is a mapping of names, not of keywords: a field may well be called description."""
    if key in ("properties", "patternProperties", "definitions", "$defs") and isinstance(value, dict):
        return {name: closed(inner) for name, inner in value.items()}
    return value if key in ("enum", "required", "const") else closed(value)


def of_crd(document: dict[str, Any], version: str) -> dict[str, Any]:
    """One version's schema of a custom resource; `metadata` may hold anything that objects of Kubernetes have."""
    found = next(each for each in document["spec"]["versions"] if each["name"] == version)
    schema: dict[str, Any] = closed(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def read(folder: Path, name: str) -> str:
    path = folder / name
    return path.read_text("utf-8") if path.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes()).decode()


def write(path: Path, schema: dict[str, Any]) -> None:
    text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{path.name}: {len(text):,} characters, {path.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("src/diptych/deploy/data/schemas"))
    args = parser.parse_args()
    for name, (kind, versions) in CRDS.items():
        document = next(yaml.load_all(read(args.folder, name), Loader=yaml.CSafeLoader))
        for version in versions:
            write(args.out / f"{kind}.{version}.json.gz", of_crd(document, version))
    for name, kind in VALUES.items():
        write(args.out / f"{kind}.json.gz", closed(json.loads(read(args.folder, name))))


if __name__ == "__main__":
    main()
