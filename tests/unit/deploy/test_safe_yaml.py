"""Others' YAML and JSON: what is read and where it stood, and that nothing hostile costs memory, time or a traceback."""

from __future__ import annotations

import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from diptych.deploy.safe_yaml import MANIFEST, MAX_BYTES, Node, load_below, load_text, read_text
from diptych.errors import InvalidInput


def plain(text: str) -> list[object]:
    return [document.plain for document in load_text(text, "f.yaml")]


def refused(text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        load_text(text, "f.yaml")
    return str(caught.value)


def test_every_scalar_knows_its_line() -> None:
    [first, second] = load_text("a: 1\nb:\n  - x\n  - {c: y,\n     d: z}\n---\ne: |\n  one\n  two\n", "f.yaml")
    assert first.get("a") == Node(1, "f.yaml:1")
    assert first.get("b", 0) == Node("x", "f.yaml:3")
    assert first.get("b", 1, "d") == Node("z", "f.yaml:5")
    assert second.get("e") == Node("one\ntwo\n", "f.yaml:8")


def test_a_repeated_value_has_the_place_where_it_is_written() -> None:
    [document] = load_text("a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n  y: 2\n", "f.yaml")
    assert document.get("b", "x") == Node(1, "f.yaml:1")
    assert document.get("c").plain == {"x": 1, "y": 2}
    assert document.get("c", "x") == Node(1, "f.yaml:1")


def test_what_is_merged_gives_way_to_what_is_written_and_the_first_to_the_second() -> None:
    [document] = plain("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {z: 3, <<: [*a, *b]}\n")
    assert document["c"] == {"x": 1, "y": 1, "z": 3}
    assert yaml.safe_load("{c: {z: 3, <<: [{x: 1, y: 1}, {y: 2, z: 2}]}}")["c"] == document["c"]


def test_documents_are_separate_and_empty_ones_are_kept_apart() -> None:
    assert plain("a: 1\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert plain("") == plain("# nothing\n") == []
    assert [value for value in plain("---\n---\na: 1\n...\n") if value is not None] == [{"a": 1}]


def test_values_are_what_their_programs_read() -> None:
    text = "{i: 12, f: 0.9, t: true, n: null, q: '12', d: 2001-01-01, s: 22:22, e: '', x: 0x1f, o: !!int abc, b: !!bool so}"
    assert plain(text) == [
        {
            **{"i": 12, "f": 0.9, "t": True, "n": None, "q": "12", "d": "2001-01-01", "s": "22:22"},
            **{"e": "", "x": 31, "o": "abc", "b": "so"},
        }
    ]
    assert plain(f"a: {'9' * 10_000}") == [{"a": "9" * 10_000}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=20), JSON) | st.lists(JSON), st.booleans(), st.sampled_from((None, 1, "\t")))
def test_json_is_read_as_json(value: object, escaped: bool, indent: int | str | None) -> None:
    """As the json module writes it, with characters beyond the first 65,536 as one or as two escapes, with tabs."""
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    if not escaped and yaml.reader.Reader.NON_PRINTABLE.search(text) is not None:
        return  # YAML has no unescaped control characters
    assert plain(text) == [value]


def test_a_key_given_twice_is_refused_wherever_it_is_and_all_at_once() -> None:
    text = refused("a: 1\nb:\n  - {x: 1, x: 2}\n  - k: 1\n    k: 2\na: 3\n'1': x\n1: y\n")
    assert text.splitlines() == [
        "f.yaml:3: x is given twice; expected one value",
        "f.yaml:5: k is given twice; expected one value",
        "f.yaml:6: a is given twice; expected one value",
        "f.yaml:8: 1 is given twice; expected one value",
    ]


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefghij"
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}], k{name}: 1}}\n" for name in "bcdefghij"
)
HOSTILE = {
    "a billion laughs": (LAUGHS, "aliases unfold to more than 200,000 values"),
    "a billion merges": (MERGES, "aliases unfold to more than 200,000 values"),
    "a list of itself": ("a: &a [*a]", "aliases unfold to more than 48 levels"),
    "a mapping of itself": ("a: &a {b: *a}", "aliases unfold to more than 48 levels"),
    "merged into itself": ("a: &a {<<: *a}", "aliases unfold to more than 48 levels"),
    "aliases": ("a: &a 1\nb: [" + "*a, " * 300 + "]", "f.yaml:2: more than 256 aliases"),
    "brackets": ("[" * 100_000, "not YAML"),
    "braces": ("{a: " * (MANIFEST.depth + 1) + "}" * (MANIFEST.depth + 1), f"more than {MANIFEST.depth} levels deep"),
    "indents": (
        "\n".join(" " * level + "a:" for level in range(500)),
        f"f.yaml:{MANIFEST.depth + 1}: more than {MANIFEST.depth}",
    ),
    "values": ("- x\n" * 250_000, "more than 200,000 values"),
    "documents": ("---\na: 1\n" * (MANIFEST.documents + 1), f"more than {MANIFEST.documents} documents"),
    "characters": ("a: " + "x" * MAX_BYTES, f"at most {MAX_BYTES:,}"),
    "an object": (
        "!!python/object/apply:os.system ['id']",
        "f.yaml:1: tag tag:yaml.org,2002:python/object/apply:os.sys",
    ),
    "a tag of its own": ("a: 1\nb: !Ref x", "f.yaml:2: tag !Ref is not read"),
    "a set": ("a: !!set {x, y}", "tag tag:yaml.org,2002:set is not read"),
    "a long tag": ("a: !" + "z" * 100_000 + " x", "… is not read"),
    "a long key": ("k" * 1000 + ": 1\n" + "k" * 1000 + ": 2", "… is given twice"),
    "a list as a key": ("? [a, b]\n: 1", "a key that is not plain text"),
    "a merge of a number": ("<<: 5\na: 1", "<< merges what is not a mapping"),
    "a name of nothing": ("a: *b", "f.yaml:1: not YAML: found undefined alias"),
    "no end": ("a: [1, 2", "not YAML"),
    "an indent": ("a: 1\n  b: 2", "f.yaml:2: not YAML"),
    "half a character": ("a: \udcff", "not UTF-8 text"),
    "a bell": ("a: \x07", "control characters are not allowed"),
    "a template": ("a: {{ .Values.x }}", "what `helm template` makes of it"),
    "half a template": ("{{- if .Values.x }}\na: 1\n{{- end }}", "what `helm template` makes of it"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_hostile_or_broken_is_a_short_sentence_with_its_place(name: str) -> None:
    text, expected = HOSTILE[name]
    found = refused(text)
    assert expected in found
    assert found.startswith("f.yaml")
    assert len(found) < 250


def test_a_bomb_takes_no_more_memory_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What unfolds is counted while it unfolds: a tenth of the bound is a tenth of the memory."""
    monkeypatch.setattr("diptych.deploy.safe_yaml.MANIFEST", replace(MANIFEST, nodes=20_000))
    tracemalloc.start()
    refused(LAUGHS)
    refused(MERGES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20, f"{peak:,} bytes"


@given(st.text() | st.text(alphabet="{}[]&*!|>-?:,#'\"%@` \n\tab1<\\"))
def test_any_text_is_documents_or_findings(text: str) -> None:
    found: list[object]
    try:
        found = [*load_text(text, "f.yaml")]
    except InvalidInput as error:
        found = [*error.findings]
    assert all(isinstance(each, Node) or str(each).startswith("f.yaml") for each in found)


def test_files_are_bounded_and_named(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(InvalidInput) as caught:
            read_text(path)
        return str(caught.value)

    large, binary, empty = tmp_path / "large", tmp_path / "binary", tmp_path / "empty"
    large.write_bytes(b"a: " + b"x" * 10 * 2**20)
    binary.write_bytes(b"\x89PNG\xff\xfe")
    empty.write_bytes(b"")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "10,485,763 bytes; expected at most 4,194,304" in message(large)
    assert "not UTF-8 text" in message(binary)
    assert "no such file" in message(tmp_path / "none")
    assert "not a file" in message(tmp_path)
    assert "not a file" in message(pipe), "and it is not waited for"
    assert read_text(empty) == ""
    (tmp_path / "bom").write_bytes("\ufeffa: 1".encode())
    assert read_text(tmp_path / "bom") == "a: 1"


@pytest.mark.parametrize("name", ["../up.yaml", "/etc/hostname", "link.yaml", "sub/../../up.yaml"])
def test_a_manifest_names_files_below_itself_only(tmp_path: Path, name: str) -> None:
    (tmp_path / "up.yaml").write_text("a: 1")
    base = tmp_path / "base"
    (base / "sub").mkdir(parents=True)
    (base / "link.yaml").symlink_to(tmp_path / "up.yaml")
    (base / "in.yaml").write_text("a: 1")
    with pytest.raises(InvalidInput, match="outside the folder"):
        load_below(base, name)
    assert load_below(base, "sub/../in.yaml")[0].plain == {"a": 1}
