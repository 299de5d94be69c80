"""Records as CSV: no cell is a formula."""

import csv
import io
from dataclasses import replace

import pytest

from gateway.api.spending import SpendingRecord
from gateway.web.spending import as_csv, spending_record
from tests.fakes.ledger import a_record, a_reservation

RECORD = a_record(a_reservation())


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", 'a",=1', "m,=1"]
)
def test_a_name_that_would_be_a_formula_is_text(name: str) -> None:
    (row,) = csv.DictReader(io.StringIO(as_csv([spending_record(replace(RECORD, model=name))])))

    assert row["model"] in {f"'{name}", name}
    assert row["model"][0] not in "=+-@\t\r\n"


def test_a_table_without_rows_has_its_head() -> None:
    assert as_csv([]) == ",".join(name for name, _ in SpendingRecord.defaults) + "\r\n"
