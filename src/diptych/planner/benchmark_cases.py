"""From a published row to workers that can be timed: names resolved, gaps filled by stated assumptions or refused.

Every gap that is filled is a sentence in `Case.assumptions`; a row that would need a guess beyond them is `Unanswerable`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Model
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.perf.loop_play import Protocol
from diptych.perf.memory import kv_capacity
from diptych.perf.overheads import overheads
from diptych.planner.benchmark_rows import Kind, Ranks, Row
from diptych.planner.recipes import Recipe, recipes


class Unanswerable(Exception):
    """Why no honest number can be given for a row."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row with its workers. `prefill` is None when one worker does both; counts are of workers, and `prefill_workers` 0
    means as many as keep up with the decode side."""

    row: Row
    decode: Worker
    decode_workers: int
    isl: float
    osl: float
    protocol: Protocol
    choose_tp: bool = False
    prefill: Worker | None = None
    prefill_workers: int = 0
    drafts: int = 0
    assumptions: tuple[str, ...] = field(default=())

    @property
    def is_assumed(self) -> bool:
        """Whether the answer leans on anything that the row does not say."""
        return bool(self.assumptions)


_DTYPES: Mapping[str, tuple[Dtype, Dtype]] = {
    "fp8": (Dtype.FP8, Dtype.FP8),
    "nvfp4/fp8": (Dtype.FP4, Dtype.FP4),
    "fp4": (Dtype.FP4, Dtype.FP4),
    "nvfp4": (Dtype.FP4, Dtype.FP4),
    "mxfp4": (Dtype.FP4, Dtype.FP4),
    "int8": (Dtype.INT8, Dtype.INT8),
    "w8a8": (Dtype.INT8, Dtype.INT8),
    "int4": (Dtype.INT4, Dtype.BF16),
    "int4_wo": (Dtype.INT4, Dtype.BF16),
    "uint4": (Dtype.INT4, Dtype.BF16),
    "awq": (Dtype.INT4, Dtype.BF16),
    "gptq": (Dtype.INT4, Dtype.BF16),
    "awq/gptq": (Dtype.INT4, Dtype.BF16),
    "bf16": (Dtype.BF16, Dtype.BF16),
    "bfloat16": (Dtype.BF16, Dtype.BF16),
    "fp16": (Dtype.BF16, Dtype.BF16),
    "float16": (Dtype.BF16, Dtype.BF16),
    "fp16mixed": (Dtype.BF16, Dtype.BF16),
    "fp32": (Dtype.FP32, Dtype.FP32),
}

# Mean prompt and answer tokens of MLPerf Inference's datasets. Answers are in the logs (tokens/s over samples/s); prompts are
# those of the benchmarks' reference implementations.
_DATASETS: Mapping[str, tuple[float, float]] = {
    "llama270b": (294.0, 294.5),  # OpenOrca, 24,576 samples
    "llama3170b": (294.0, 294.5),  # the open division runs Llama 2's dataset
    "llama318b": (778.0, 73.0),  # CNN/DailyMail
    "llama31405b": (9400.0, 684.0),  # LongBench, RULER and GovReport
    "mixtral8x7b": (285.0, 145.0),  # OpenOrca, GSM8K, MBXP
    "deepseekr1": (800.0, 3880.0),  # AIME, MATH-500, GPQA, MMLU-Pro, LiveCodeBench
    "gptj6b": (870.0, 69.0),  # CNN/DailyMail
    "gptoss120b": (1024.0, 1310.0),
}


def case_of(row: Row, catalog: Catalog) -> Case:
    """The workers that a row describes.

    Raises:
        Unanswerable: unknown names, missing lengths or load, workers that cannot be laid out or whose weights do not fit.
    """
    notes: list[str] = []
    _believable(row)
    accelerator, model = _named(row, catalog, notes)
    engine = engine_name(row.engine, row.engine_version, row.source)
    precision = _precision(row, model, accelerator, engine, notes)
    isl, osl = _lengths(row, model, notes)
    worker, workers = _decode_worker(row, model, accelerator, precision, engine, notes)
    mean = (1.0 + SWEEP_SPREAD) / 2.0 if is_sweep(row) else 1.0
    case = Case(
        row,
        worker,
        workers,
        isl * mean,
        osl * mean,
        _protocol(row, accelerator, engine),
        choose_tp=not (row.decode.tp or row.decode.dp > 1),
        drafts=_drafts(row, notes),
        assumptions=tuple(notes),
    )
    return _with_prefill(case) if row.kind is Kind.DISAGGREGATED else case


_DRAFTS_NOTED = re.compile(r"speculative|\bMTP\b|eagle", re.IGNORECASE)


def _believable(row: Row) -> None:
    """Refuse rows that their source marks, or that contradict themselves: concurrency is throughput times latency."""
    if "SUSPECT" in row.note:
        raise Unanswerable("the source prints the same figures for another accelerator")
    if _DRAFTS_NOTED.search(row.note):
        raise Unanswerable("speculative decoding of unknown acceptance")
    seen, osl, clients = row.measured, row.osl or 0.0, row.concurrency
    if row.derived or not (clients and osl and seen.ttft and seen.tpot and seen.output):
        return
    implied = seen.output / osl * (seen.ttft + (osl - 1) * seen.tpot)
    if row.kind is Kind.CLOSED and not 0.4 < implied / clients < 1.6:
        raise Unanswerable("the row contradicts itself: concurrency is not throughput times latency")


def engine_name(spelling: str, version: str = "", source: str = "") -> str:
    """vllm, sglang, trtllm or trtllm-cpp: what a framework's spelling names; vllm for those whose steps we don't know.

    TensorRT-LLM ran engine files on its C++ runtime before 0.20; its PyTorch runtime is another engine with other host costs.
    """
    folded = spelling.casefold()
    if "sglang" in folded:
        return "sglang"
    if not re.search(r"tensorrt|trtllm|trt-llm", folded):
        return "vllm"
    release = re.match(r"0\.(\d+)", version or "9") if "TensorRT-LLM" in source else None
    return "trtllm-cpp" if release and int(release[1]) < 20 else "trtllm"


def _named(row: Row, catalog: Catalog, notes: list[str]) -> tuple[Accelerator, Model]:
    bare = re.sub(r"\s*\(.*\)$", "", row.accelerator)
    accelerator = catalog.find_accelerator(row.accelerator) or catalog.find_accelerator(bare)
    model = catalog.find_model(row.model)
    if not row.accelerator or "+" in row.accelerator:
        raise Unanswerable("mixed accelerators" if row.accelerator else "no accelerator named")
    if accelerator is None:
        raise Unanswerable(f"unknown accelerator {row.accelerator!r}")
    if not accelerator.is_complete:
        raise Unanswerable(f"data sheet of {accelerator.name} incomplete")
    if model is None:
        raise Unanswerable(f"unknown model {row.model!r}")
    if bare != row.accelerator and catalog.find_accelerator(row.accelerator) is None:
        notes.append(f"accelerator taken as {accelerator.name}")
    return accelerator, model


def _precision(row: Row, model: Model, accelerator: Accelerator, engine: str, notes: list[str]) -> Precision:
    spelled = row.dtype.casefold()
    if spelled in _DTYPES:
        weights, activations = _DTYPES[spelled]
    elif spelled in ("", "unset"):
        weights = _unstated(row, model, accelerator)
        activations = Dtype.BF16 if weights is Dtype.INT4 else weights
        notes.append(f"precision not recorded: {weights}")
    else:
        raise Unanswerable(f"unknown precision {row.dtype!r}")
    if weights is Dtype.FP4 and Dtype.FP4 not in accelerator.peak_flops:
        activations = Dtype.BF16
    if weights is Dtype.FP8 and not any(dtype.is_fp8 for dtype in accelerator.peak_flops):
        activations = Dtype.BF16
    return Precision(weights, activations, _kv_format(weights, accelerator, engine))


def _unstated(row: Row, model: Model, accelerator: Accelerator) -> Dtype:
    """MLPerf's entries without a precision run the narrowest that its accuracy target allows; others the stored one."""
    wide = model.native in (Dtype.BF16, Dtype.FP16)
    if row.source.startswith("MLPerf") and wide and any(dtype.is_fp8 for dtype in accelerator.peak_flops):
        return Dtype.FP8
    return model.native if model.native is not Dtype.FP16 else Dtype.BF16


def _kv_format(weights: Dtype, accelerator: Accelerator, engine: str) -> Dtype:
    """TensorRT-LLM keeps the cache of a quantised model in FP8, as do the others where FP4 exists; else 16 bit."""
    quantised = weights in (Dtype.FP8, Dtype.FP4)
    native = any(dtype.is_fp8 for dtype in accelerator.peak_flops)
    narrow = quantised and native and (engine.startswith("trtllm") or Dtype.FP4 in accelerator.peak_flops)
    return Dtype.FP8 if narrow else Dtype.BF16


def _lengths(row: Row, model: Model, notes: list[str]) -> tuple[float, float]:
    known = next((v for k, v in _DATASETS.items() if k == re.sub(r"[^a-z0-9]", "", model.name.casefold())), None)
    mlperf = row.source.startswith("MLPerf") and known is not None
    isl = row.isl or (known[0] if mlperf and known else None)
    osl = row.osl or (known[1] if mlperf and known else None)
    if row.kind in (Kind.FIRST_TOKEN, Kind.PREFILL):
        osl = osl or 1.0
    if not isl or not osl:
        raise Unanswerable("no prompt length" if not isl else "no answer length")
    if not row.isl:
        notes.append(f"mean prompt of the benchmark's dataset: {isl:g} tokens")
    if not row.osl and row.kind not in (Kind.FIRST_TOKEN, Kind.PREFILL):
        notes.append(f"mean answer of the benchmark's dataset: {osl:g} tokens")
    if isl + osl > 4 * model.max_context:
        raise Unanswerable(f"{isl + osl:g} tokens are beyond the model's context")
    return isl, osl


SWEEP_SPREAD = 0.8


def is_sweep(row: Row) -> bool:
    """Whether a row of the silicon sample comes from InferenceX's sweeps, by the form of its name."""
    return re.search(r"cfg\d+$|^20\d\d_\d\d_\d\d_|_tp\d+_ep\d+_\d+$", row.reference) is not None


def _protocol(row: Row, accelerator: Accelerator, engine: str) -> Protocol:
    """The load test behind a row.

    InferenceX draws lengths uniformly from 0.8 to 1 of the nominal ones and sends 10 requests per client, all clients at once
    (its benchmark scripts: --random-range-ratio 0.8, --num-prompts 10·concurrency, --request-rate inf); its SGLang servers on
    B200 look for requests every 10 steps, every 30 from 16 clients on (--scheduler-recv-interval). GPUStack's lab sends its
    whole dataset at once with natural lengths. Elsewhere lengths are fixed; vLLM's own load test starts
    all clients at once, the others are taken to start apart.
    """
    if row.source.startswith("GPUStack"):
        return Protocol(1 if (row.concurrency or 0) >= 16 else 10, 0.0)
    if not is_sweep(row):
        return Protocol(10, 1.0, ramp=0.0 if engine == "vllm" else 1.0)
    polls = engine == "sglang" and accelerator.name.startswith("B200") and row.kind is Kind.CLOSED
    return Protocol(10, SWEEP_SPREAD, poll=(30.0 if (row.concurrency or 0) >= 16 else 10.0) if polls else 1.0)


_DRAFTING = re.compile(r"1\.2\.0rc6\.post3")
_DRAFTING_IMAGES = re.compile(r"sglang:v0\.5\.9-cu130$|sglang:v0\.5\.8-cu130-amd64")


def _drafts(row: Row, notes: list[str]) -> int:
    """Tokens drafted per step. Tables leave it out; the releases and images that InferenceX runs only with MTP tell it."""
    if row.kind is not Kind.CLOSED or not is_sweep(row):
        return 0
    told = _DRAFTING.search(row.engine_version) or _DRAFTING_IMAGES.search(row.image)
    if told:
        notes.append(f"multi-token prediction, told by release {told[0]}")
    return 3 if told and row.decode.dp <= 1 else 1 if told else 0


def _decode_worker(
    row: Row, model: Model, accelerator: Accelerator, precision: Precision, engine: str, notes: list[str]
) -> tuple[Worker, int]:
    ranks = row.decode
    base = Worker(
        model,
        accelerator,
        precision,
        Parallelism(),
        engine,
        max_batch=int(row.batch or 0) if row.kind is Kind.STATIC else 0,
        max_batched_tokens=_step_tokens(row, engine, notes),
    )
    if ranks.tp or ranks.dp > 1:
        worker = replace(base, parallelism=_parallelism(ranks, model, notes, row.kind is Kind.DISAGGREGATED))
        workers = row.decode_workers or _workers(row.gpus, worker.accelerators, row.kind)
    else:
        if not row.gpus:
            raise Unanswerable("no accelerator count and no parallelism")
        worker = _smallest(base, row, notes)
        workers = max(row.gpus // worker.accelerators, 1)
    if kv_capacity(worker) <= 0:
        raise Unanswerable("weights do not fit as recorded")
    return worker, workers


def _parallelism(ranks: Ranks, model: Model, notes: list[str], apart: bool) -> Parallelism:
    tp, pp, dp = max(ranks.tp, 1), max(ranks.pp, 1), max(ranks.dp, 1)
    heads = max((attention.heads for _, attention in model.attention_groups()), default=1)
    if heads % tp:
        if not model.is_moe or not apart:
            raise Unanswerable(f"TP {tp} does not divide {heads} heads")
        notes.append(f"TP {tp} does not divide {heads} heads: run as attention DP with EP")
        return Parallelism(1, pp, max(tp * dp, 1), tp * dp)
    ep = ranks.ep if model.is_moe and ranks.ep > 1 else 1
    if model.is_moe and dp > 1 and ep == 1:
        ep = tp * dp  # attention DP never copies the experts
    return Parallelism(tp, pp, min(ep, tp * dp), dp)


def _step_tokens(row: Row, engine: str, notes: list[str]) -> int:
    """Prefill tokens of a step: vLLM's general default for the sample's own vLLM runs, each engine's server default else."""
    if engine != "vllm" or row.kind is not Kind.CLOSED or is_sweep(row) or "aiconfigurator" not in row.source:
        return 0
    notes.append("step of vLLM's general default, 2048 tokens")
    return 2048


LARGEST = 128


def _workers(gpus: int, size: int, kind: Kind) -> int:
    """Equal workers on the recorded accelerators; more of these than a rack holds is a slip of the table."""
    return max(gpus // size, 1) if 0 < gpus <= LARGEST and kind is not Kind.DISAGGREGATED else 1


def _smallest(base: Worker, row: Row, notes: list[str]) -> Worker:
    """The smallest power of two of ranks whose memory holds the weights and one request."""
    need = float(base.model.kv_bytes((row.isl or 1024.0) + (row.osl or 1024.0), base.precision.kv))
    for worker in layouts(base, row.gpus):
        if kv_capacity(worker) >= need:
            notes.append(
                "parallelism not recorded: " + ("the best of those that fit" if row.gpus > 1 else "one accelerator")
            )
            return worker
    raise Unanswerable("weights do not fit on the recorded accelerators")


def layouts(base: Worker, gpus: int) -> tuple[Worker, ...]:
    """Workers of 1, 2, 4 … accelerators by TP, as many as there are and heads allow."""
    heads = min((attention.heads for _, attention in base.model.attention_groups()), default=1)
    sizes = [tp for tp in (1, 2, 4, 8, 16, 32, 64) if tp <= gpus and heads % tp == 0]
    return tuple(replace(base, parallelism=Parallelism(tp, 1, 1, 1)) for tp in sizes)


def _with_prefill(case: Case) -> Case:
    """The prefill side: as recorded, by the run's recipe, or under stated assumptions."""
    row, notes = case.row, list(case.assumptions)
    found = _recipes(case)
    if row.prefill_workers and row.decode_workers and (row.prefill.tp or row.prefill.dp):
        parallelism = _parallelism(row.prefill, case.decode.model, notes, True)
        cold = any(recipe.largest and recipe.concurrency == row.concurrency for recipe in found)
        return _apart(
            case, parallelism, row.prefill_workers, case.decode.parallelism, row.decode_workers, 0, cold, notes
        )
    if found:
        recipe = _chosen(found, row, notes)
        return _apart(
            case, recipe.prefill, row.prefill_workers or recipe.prefill_workers, recipe.decode,
            row.decode_workers or recipe.decode_workers, recipe.drafts(row.concurrency or 0.0), recipe.largest, notes,
        )  # fmt: skip
    if not row.decode_workers:
        raise Unanswerable("worker counts not recorded and no recipe known")
    if row.prefill.tp or row.prefill.dp:
        parallelism = _parallelism(row.prefill, case.decode.model, notes, True)
    else:
        parallelism = case.decode.parallelism
        notes.append("prefill workers not recorded: parallel as the decode side")
    if not row.prefill_workers:
        notes.append("prefill workers not recorded: as many as match the decode side")
    return _apart(
        case,
        parallelism,
        row.prefill_workers,
        case.decode.parallelism,
        row.decode_workers,
        0,
        False,
        notes,
    )


def _apart(
    case: Case, prefill: Parallelism, prefill_workers: int, decode: Parallelism, decode_workers: int, drafts: int,
    cold: bool, notes: list[str],
) -> Case:  # fmt: skip
    first, second = replace(case.decode, parallelism=prefill), replace(case.decode, parallelism=decode)
    for worker in (first, second):
        if kv_capacity(worker) <= 0:
            raise Unanswerable("weights do not fit as recorded")
    wide = prefill.dp > 1 or decode.dp > 1  # attention DP with experts over all ranks has the most to set up
    protocol = replace(case.protocol, cold=overheads(second.engine).cold if cold and wide else 0.0)
    return replace(
        case, prefill=first, prefill_workers=prefill_workers, decode=second, decode_workers=decode_workers,
        drafts=drafts, protocol=protocol, assumptions=tuple(notes),
    )  # fmt: skip


def _recipes(case: Case) -> tuple[Recipe, ...]:
    """The configurations that InferenceX ran at this or the nearest concurrency."""
    row = case.row
    if not is_sweep(row) or not case.decode.model.name.startswith("DeepSeek") or not row.concurrency:
        return ()
    key = (case.decode.accelerator.name, case.decode.engine, row.dtype, round(row.isl or 0), round(row.osl or 0))
    sizes = (ranks.tp * max(ranks.dp, 1) for ranks in (row.prefill, row.decode))
    found = recipes(key, row.concurrency, *sizes)
    if row.prefill.ep:
        found = tuple(recipe for recipe in found if (recipe.prefill.ep > 1) == (row.prefill.ep > 1)) or found
    return found


def _chosen(found: tuple[Recipe, ...], row: Row, notes: list[str]) -> Recipe:
    """One of the configurations. Where both were run at this concurrency and the row doesn't say which, TensorRT-LLM is taken
    with MTP, as most of its points were, and the others without. Rows named DeepSeek-V3 are the sample's without MTP."""
    exact = found[0].concurrency == row.concurrency
    note = "workers by InferenceX's recipe for " + ("this" if exact else "the nearest") + " concurrency"
    notes.append(note if len(found) == 1 else f"{note}, one of {len(found)}")
    wanted = engine_name(row.engine) == "trtllm" and "V3" not in row.model
    return next((recipe for recipe in found if recipe.mtp is wanted), found[0])
