"""The blocking admin client has the names, arguments and words of the other one."""

import asyncio
import inspect

import pytest

from dlog.client.admin import Admin
from dlog.client.blocking_admin import BlockingAdmin
from dlog.client.retry import RetryPolicy
from dlog.errors import ConnectFailedError, DlogError

NOBODY = "127.0.0.1:1"
AT_ONCE = RetryPolicy(deadline_s=0.0)


def calls_of(kind: type) -> dict[str, tuple[str | None, object]]:
    return {
        name: (inspect.getdoc(each), inspect.signature(each))
        for name, each in inspect.getmembers(kind)
        if inspect.isfunction(each) and not name.startswith("_") and name not in ("start", "close")
    }


def test_it_has_the_calls_of_the_other_one() -> None:
    assert calls_of(BlockingAdmin) == calls_of(Admin)
    assert len(calls_of(Admin)) == 27


def test_it_must_be_open() -> None:
    admin = BlockingAdmin(NOBODY, policy=AT_ONCE)
    with pytest.raises(DlogError, match="not open"):
        admin.describe_cluster()
    with admin:
        admin.start()
        with pytest.raises(ConnectFailedError):
            admin.describe_cluster()
    admin.close()
    with pytest.raises(DlogError, match="not open"):
        admin.describe_cluster()


def test_so_must_the_other_one() -> None:
    async def main() -> None:
        admin = Admin([NOBODY], policy=AT_ONCE)
        with pytest.raises(DlogError, match="not open"):
            await admin.describe_cluster()
        async with admin:
            with pytest.raises(ConnectFailedError):
                await admin.describe_cluster()
        await admin.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    with pytest.raises(ValueError, match="bootstrap"):
        Admin("")
