"""The table of devices to choose from, and usual numbers of one."""

import pytest

from recipe_core.base.units import GIB
from recipe_core.hardware.cluster import cluster, device_names, device_profile
from recipe_core.hardware.request import HardwareRequest
from recipe_core.views.columns import UNKNOWN, cell_texts
from recipe_core.views.devices import COUNTS, GROUPS, device_rows, profile_columns, usual_counts

ROWS = {row.name: row for row in device_rows(device_names(announced=True))}


def test_every_device_stands_in_its_group_with_its_profile_and_default_price():
    assert sorted(ROWS) == sorted(device_names(announced=True))
    assert len({row.title for row in ROWS.values()}) == len(ROWS)
    order = [list(GROUPS.values()).index(row.group) for row in ROWS.values()]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2, 3}
    for name, row in ROWS.items():
        chip = device_profile(name)
        assert row.memory_gib == chip.memory_bytes.value / GIB
        assert row.tb_per_s == chip.memory_bandwidth_bytes_per_s.value / 1e12
        assert row.tflop_per_s == chip.peak_flops_per_s[row.rated].value / 1e12
        node = cluster(HardwareRequest(device=name, per_node=chip.node.devices))
        assert row.usd_per_hour == node.usd_per_device_hour
        assert (row.priced is None) == (node.offer is None)
    assert ROWS["t4"].rated == "fp16"
    assert ROWS["vr200"].basis == "announced"
    assert ROWS["h100-sxm"].basis == "measured"
    assert ROWS["a10g"].priced.endswith("†")
    assert ROWS["h100-sxm"].priced == "2026-09-20"


def test_cells_have_units_in_their_heads_and_dashes_for_what_is_unknown():
    heads = [column.title for column in profile_columns()]
    assert heads[2:6] == ["Memory (GiB)", "TB/s", "TFLOP/s", "$/h"]
    (h100,), (b200,), (t4,) = (
        cell_texts([ROWS[n]], profile_columns()) for n in ("h100-sxm", "b200-sxm", "t4")
    )
    assert h100[:6] == ["H100 SXM5 80 GB", "Data centre", "80", "3.35", "989", "2.6"]
    assert b200[4] == "2,250"
    assert (t4[4], t4[5]) == ("65.0 fp16", UNKNOWN)


@pytest.mark.parametrize("name", device_names())
def test_usual_numbers_fill_nodes(name):
    chip = device_profile(name)
    counts = usual_counts(chip)
    assert counts
    assert set(counts) <= set(COUNTS)
    for count, changes in counts.items():
        per_node, nodes = changes["hardware.per_node"], changes["hardware.nodes"]
        assert per_node * nodes == count
        assert nodes == 1 or per_node == chip.node.devices
