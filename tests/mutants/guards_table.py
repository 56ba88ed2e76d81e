"""Mutants of the guards for foreign code, and of tasks that end before their time."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

FOREIGN: Final = "tests/unit/codec/test_foreign_types.py tests/unit/test_user_code.py"

GUARDS: Final = (
    mutant(
        "a StopIteration of a user's type shortens what was made",
        "slotmesh",
        "if len(results) != len(values):",
        "if len(results) > len(values):",
        FOREIGN,
    ),
    mutant(
        "a result's type that ends the process is no error of its call",
        "slotmesh/codec",
        "return raw(payload)\n        except BaseException as error:",
        "return raw(payload)\n        except Exception as error:",
        FOREIGN,
    ),
    mutant(
        "a batch is decoded without a look at its length",
        "slotmesh/codec",
        "rows = each(decode, payloads)",
        "rows = list(map(decode, payloads))",
        FOREIGN,
    ),
    mutant(
        "a result that cannot be decoded was not executed",
        "slotmesh/codec",
        'is not what was asked for: {message}", executed=Executed.YES',
        'is not what was asked for: {message}", executed=Executed.NO',
        "tests/testing/test_foreign_code.py",
    ),
    mutant(
        "a callback of a future ends the client of all",
        "slotmesh/client/sync",
        "if not work.is_in_thread:",
        "if True:",
        "tests/testing/test_foreign_code.py",
    ),
    mutant(
        "a function that gives no token ends more than its rpc",
        "slotmesh/runtime",
        "except BaseException as error:  # noqa: BLE001 - whatever the application's function raises",
        "except Exception as error:  # noqa: BLE001 - whatever the application's function raises",
        "tests/contract/client/test_tokens.py",
    ),
    mutant(
        "a task that ends by a CancelledError of its own is forgotten",
        "slotmesh/runtime",
        "if isinstance(raised, asyncio.CancelledError) and is_cancelled():",
        "if isinstance(raised, asyncio.CancelledError):",
        "tests/unit/runtime/test_tasks.py",
    ),
    mutant(
        "a task that was started and ends by a CancelledError of its own has not failed",
        "slotmesh/runtime",
        "if error is None or (task.cancelled() and task.cancelling()):",
        "if error is None or task.cancelled():",
        "tests/unit/runtime/test_tasks.py",
    ),
    mutant(
        "a pass of the reconcile loop that ends forgets its keys",
        "controller_service/shell",
        "for key in keys:  # what has ended",
        "for key in keys[:0]:  # what has ended",
        "tests/contract/controller/test_tasks.py",
    ),
    mutant(
        "a policy is called again while its last call has not returned",
        "controller_service/shell",
        "if asked.since is None:",
        "if asked.since is None or True:",
        "tests/unit/controller/test_autoscaler.py",
    ),
    mutant(
        "a policy that calls sys.exit has no answer, for ever",
        "controller_service/shell",
        "except BaseException as error:  # noqa: BLE001 - whatever it is, the number stays",
        "except Exception as error:  # noqa: BLE001 - whatever it is, the number stays",
        "tests/unit/controller/test_autoscaler.py",
    ),
    mutant(
        "a task that calls sys.exit ends its process",
        "slotmesh/runtime",
        "run_unwound(runner, main(), _went_on)",
        "run_unwound(runner, main())",
        "tests/contract/replica/test_process.py",
    ),
)
