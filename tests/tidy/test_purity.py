"""Everything below the entry points is given its clock, randomness, network and disk.

A whole node then runs deterministically under a virtual clock (the simulation). The allow-lists
below are the complete list of modules that touch the outside; a longer list needs a reason.
"""

import ast
import re

from dlogd.storage.segment.record_timestamps import KnownTimes
from dlogd.storage.segment.segment import Segment
from dlogd.storage.segment.segment_space import SegmentSpace
from tests.tidy import sources
from tests.tidy.sources import Source

# What is forbidden -> the modules that exist to do it.
OUTSIDE: dict[str, tuple[str, frozenset[str]]] = {
    "the wall clock or sleeping": (
        r"time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|sleep|localtime"
        r"|gmtime|strftime|ctime)|datetime\.(datetime|date)\.(now|utcnow|today)",
        frozenset({"dlogd.runtime.clock"}),
    ),
    "randomness that no seed controls": (
        r"random\.(?!Random$)\w+|os\.(urandom|getrandom)|uuid\.uuid[14]|secrets\.\w+|id",
        frozenset({"dlogd.runtime.randomness"}),
    ),
    "files behind the Directory's back": (
        r"open|io\.open|os\.(open|fdopen|read|write|pread|pwrite|preadv|pwritev|fsync|fdatasync"
        r"|rename|replace|unlink|remove|mkdir|makedirs|listdir|scandir|stat|statvfs|truncate"
        r"|ftruncate|posix_fallocate|sendfile)|pathlib\.Path\.\w+|tempfile\.\w+|shutil\.\w+"
        r"|mmap\.mmap|fcntl\.\w+",
        frozenset(
            {
                "dlogd.__main__",
                "dlogd.config.load",
                # Writes lines to standard error.
                "dlogd.runtime.logging_setup",
                # Writes to the descriptor of a connection, where the transport has one.
                "dlogd.net.socket_writer",
                "dlogd.storage.io.posix",
                "dlogd.storage.io.linux_aio",
                "dlogd.storage.io.buffer_pool",
                "dlogd.storage.io.thread_engine",
                # Reads its own version, once, when it is imported.
                "dlog.version",
                # Maps anonymous memory for the output of a decompressor: no file.
                "dlog.compression",
            }
        ),
    ),
    "sockets behind the loop's back": (
        r"socket\.(socket|create_connection|create_server|socketpair)|select\.\w+|selectors\.\w+"
        r"|os\.eventfd",
        frozenset(
            {
                "dlogd.__main__",
                "dlogd.runtime.journald",
                "dlogd.runtime.logging_setup",
                "dlogd.runtime.sd_notify",
                "dlogd.storage.io.aio_engine",
            }
        ),
    ),
    "threads and processes": (
        r"threading\.\w+|_thread\.\w+|concurrent\.futures\.\w+|multiprocessing\.\w+"
        r"|subprocess\.\w+|os\.fork|asyncio\.to_thread|\w*loop\.run_in_executor"
        r"|asyncio\.create_subprocess_\w+",
        frozenset(
            {
                "dlogd.__main__",
                # Gives asyncio's own lookups of names to asyncio's own threads.
                "dlogd.runtime.name_resolver",
                "dlogd.metadata.raft.thread",
                "dlogd.storage.io.thread_engine",
                "dlog.client.cluster.loop_thread",
            }
        ),
    ),
    "tasks that nobody supervises": (
        r"asyncio\.(create_task|ensure_future)|([\w.]+\.)?create_task",
        frozenset({"dlogd.runtime.tasks", "dlogd.__main__"}),
    ),
}
# The library's own connections hold their reader task; blocking clients live on their own thread.
LIBRARY_TASKS = ("dlog.transport", "dlog.client")
# Never in a simulation, and nothing that is imports it: what runs in Spark's processes, and what
# looks at the host before there is a node.
OUTSIDE_BY_NATURE = ("dlog.spark", "dlogd.preflight")
# Where an exception of any kind is turned into something else: nowhere beside these.
CATCHES_EVERYTHING = frozenset(
    {
        *(
            "dlogd.runtime.tasks",
            "dlogd.server.dispatch",
            "dlogd.storage.io.thread_engine",
            "dlogd.__main__",
        ),
        # A buffer callback of the loop: an exception there would close the connection in silence.
        *(
            "dlogd.server.connection",
            "dlogd.replication.leader.follower_session",
            "dlogd.replication.follower.leader_connection",
        ),
        # A batch that a codec fails at must not stop its partition and those sent with it.
        "dlog.client.producing.sender",
        # A line that cannot be written must not end the code that logs it.
        "dlogd.runtime.logging_setup",
    }
)
QUEUES = re.compile(r"(asyncio|queue|multiprocessing)\.(Queue|LifoQueue|PriorityQueue|SimpleQueue)")
MUTATING = frozenset(
    {
        *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put"),
        *("pop", "popleft", "popitem", "remove", "discard", "clear", "put_nowait"),
        *("write", "send", "close", "acquire", "release"),
    }
)


def _pure_sources() -> list[Source]:
    """The library and the daemon: what a simulation runs in one process."""
    return list(sources.python("dlog", "dlogd"))


def test_the_outside_is_touched_only_where_it_is_allowed() -> None:
    found = []
    for source in _pure_sources():
        if source.module.startswith(OUTSIDE_BY_NATURE):
            continue
        for node, name in sources.calls(source):
            for what, (pattern, allowed) in OUTSIDE.items():
                if source.module in allowed or not re.fullmatch(pattern, name):
                    continue
                if "tasks" in what and source.module.startswith(LIBRARY_TASKS):
                    continue
                found.append(f"{source.at(node)}: {name} is {what}")
    assert not found, "\n".join(found)


def test_no_print_outside_the_command_line() -> None:
    found = [
        source.at(node)
        for source in _pure_sources()
        for node, name in sources.calls(source)
        if name == "print"
    ]
    assert not found, "\n".join(found)


def test_yaml_is_read_in_one_place() -> None:
    """Others would build what aliases stand for."""
    found = [
        f"{source.at(node)}: {node.attr}; dlogd.config.plain_yaml reads YAML"
        for source in sources.production()
        if source.module != "dlogd.config.plain_yaml"
        for node in source.nodes
        if isinstance(node, ast.Attribute)
        and (
            re.fullmatch(r"(safe|full|unsafe)_load(_all)?|compose_all|\w*Loader", node.attr)
            or re.fullmatch(r"yaml\.(load\w*|compose|parse|scan)", sources.dotted(node) or "")
        )
    ]
    assert not found, "\n".join(found)


def test_no_unbounded_queue() -> None:
    found = []
    for source in sources.production():
        for node, name in sources.calls(source):
            if QUEUES.fullmatch(name) and not node.args and not node.keywords:
                found.append(source.at(node))
    assert not found, "\n".join(found)


def test_nothing_catches_everything() -> None:
    found = []
    for source in _pure_sources():
        if source.module in CATCHES_EVERYTHING:
            continue
        for node in source.nodes:
            if isinstance(node, ast.ExceptHandler):
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                names = {sources.dotted(c) if c is not None else "" for c in caught}
                if names & {"", "Exception", "BaseException"}:
                    found.append(source.at(node))
    assert not found, "\n".join(found)


def test_asserts_have_no_side_effects() -> None:
    found = []
    for source in sources.production():
        for statement in source.nodes:
            if not isinstance(statement, ast.Assert):
                continue
            for node in ast.walk(statement.test):
                mutates = (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in MUTATING
                )
                if mutates or isinstance(node, ast.NamedExpr | ast.Await):
                    found.append(source.at(statement))
    assert not found, "\n".join(found)


def test_nothing_iterates_over_a_set() -> None:
    """The order of a set of strings differs from process to process (PYTHONHASHSEED)."""
    found = []
    for source in _pure_sources():
        for node in source.nodes:
            if not isinstance(node, ast.For | ast.comprehension):
                continue
            over = node.iter
            made = isinstance(over, ast.Call) and sources.dotted(over.func) in {"set", "frozenset"}
            if made or isinstance(over, ast.Set | ast.SetComp):
                found.append(source.at(over))
    assert not found, "\n".join(found)


def test_nothing_hashes_a_string_or_compares_identities_for_order() -> None:
    """`hash(str)` is salted per process; `id()` is an address."""
    found = [
        source.at(node)
        for source in _pure_sources()
        for node, name in sources.calls(source)
        if name == "hash"
    ]
    assert not found, "\n".join(found)


OFFSETS_OF_A_LOG = frozenset(
    {"log_start_offset", "log_end_offset", "flushed_offset", "promised_offset"}
)
OWNERS = {
    "dlogd.storage.log.log_offsets": OFFSETS_OF_A_LOG,
    "dlogd.storage.segment.segment": frozenset(Segment.__slots__) - {"on_read_error", "on_unused"},
    "dlogd.storage.segment.segment_space": frozenset(SegmentSpace.__slots__),
    "dlogd.storage.segment.record_timestamps": frozenset(KnownTimes.__slots__),
}
"""Who assigns the offsets of a log and the fields of a segment; callbacks are assigned by users."""


OTHERS = frozenset(
    {
        "self",  # of another class: this file's own are listed above
        # Findings about a segment, places in it, and things that have such fields as well.
        *("found", "visit", "state", "chunk", "cursor", "single", "progress"),
    }
)
"""Names of what is neither a log nor a segment; whatever has another name may be one."""


def test_offsets_of_a_log_and_fields_of_a_segment_are_assigned_in_one_file() -> None:
    found = []
    for source in sources.python("dlogd"):
        for node in source.nodes:
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
                continue
            if sources.dotted(node.value).rpartition(".")[2] in OTHERS:
                continue
            for owner, fields in OWNERS.items():
                if node.attr in fields and source.module != owner:
                    found.append(f"{source.at(node)}: {ast.unparse(node)} is assigned")
    assert not found, "\n".join(found)
