"""The many spellings of one thing: 'NVIDIA H100-SXM-80GB', 'h100_sxm' and 'H100' are one accelerator,
'meta-llama/Llama-3.1-70B-Instruct' and 'llama3_1-70b-fp8_dyn' one model.

A spelling is folded to its letters and digits; vendor words, memory types and release suffixes are dropped first.
Nothing is guessed from similarity: what does not fold to a known name stays unresolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from diptych.catalog.dtype import Dtype

_SEPARATORS = re.compile(r"[\s_/\-,:]+")
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]")

_VENDOR_WORDS = frozenset(
    (
        *("nvidia", "amd", "intel", "google", "aws", "huawei", "maxsun", "ms", "cloud"),
        *("instinct", "geforce", "tesla", "virtualized", "superchip", "blackwell"),
    )
)
_MEMORY_WORDS = re.compile(r"^(hbm\d?e?|gddr\d[x]?|x\d+|\d+w)$")
_PARENTHESES = re.compile(r"\((r|tm|x\d+|\d+x|power cap [^)]*)\)", re.IGNORECASE)
_TRADEMARKS = re.compile(r"\(r\)|\(tm\)|[\[\]®™]", re.IGNORECASE)

_DTYPE_WORDS: Mapping[str, Dtype] = {
    "fp8": Dtype.FP8,
    "nvfp4": Dtype.FP4,
    "mxfp4": Dtype.FP4,
    "fp4": Dtype.FP4,
    "awq": Dtype.INT4,
    "gptq": Dtype.INT4,
    "int4": Dtype.INT4,
    "w4a16": Dtype.INT4,
    "int8": Dtype.INT8,
    "w8a8": Dtype.INT8,
    "bf16": Dtype.BF16,
    "fp16": Dtype.FP16,
}
_SUFFIX_WORDS = frozenset(
    (
        *("instruct", "chat", "it", "hf", "base", "thinking"),
        *("dynamic", "dyn", "pre", "static", "pertensor", "trtllm", "quark", "block", "kv", "quantized", "edge"),
        *("v0.1", "v0.2", "v0.3", "v1", "v1.1", "v1.5", "128k"),
        *("0528", "2507", "2508", "2512", "0324"),  # months of release
        *("99", "99.9", "finetuned"),  # MLPerf's accuracy targets and open-division marks
    )
)


def fold(name: str) -> str:
    """Letters and digits, lower case.

    >>> fold("Llama-3.1-70B")
    'llama3170b'
    """
    return _NOT_ALPHANUMERIC.sub("", name.casefold())


def accelerator_key(spelling: str) -> str:
    """What an accelerator's spelling folds to.

    >>> accelerator_key("AMD Instinct MI300X 192GB HBM3"), accelerator_key("h100_sxm")
    ('mi300x192gb', 'h100sxm')
    """
    text = _TRADEMARKS.sub(" ", _PARENTHESES.sub(" ", spelling))
    words = [word for word in _SEPARATORS.split(text.casefold()) if word]
    kept = [word for word in words if word not in _VENDOR_WORDS and not _MEMORY_WORDS.match(word)]
    return fold("".join(kept).removesuffix("cts"))


def model_keys(spelling: str) -> tuple[str, ...]:
    """What a model's spelling may fold to, the most specific first: whole, then without suffix after suffix.

    >>> model_keys("meta-llama/Llama-3.1-70B-Instruct")
    ('llama3170binstruct', 'llama3170b')
    """
    words = _model_words(spelling)
    keys = [fold("".join(words))]
    while len(words) > 1 and _is_suffix(words[-1]):
        words = words[:-1]
        keys.append(fold("".join(words)))
    return tuple(dict.fromkeys(keys))


def stored_dtype(spelling: str) -> Dtype | None:
    """The format that a spelling's suffixes name, if any.

    >>> stored_dtype("nvidia/Llama-3.1-70B-Instruct-FP8")
    <Dtype.FP8: 'fp8'>
    """
    words = _model_words(spelling)
    while len(words) > 1 and _is_suffix(words[-1]):
        if words[-1] in _DTYPE_WORDS:
            return _DTYPE_WORDS[words[-1]]
        words = words[:-1]
    return None


def _model_words(spelling: str) -> list[str]:
    """The parts of the name after the organisation; 'nvidia-' and 'meta-' in front of it dropped as well."""
    bare = spelling.strip().rstrip("/").rsplit("/", 1)[-1].casefold()
    words = [word for word in re.split(r"[\s_\-]+", bare) if word]
    while len(words) > 1 and words[0] in ("nvidia", "meta"):
        words = words[1:]
    return words


def _is_suffix(word: str) -> bool:
    return word in _SUFFIX_WORDS or word in _DTYPE_WORDS


def index_names(entries: Iterable[tuple[str, Iterable[str]]], key: str) -> dict[str, str]:
    """Folded spelling → name, for (name, aliases) pairs; names win over aliases. `key` is 'accelerator' or 'model'."""
    folded = accelerator_key if key == "accelerator" else fold
    pairs = list(entries)
    index: dict[str, str] = {}
    for name, _ in pairs:
        index.setdefault(folded(name), name)
        index.setdefault(fold(name), name)
    for name, aliases in pairs:
        for alias in aliases:
            index.setdefault(folded(alias), name)
            index.setdefault(fold(alias), name)
    return index
