"""What tensor parallelism can cut, by the format of each tensor, and products of degrees."""

import pytest

from recipe_core.estimates.columns.dims import ParallelDims
from recipe_core.estimates.serving.weights import layer_weight_bytes, vocabulary_bytes
from recipe_core.models.catalog import catalog_model, load_model_spec
from recipe_core.models.spec import MATRIX_ROLES
from recipe_core.plans.plans import plan_candidate
from recipe_core.plans.splits import row_reasons
from tests.conftest import make_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

PRO, NEXT = "deepseek-ai/DeepSeek-V4-Pro", "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8"
SHARED = "the shared expert share 3072/16 = 192 is not a multiple of the fp8-block block of 128"


def split(model, tp, engine="vllm", release=None, dp=1, ep=1, nodes=1, device="h200-sxm"):
    """Reasons of a split over nodes of eight devices, its setting and case."""
    candidate = {"engine": engine, "tp": tp, "pp": 1, "dp": dp, "ep": ep}
    candidate |= {"engine_version": release} if release else {}
    work = {"input_tokens": 512, "output_tokens": 512, "concurrency": 1, "max_context": 2048}
    request = make_request(model, device, 8, nodes, workload=work, candidate=candidate)
    table, row = plan_candidate(request)
    return row_reasons(table, row), table.blocks[0].setting, table.blocks[0].cases


def test_whole_blocks_of_shared_experts_cost_memory_and_routed_ones_have_none():
    """Of DeepSeek-V4-Pro only the shared experts, attention and head are in blocks: 24 of them over
    16 ranks, two on each, 256 values instead of 192.
    """
    stored = catalog_model(PRO).quantization
    forms = map(stored.stored, ("experts", "shared", "router"))
    blocks = [form.block if form else None for form in forms]
    assert blocks == [None, 128, None]
    _, setting, cases = split(PRO, 16, nodes=2)
    layer = setting.model.kinds[-1][0]
    sizes = {
        item.name: item.numel * setting.tensor_bytes(item) / cut
        for item in layer.tensors(setting.model.hidden)
        for cut in (16 if item.shard in ("tensor", "experts") else 1,)
    }
    shared = sizes.pop("moe.shared") * 16
    sixteen = layer_weight_bytes(setting, layer, cases)[0]
    assert sixteen - sum(sizes.values()) == pytest.approx(shared * 256 / 3072, rel=0.02)


def test_publishers_leave_different_parts_of_hybrids_unquantised():
    """Gigabytes: the files (26.38) less the draft layer's 0.85; 10.64 GiB on each of two devices;
    19.75 GiB on one device (club-3090 issue 1047).
    """
    published = {"Inferact": 25.53, "unsloth": 22.85, "nvidia": 21.21}
    specs = {
        name: load_model_spec(f"{name}/Qwen3.8-27B-NVFP4", folders=False) for name in published
    }
    counted = {name: spec.counted_bytes / 1e9 for name, spec in specs.items()}
    assert counted == pytest.approx(published, rel=0.02)
    for spec in specs.values():
        assert any("its name is read as" in note for note in spec.notes)
    # the last eighth of the feed-forward layers is fp8 where the others are in four bits
    eight = [layer for layer in specs["unsloth"].layers if dict(layer.stored).get("mlp")]
    assert len(eight) == 8
    assert {dict(layer.stored)["mlp"].dtype for layer in eight} == {"fp8"}


@pytest.mark.parametrize("model", [PRO, NEXT, "unsloth/Qwen3.8-27B-NVFP4", "openai/gpt-oss-120b"])
def test_bytes_of_all_kinds_add_up(model):
    """On one rank the layers, embedding and head are what the checkpoint counts, norms aside."""
    _, setting, cases = split(model, 1)
    spec = setting.model
    held = sum(n * float(layer_weight_bytes(setting, kind, cases)[0]) for kind, n in spec.kinds)
    for end in ("embedding",) if spec.tied_embeddings else ("embedding", "head"):
        held += float(vocabulary_bytes(setting, cases, end)[0])
    assert held == pytest.approx(spec.serving(()).counted_bytes, rel=0.02)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_cut_tensors_add_up_over_the_ranks(tp):
    """What tp cuts is a tp-th on each rank, by every kind's own format."""
    _, setting, cases = split("unsloth/Qwen3.8-27B-NVFP4", tp)
    for layer, _ in setting.model.kinds:
        whole = sum(
            item.numel * setting.tensor_bytes(item)
            for item in layer.tensors(setting.model.hidden)
            if item.role in MATRIX_ROLES and item.shard == "tensor"
        )
        assert float(layer_weight_bytes(setting, layer, cases)[0]) * tp >= whole


DIMS = {"tp": 2, "pp": 4, "cp": 2, "dp": 8, "micro_batch": 2, "global_batch": 256}


def test_products_and_the_nearest_batches_come_out() -> None:
    dims = ParallelDims(**DIMS)
    dims.check(128)
    assert (dims.devices, dims.replicas, dims.sequences, dims.accumulation) == (128, 16, 16, 16)
    assert dims.global_batch == dims.micro_batch * dims.accumulation * dims.dp
    near = ParallelDims(**(DIMS | {"global_batch": 250})).nearest_batches
    assert near == (240, 256)
    for batch in near:
        ParallelDims(**(DIMS | {"global_batch": batch})).check(128)


@over("change field said", table("space", "dims"))
def test_what_does_not_come_out_prints_every_term(change, field, said):
    error = refusal(lambda: ParallelDims(**(DIMS | change)).check(128))
    assert error.field == field
    assert said in str(error)


@over("engine release device refused", table("space", "shared"))
def test_shared_experts_are_asked_by_their_own_format(engine, release, device, refused):
    reasons, *_ = split(PRO, 16, engine, release, nodes=2, device=device)
    assert any(SHARED in reason for reason in reasons) is refused
    # 512/8 = 64 is no block of 128; with dp vLLM does not cut it (use_sequence_parallel_moe)
    for dp, nodes in ((1, 1), (2, 2)):
        reasons, *_ = split(NEXT, 8, dp=dp, ep=8 * dp, nodes=nodes)
        assert any("shared expert share 512/8 = 64" in reason for reason in reasons) is (dp == 1)
