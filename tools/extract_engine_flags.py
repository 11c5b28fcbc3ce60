"""Read the command-line flags of released engines from their wheels (or unpacked wheels), without running them.

    python tools/extract_engine_flags.py WHEELS [--out src/diptych/deploy/data/flags]

`WHEELS` is a folder with the wheels of vllm, sglang, ai_dynamo, vllm_router and sglang_router. What is kept
of each flag are names and kinds: its long name, aliases, what it takes, the words it accepts, and the variable that also sets it.
"""

from __future__ import annotations

import argparse
import ast
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = ("switch", "boolean", "int", "float", "str", "json", "list", "append", "optional")
"""switch: takes nothing; boolean: also has --no-; list: takes several words; optional: takes a word or nothing."""


@dataclass
class Flag:
    """One flag as its parser declares it."""

    name: str
    kind: str
    aliases: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    env: str = ""
    group: str = ""

    def row(self) -> dict[str, Any]:
        kept = {
            "kind": self.kind,
            "aliases": self.aliases,
            "choices": self.choices,
            "env": self.env,
            "group": self.group,
        }
        return {key: value for key, value in kept.items() if value}


class Sources:
    """The Python files of one wheel."""

    def __init__(self, wheel: Path) -> None:
        self.archive = zipfile.ZipFile(wheel)
        self.names = self.archive.namelist()
        self.version = wheel.name.split("-")[1]

    def tree(self, path: str) -> ast.Module:
        return ast.parse(self.archive.read(path))

    def trees(self, folder: str) -> Iterator[ast.Module]:
        for name in self.names:
            if name.startswith(folder) and name.endswith(".py"):
                yield self.tree(name)


def text(node: ast.AST | None) -> str:
    """A constant string, or an f-string whose holes are empty (a prefix that launchers leave empty)."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    return ""


def calls(tree: ast.AST, names: Iterable[str]) -> Iterator[ast.Call]:
    wanted = set(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in wanted:
                yield node


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def words(node: ast.AST | None) -> list[str]:
    """The strings of a literal list, tuple or set; nothing where an element is computed."""
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return []
    found = [text(item) for item in node.elts]
    return found if all(found) else []


def of_call(names: list[str], given: dict[str, ast.expr]) -> Flag:
    """A flag from an `add_argument` call that says its own action, type and number of words."""
    long = [name for name in names if name.startswith("--")]
    primary = long[0] if long else names[0]
    return Flag(primary, _kind(given), [name for name in names if name != primary], words(given.get("choices")))


def _kind(given: dict[str, ast.expr]) -> str:
    action = ast.unparse(given["action"]) if "action" in given else ""
    kind = ast.unparse(given["type"]) if "type" in given else ""
    count = text(given.get("nargs"))
    if "BooleanOptional" in action:
        return "boolean"
    if any(word in action for word in ("store_true", "store_false", "StoreTrue", "version")):
        return "switch"
    if "append" in action:
        return "append"
    if count in ("+", "*") or "LoRA" in action:
        return "list"
    if count == "?":
        return "optional"
    return scalar(kind)


def scalar(kind: str) -> str:
    if "json" in kind:
        return "json"
    if "int" in kind.lower():
        return "int"
    return "float" if "float" in kind.lower() else "str"


# ---- vLLM: flags are fields of configuration classes -----------------------------------------------------------------


@dataclass
class Types:
    """Configuration classes with the annotations of their fields, and the words of every `Literal` alias."""

    fields: dict[str, dict[str, ast.expr]] = field(default_factory=dict)
    records: set[str] = field(default_factory=set)
    literals: dict[str, ast.expr] = field(default_factory=dict)

    def add(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                inherited = [self.fields.get(getattr(base, "id", ""), {}) for base in node.bases]
                own = {
                    item.target.id: item.annotation
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
                self.fields[node.name] = {key: value for part in [*inherited, own] for key, value in part.items()}
                if node.decorator_list or inherited != [{}] * len(inherited):
                    self.records.add(node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.literals[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.literals[node.target.id] = node.value

    def parts(self, hint: ast.expr) -> Iterator[ast.expr]:
        """The members of a union, through Annotated, Optional and named aliases."""
        if isinstance(hint, ast.Constant) and isinstance(hint.value, str):
            hint = ast.parse(hint.value, mode="eval").body
        if isinstance(hint, ast.BinOp):
            yield from self.parts(hint.left)
            yield from self.parts(hint.right)
        elif isinstance(hint, ast.Subscript) and ast.unparse(hint.value) in ("Annotated", "SkipValidation", "A"):
            yield from self.parts(hint.slice.elts[0] if isinstance(hint.slice, ast.Tuple) else hint.slice)
        elif isinstance(hint, ast.Subscript) and ast.unparse(hint.value) in ("Optional", "Union"):
            for part in hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]:
                yield from self.parts(part)
        elif isinstance(hint, ast.Name) and self._is_hint(self.literals.get(hint.id)):
            yield from self.parts(self.literals[hint.id])
        else:
            yield hint

    @staticmethod
    def _is_hint(node: ast.expr | None) -> bool:
        return isinstance(node, (ast.Subscript, ast.BinOp))

    def choices(self, literal: ast.expr) -> list[str]:
        assert isinstance(literal, ast.Subscript)
        members = literal.slice.elts if isinstance(literal.slice, ast.Tuple) else [literal.slice]
        found: list[str] = []
        for member in members:
            if isinstance(member, ast.Name):
                found += self.choices(self.literals[member.id])
            elif isinstance(member, ast.Constant):
                found.append(str(member.value))
        return found

    def flag(self, names: list[str], hint: ast.expr) -> Flag:
        """The precedence of vLLM's `_compute_kwargs`: records, then booleans, literals, collections, numbers, words."""
        parts = list(self.parts(hint))
        spelled = [ast.unparse(part) for part in parts]
        heads = {name.split("[")[0] for name in spelled}
        flag = of_call(names, {})
        literal = next((part for part in parts if ast.unparse(part).startswith("Literal[")), None)
        if heads & self.records and not heads & {"bool"}:
            flag.kind = "json"
        elif heads == {"bool", "str", "None"}:
            flag.kind = "optional"
        elif "bool" in heads:
            flag.kind = "boolean"
        elif literal is not None:
            flag.choices = [] if "str" in heads else sorted(self.choices(literal))
            flag.kind = "int" if flag.choices and all(word.isdigit() for word in flag.choices) else "str"
        elif heads & {"list", "List", "tuple", "set"}:
            flag.kind = "list"
        elif "int" in heads:
            flag.kind = "int"
        elif "float" in heads:
            flag.kind = "float"
        elif heads & {"dict", "Dict", "Mapping"}:
            flag.kind = "json"
        return flag


_VLLM_ENGINE = "vllm/engine/arg_utils.py"
_VLLM_SERVER = "vllm/entrypoints/common/cli_args.py"


def vllm(sources: Sources) -> list[Flag]:
    types = Types()
    trees = [*sources.trees("vllm/config/"), sources.tree(_VLLM_ENGINE), sources.tree(_VLLM_SERVER)]
    for path in {path for tree in trees for path in _imported(tree)} & set(sources.names):
        types.literals.update(_literals(sources.tree(path)))
    for tree in trees[:-2]:
        types.add(tree)
    return _engine_flags(trees[-2], types) + _server_flags(trees[-1], types)


def _imported(tree: ast.Module) -> Iterator[str]:
    """The files that a module imports names from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm."):
            path = node.module.replace(".", "/")
            yield from (f"{path}.py", f"{path}/__init__.py")


def _literals(tree: ast.Module) -> dict[str, ast.expr]:
    aliases = Types()
    aliases.add(tree)
    return {name: node for name, node in aliases.literals.items() if ast.unparse(node).startswith("Literal[")}


def _engine_flags(tree: ast.Module, types: Types) -> list[Flag]:
    configs, fields = _bindings(tree)
    flags = []
    for call in calls(tree, ["add_argument"]):
        names = [text(name) for name in call.args]
        spread = next((keyword.value for keyword in call.keywords if keyword.arg is None), None)
        found = None if spread is None else _field_of(spread, configs, fields)
        if found is None:
            flags.append(of_call(names, keywords(call)))
        else:
            flags.append(types.flag(names, types.fields[found[0]][found[1]]))
    return flags


def _bindings(tree: ast.Module) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """`x = get_kwargs(Config)` and `y = x["field"]`, as the parser names them."""
    configs: dict[str, str] = {}
    fields: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, value = node.targets[0].id, node.value
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "get_kwargs":
            configs[name] = ast.unparse(value.args[0])
        elif (found := _field_of(value, configs, fields)) is not None:
            fields[name] = found
    return configs, fields


def _field_of(node: ast.expr, configs: dict[str, str], fields: dict[str, tuple[str, str]]) -> tuple[str, str] | None:
    if isinstance(node, ast.Name):
        return fields.get(node.id)
    if isinstance(node, ast.Dict):
        inner = next((value for key, value in zip(node.keys, node.values, strict=True) if key is None), None)
        return None if inner is None else _field_of(inner, configs, fields)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        if isinstance(node.value, ast.Name) and node.value.id in configs:
            return configs[node.value.id], str(node.slice.value)
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "get_kwargs":
            return ast.unparse(node.value.args[0]), str(node.slice.value)
    return None


def _server_flags(tree: ast.Module, types: Types) -> list[Flag]:
    types.add(tree)
    flags = {
        name: types.flag(["--" + name.replace("_", "-")], hint) for name, hint in types.fields["FrontendArgs"].items()
    }
    for node in ast.walk(tree):  # _customize_cli_kwargs: frontend_kwargs["name"]["type"] = ..., del ...["nargs"]
        target = node.targets[0] if isinstance(node, (ast.Assign, ast.Delete)) else None
        if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Subscript)):
            continue
        name, setting = text(target.value.slice), text(target.slice)
        if name not in flags:
            continue
        if isinstance(node, ast.Delete) and setting == "nargs" and flags[name].kind == "list":
            flags[name].kind = "str"
        if isinstance(node, ast.Assign) and setting == "type" and "json" in ast.unparse(node.value):
            flags[name].kind = "json"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            if (
                isinstance(target.value, ast.Subscript)
                and text(target.slice) == "action"
                and text(node.value) == "append"
            ):
                flags[text(target.value.slice)].kind = "append"
    own = [
        of_call(names, keywords(call))
        for call in calls(tree, ["add_argument"])
        if (names := [text(name) for name in call.args]) and all(name.startswith("-") for name in names)
    ]
    server = [*own, *flags.values()]
    for flag in server:
        flag.group = "server"
    return server


# ---- SGLang: flags are annotated fields, A[type, Arg(...)] -----------------------------------------------------------


def sglang(sources: Sources) -> list[Flag]:
    types = Types()
    flags: list[Flag] = []
    choices = _literal_lists(sources.tree("sglang/srt/arg_groups/choices.py"))
    for tree in sources.trees("sglang/srt/arg_groups/fields/"):
        types.literals.update(_literals(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                flag = _annotated(node.target.id, node.annotation, types, choices)
                flags += [flag] if flag else []
    for call in calls(sources.tree("sglang/srt/server_args.py"), ["add_argument"]):
        flags.append(of_call([text(name) for name in call.args], keywords(call)))
    return flags


def _literal_lists(tree: ast.Module) -> dict[str, list[str]]:
    return {
        node.targets[0].id: words(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and words(node.value)
    }


def _annotated(name: str, hint: ast.expr, types: Types, known: dict[str, list[str]]) -> Flag | None:
    if not (isinstance(hint, ast.Subscript) and ast.unparse(hint.value) == "A" and isinstance(hint.slice, ast.Tuple)):
        return None
    inner, meta = hint.slice.elts[0], hint.slice.elts[1]
    given = keywords(meta) if isinstance(meta, ast.Call) else {}
    if text(given.get("no_cli")) == "True":
        return None
    names = [text(given.get("cli_name")) or "--" + name.replace("_", "-"), *words(given.get("aliases"))]
    flag = types.flag(names, inner)
    parser = ast.unparse(given["type_parser"]) if "type_parser" in given else ""
    if "action" in given or "nargs" in given:
        flag.kind = _kind(given)
    elif ast.unparse(inner) == "bool":
        flag.kind = "switch"
    elif parser:
        flag.kind = scalar(parser)
    elif flag.kind == "json":  # argparse gets a str parser where no type_parser is named
        flag.kind = "str"
    listed = given.get("choices")
    flag.choices = flag.choices or words(listed) or known.get(getattr(listed, "id", ""), [])
    return flag


# ---- Dynamo: add_argument(flag_name=..., env_var=...) ----------------------------------------------------------------

_DYNAMO_COMMON = "dynamo/common/configuration/groups/"


def dynamo(sources: Sources, paths: Iterable[str], worker: bool = False) -> list[Flag]:
    flags: list[Flag] = []
    for path in paths:
        tree = sources.tree(path)
        for node in ast.walk(tree):
            if worker and isinstance(node, ast.If) and "frontend_only" in ast.unparse(node.test):
                node.body = []
        negatable = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and _is_negatable(node)}
        for call in calls(tree, ["add_argument", "add_negatable_bool_argument"]):
            flags += _dynamo_flag(call, negatable)
        flags += _legacy_flags(tree) + _simulator_flags(tree)
    return flags


def _is_negatable(node: ast.ClassDef) -> bool:
    return any("BooleanOptionalAction" in ast.unparse(base) for base in node.bases)


def _dynamo_flag(call: ast.Call, negatable: set[str]) -> list[Flag]:
    given = keywords(call)
    name = text(given.get("flag_name"))
    if not name:
        names = [text(item) for item in call.args if text(item).startswith("-") and len(text(item).strip("-")) > 0]
        names = [item for item in names if not item.endswith("-")]
        return [of_call(names, given)] if names else []
    obsolete = text(given.get("obsolete_flag"))
    given = {**given, **({"type": given["arg_type"]} if "arg_type" in given else {})}
    flag = of_call([name, *([obsolete] if obsolete else [])], given)
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called == "add_negatable_bool_argument" or getattr(given.get("action"), "id", "") in negatable:
        flag.kind = "boolean"
    named = given.get("env_var")
    flag.env = text(named) if isinstance(named, ast.Constant) else ""
    return [flag]


def _legacy_flags(tree: ast.Module) -> list[Flag]:
    """Flags registered in a loop over a tuple of (flag, variable, replacement)."""
    tables = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
    ]
    rows = [row for table in tables for row in table.elts if isinstance(row, ast.Tuple)]
    return [Flag(name, "int") for row in rows if row.elts and (name := text(row.elts[0])).startswith("--")]


def _simulator_flags(tree: ast.Module) -> list[Flag]:
    """`--ais-NAME` and its older spelling `--aic-NAME`, one for each key of `_FIELDS`."""
    for node in ast.walk(tree):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and target.id == "_FIELDS" and isinstance(node.value, ast.Dict):
            names = [text(key).replace("_", "-") for key in node.value.keys]
            return [Flag(f"--ais-{name}", "str", [f"--aic-{name}"]) for name in names]
    return []


def routers(path: str) -> Callable[[Sources], list[Flag]]:
    def read(sources: Sources) -> list[Flag]:
        found = calls(sources.tree(path), ["add_argument"])
        return [of_call([text(name) for name in call.args], keywords(call)) for call in found]

    return read


def _worker(engine: str) -> Callable[[Sources], list[Flag]]:
    common = [_DYNAMO_COMMON + name for name in ("runtime_args.py", "frontend_decoding_args.py")]
    paths = [*common, _DYNAMO_COMMON + "router_args.py", _DYNAMO_COMMON + "kv_router_args.py"]
    return lambda sources: dynamo(sources, [*paths, f"dynamo/{engine}/backend_args.py"], worker=True)


def _frontend(sources: Sources) -> list[Flag]:
    groups = [name for name in sources.names if name.startswith(_DYNAMO_COMMON) and "http_args" not in name]
    kept = [name for name in groups if name.endswith("_args.py") and "runtime" not in name and "decoding" not in name]
    return dynamo(sources, [*kept, "dynamo/frontend/frontend_args.py"])


TABLES: dict[str, tuple[str, Callable[[Sources], list[Flag]]]] = {
    "vllm": ("vllm", vllm),
    "sglang": ("sglang", sglang),
    "dynamo_vllm": ("ai_dynamo", _worker("vllm")),
    "dynamo_sglang": ("ai_dynamo", _worker("sglang")),
    "dynamo_trtllm": ("ai_dynamo", _worker("trtllm")),
    "dynamo_frontend": ("ai_dynamo", _frontend),
    "vllm_router": ("vllm_router", routers("vllm_router/router_args.py")),
    "sglang_router": ("sglang_router", routers("sglang_router/router_args.py")),
}


def wheel_of(package: str, folder: Path) -> Path | None:
    found = sorted(folder.glob(f"{package}-[0-9]*.whl"))
    return found[-1] if found else None


def extract(name: str, wheel: Path) -> dict[str, Any]:
    """The table of one program: its release and its flags by long name."""
    package, read = TABLES[name]
    sources = Sources(wheel)
    flags: dict[str, Any] = {}
    for flag in read(sources):
        if flag.name.startswith("-"):
            flags.setdefault(flag.name.lstrip("-"), flag.row())
    return {"package": package, "version": sources.version, "flags": dict(sorted(flags.items()))}


def dump(table: dict[str, Any]) -> str:
    """One flag a line, so that the next release reads as a diff."""
    head = {key: value for key, value in table.items() if key != "flags"}
    lines = [f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in table["flags"].items()]
    opening = json.dumps(head, indent=2)[:-2]
    return f'{opening},\n  "flags": {{\n' + ",\n".join(lines) + "\n  }\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--out", type=Path, default=Path("src/diptych/deploy/data/flags"))
    parser.add_argument("--read", default="", help="the date on which the wheels were read")
    args = parser.parse_args()
    for name, (package, _) in TABLES.items():
        wheel = wheel_of(package, args.wheels)
        if wheel is None:
            print(f"{name}: no {package}-*.whl in {args.wheels}")
            continue
        table = extract(name, wheel)
        table = {"package": table["package"], "version": table["version"], "read": args.read, "flags": table["flags"]}
        (args.out / f"{name}.json").write_text(dump(table), encoding="utf-8")
        print(f"{name}: {len(table['flags'])} flags of {package} {table['version']}")


if __name__ == "__main__":
    main()
