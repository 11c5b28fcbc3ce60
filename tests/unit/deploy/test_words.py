"""Shell texts as words: quoting as a shell does it, lines counted, nothing expanded from outside."""

import contextlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.deploy.commands.read import read_script
from diptych.deploy.commands.statements import statements
from diptych.deploy.commands.words import MAX_CHARACTERS, lex
from diptych.errors import InvalidInput


def words(text):
    return [word.text for statement in statements(text, "run.sh") for word in statement.words]


PIECES = st.lists(
    st.one_of(
        st.text("abc-=/.,:{}[]", min_size=1, max_size=6),
        st.text('ab \t#;&|<>()*?"\\', max_size=6).map(lambda text: f"'{text}'"),
        st.text("ab #;&|<>()'", max_size=6).map(lambda text: f'"{text}"'),
        st.sampled_from(["\\ ", '\\"', "\\'", '"\\""', '"\\\\"', "\\\n", " ", "  "]),
    ),
    max_size=12,
).map("".join)


@given(PIECES)
def test_quoting_is_that_of_the_standard_library(text):
    """shlex knows no operators, comments or references; on texts without them both must agree."""
    joined = text.replace("\\\n", "")
    expected = shlex.split("x " + joined)
    assert words("x " + text) == expected


@given(st.lists(st.text("ab '\"\\$`#;&|<>(){}\n\t", max_size=8), min_size=1, max_size=6))
def test_what_is_quoted_comes_back_as_it_was(arguments):
    assert words(shlex.join(["run", *arguments])) == ["run", *arguments]


def test_lines_are_counted_through_quotes_continuations_and_comments():
    text = "# one\nvllm serve 'a\nb' \\\n  --port 8100 # four\n\nsleep 1\n"
    found = statements(text, "run.sh")
    assert [(word.text, word.where) for word in found[0].words[2:]] == [
        ("a\nb", "run.sh:2"),
        ("--port", "run.sh:4"),
        ("8100", "run.sh:4"),
    ]
    assert found[1].words[0].where == "run.sh:6"


def test_redirections_and_what_follows_them_are_no_arguments():
    assert words("vllm serve m > out.log 2>&1 < /dev/null &") == ["vllm", "serve", "m"]
    assert words("vllm serve m --port 2 >>log") == ["vllm", "serve", "m", "--port", "2"]


def test_a_here_document_is_not_read_as_commands():
    assert words("cat <<'EOF' > f\nvllm serve \"x\nEOF\necho done") == ["cat", "echo", "done"]


@pytest.mark.parametrize("text", ["vllm serve 'm", 'vllm serve "m', "echo $(date", "echo ${A", "echo `date"])
def test_what_is_never_closed_is_named_by_its_line(text):
    with pytest.raises(InvalidInput, match=r"run\.sh:2: .* never closed"):
        lex("true\n" + text, "run.sh")


def test_too_much_text_is_refused():
    with pytest.raises(InvalidInput, match="at most"):
        lex("a" * (MAX_CHARACTERS + 1), "run.sh")


def test_variables_of_the_text_stand_for_their_words():
    text = 'MODEL=Qwen/Qwen3-32B\nCOMMON="--block-size 64 --dtype auto"\nvllm serve $MODEL $COMMON "$COMMON"'
    assert words(text) == [
        "vllm",
        "serve",
        "Qwen/Qwen3-32B",
        "--block-size",
        "64",
        "--dtype",
        "auto",
        "--block-size 64 --dtype auto",
    ]


def test_arrays_unfold():
    text = 'ARGS=(--a "b c" # note\n  --d)\nARGS+=(e)\nrun "${ARGS[@]}" x'
    assert words(text) == ["run", "--a", "b c", "--d", "e", "x"]


def test_values_and_arrays_grow_and_may_be_made_of_themselves():
    text = 'A="x y"\nA+=" z"\nB=(1 2)\nB=(0 "${B[@]}")\nC="all ${B[@]}"\nrun $A "${B[@]}" "$C"'
    assert words(text) == ["run", "x", "y", "z", "0", "1", "2", "all 0 1 2"]


def test_a_value_with_a_part_from_outside_still_splits_at_its_blanks():
    (statement,) = statements('CMD="python3 $(git rev-parse --show-toplevel)/proxy.py --port 1"\n$CMD', "run.sh")
    assert [(word.text, word.known) for word in statement.words] == [
        ("python3", True),
        ("$(git rev-parse --show-toplevel)/proxy.py", False),
        ("--port", True),
        ("1", True),
    ]


def test_a_default_stands_where_the_text_sets_nothing():
    assert words("run ${PORT:-8100} ${HOST-'0.0.0.0'}") == ["run", "8100", "0.0.0.0"]


def test_the_environment_of_this_process_is_never_read(monkeypatch):
    monkeypatch.setenv("DIPTYCH_PORT", "1234")
    (statement,) = statements("A=$DIPTYCH_PORT run $DIPTYCH_PORT $(cat /etc/passwd) `id` '$DIPTYCH_PORT'", "run.sh")
    assert [(word.text, word.known) for word in statement.words[1:]] == [
        ("$DIPTYCH_PORT", False),
        ("$(cat /etc/passwd)", False),
        ("`id`", False),
        ("$DIPTYCH_PORT", True),
    ]
    assert statement.env["A"].source == "$DIPTYCH_PORT"
    assert statement.env["A"].text == ""


def test_exports_reach_later_commands_and_prefixes_only_their_own():
    first, second = statements("export A=1 B\nB=2\nC=3\nD=4 run\nrun", "run.sh")
    assert {name: value.text for name, value in first.env.items()} == {"A": "1", "B": "2", "D": "4"}
    assert {name: value.text for name, value in second.env.items()} == {"A": "1", "B": "2"}
    assert first.env_places["A"] == "run.sh:1"


def test_loops_and_conditions_are_read_once():
    text = "if true; then vllm serve a; fi\nfor i in 0 1; do vllm serve b & done\nwhile sleep 1; do vllm serve c; done"
    found = words(text)
    assert [found[at + 2] for at, word in enumerate(found) if word == "vllm"] == ["a", "b", "c"]


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_sentence(text):
    with contextlib.suppress(InvalidInput):
        statements(text, "run.sh")


BOMBS = {
    "a value of itself": "A=aaaaaaaa\n" + "A=$A$A\n" * 40 + "vllm serve $A",
    "an array of itself": "A=(x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + "vllm serve m",
    "eval of itself": 'export A=\'eval "$A;$A;$A;$A"\'\neval "$A"',
    "shells in shells": 'export A=\'bash -c "$A"; bash -c "$A"; bash -c "$A"\'\nbash -c "$A"',
    "many commands": "a\n" * 20_000,
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_text_that_unfolds_itself_is_refused(text):
    with pytest.raises(InvalidInput, match=r"more than|characters; expected at most"):
        read_script(text, "run.sh")


@pytest.mark.parametrize(
    "text", ["'a'" * 40_000, "$A" * 60_000, ";" * 120_000, "$(" * 60_000, "a" * 130_000, '"' + "\\a" * 60_000]
)
def test_long_texts_end_soon(text):
    with contextlib.suppress(InvalidInput):
        read_script("vllm serve " + text[: MAX_CHARACTERS - 20], "run.sh")
