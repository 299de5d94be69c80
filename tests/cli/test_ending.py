"""How a command ends: one exit code and one sentence for each kind of trouble."""

import errno
import json

import click
import pytest
from click.testing import CliRunner

from gateway.api.errors import AddressInUse
from gateway.cli.command import NotAllowed, Unreachable, exit_code, report_errors
from gateway.domain.errors import Busy, DataDirInUse, GatewayError, StoreRefused


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unreachable("x"), 69),
        (Busy("x"), 75),
        (DataDirInUse("/d", "process 1"), 75),
        (AddressInUse("h", 1, "in use"), 75),
        (NotAllowed("x"), 77),
        (StoreRefused("x"), 1),
        (GatewayError("x"), 1),
    ],
)
def test_each_error_has_its_exit_code(error: GatewayError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize("grouped", [False, True])
def test_an_error_is_one_sentence_also_out_of_a_group(*, grouped: bool) -> None:
    error = StoreRefused("the store is damaged")

    @click.command()
    def fails() -> None:
        with report_errors(debug=False):
            raise ExceptionGroup("tasks", [ExceptionGroup("more", [error])]) if grouped else error

    ran = CliRunner().invoke(fails)

    assert ran.exit_code == 1
    assert ran.output == "exogate: the store is damaged\n"


def test_a_result_that_finds_no_room_is_a_sentence() -> None:
    @click.command()
    def fails() -> None:
        with report_errors(debug=False):
            raise OSError(errno.ENOSPC, "No space left on device")

    ran = CliRunner().invoke(fails)

    assert ran.exit_code == 1
    assert ran.output == "exogate: the result cannot be written: No space left on device\n"


def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup), report_errors(debug=False):
        raise ExceptionGroup("tasks", [ZeroDivisionError()])


@pytest.mark.parametrize("error", [ZeroDivisionError("by nothing"), PermissionError("by nothing")])
def test_a_defect_is_json_too(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)), report_errors(debug=False, as_json=True):
        raise error

    assert json.loads(capsys.readouterr().out)["error"]["type"] == "internal_error"
