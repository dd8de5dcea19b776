"""What happens to replicas: the rates of published fleets and spot traces."""

import pytest

from recipe_core.base.errors import InputError
from recipe_core.fleet.events import events_of, reclaims


def failures(**place):
    return events_of("sm_90", **place).failures_per_hour


def test_replicas_on_eight_h100_fail_as_published_fleets_do():
    # Llama 3 3.79, FT-HSDP 2.3 and Imbue 4.29 failures per 1,000 node-days: the median is 3.79
    assert failures() * 24 * 1000 == pytest.approx(3.79)
    assert 150 <= 1 / failures() / 24 <= 430  # days, the range of seven fleets
    assert failures(nodes=8) == pytest.approx(8 * failures())
    assert 19 <= 1 / failures(nodes=8) / 24 <= 54  # days, 64 GPUs
    # smaller nodes fail less often but not in proportion
    one, eight = (failures(devices_per_node=n) for n in (1, 8))
    assert eight / 8 < one < eight
    with pytest.raises(InputError, match="nodes"):
        failures(nodes=0)


def test_only_spot_instances_are_reclaimed():
    rented, spot = events_of("sm_80"), events_of("sm_80", spot=True)
    assert (rented.reclaims_per_hour, rented.available, rented.notice_s) == (0, 1, 0)
    assert spot.reclaims_per_hour == reclaims("sm_80").per_hour > 0
    assert spot.available < 1
    assert spot.notice_s == 30  # the shortest of three clouds, where none is named
    assert events_of("sm_80", spot=True, provider="Another cloud") == spot
    assert events_of("sm_70", spot=True, provider="Amazon Web Services").notice_s == 120
    assert events_of("sm_90").repair_s == pytest.approx(300, rel=0.01)  # replaced in 5 minutes
    assert events_of("sm_90", how="own").repair_s > 8 * 3600


def test_reclaims_of_a100_are_those_of_the_spothedge_traces():
    # 1/31, 3/127, 25/67, 11/96 and 36/20 losses per instance-hour, by zone
    taken = reclaims("sm_80")
    assert taken.traces == 5
    assert taken.per_hour == pytest.approx(11 / 96)
    assert (taken.low, taken.high) == pytest.approx((3 / 127, 36 / 20))
    # a device without traces takes those of all GPUs
    assert reclaims("sm_90").per_hour == reclaims(None).per_hour
    assert reclaims("sm_90").traces > taken.traces
