"""The invariant of devices and batch."""

import pytest

from recipe_core.space.dims import ParallelDims
from tests.fixtures.refusals import refusal

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


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"dp": 9}, "candidate", "tp 2 × pp 4 × cp 2 × dp 9 = 144 devices; only 128 available"),
        ({"global_batch": 250}, "workload.global_batch", "micro_batch 2 = 16; nearest: 240 or 256"),
        ({"global_batch": 8}, "workload.global_batch", "nearest: 16"),
        ({"shard": 3}, "candidate.shard", "dp 8 × cp 2 = 16 replicas are not divisible by shard 3"),
        ({"tp": 0}, "candidate", "below 1"),
    ],
)
def test_what_does_not_come_out_prints_every_term(change, field, said) -> None:
    error = refusal(lambda: ParallelDims(**(DIMS | change)).check(128))
    assert error.field == field
    assert said in str(error)
