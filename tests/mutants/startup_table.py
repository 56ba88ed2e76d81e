"""Mutants of the start of a process: what it loads, how settings and lines of logs are read and written."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CONFIG: Final = "slotmesh/config"
TELEMETRY: Final = "slotmesh/telemetry"
DECLARED: Final = "tests/unit/test_declared_settings.py"
LIGHT: Final = "tests/contract/mesh/test_light_start.py"

STARTUP: Final = (
    mutant(
        "NaN is within bounds",
        CONFIG,
        "(self.ge is None or value >= self.ge)",
        "not (self.ge is not None and value < self.ge)",
        DECLARED,
    ),
    mutant(
        "a text that is as long as it may be is refused",
        CONFIG,
        "len(value) > self.max_length",
        "len(value) >= self.max_length",
        DECLARED,
    ),
    mutant(
        "numbers are read in the digits of every script",
        CONFIG,
        "_of(text.isascii(), text)",
        "_of(True, text)",
        DECLARED,
    ),
    mutant(
        "a server accepts rpcs by ours though gRPC is to be plain",
        "slotmesh/grpc_internals",
        'if (problem := f"{VARIABLE} is set" if is_off() else _PROBLEM or _problem()) is not None:',
        "if (problem := _PROBLEM or _problem()) is not None:",
        "tests/contract/server/test_plain_grpc.py",
    ),
    mutant("a number with a fraction is whole", CONFIG, 'fraction != "" and not fraction.strip("0")', "True", DECLARED),
    mutant(
        "only the first problem of settings is reported",
        CONFIG,
        "problems.append(SettingProblem(name, str(error), given[name]))",
        "raise InvalidSettings(SettingProblem(name, str(error), given[name])) from None",
        DECLARED,
    ),
    mutant(
        "a check of a field sees nothing before it",
        CONFIG,
        "self.check_beside(value, preceding)",
        "self.check_beside(value, {})",
        DECLARED,
    ),
    mutant(
        "a declared check is not made",
        CONFIG,
        "if self.check is not None:",
        "if False:",
        f"{DECLARED} tests/unit/test_config.py",
    ),
    mutant(
        "checks of the base class are left out",
        CONFIG,
        "for base in reversed(owner.__mro__)\n        for name, value in vars(base).items()\n        if getattr",
        "for base in (owner,)\n        for name, value in vars(base).items()\n        if getattr",
        DECLARED,
    ),
    mutant(
        "settings of which one differs are the same",
        CONFIG,
        "self.model_dump() == other.model_dump()",
        "self.model_dump().keys() == other.model_dump().keys()",
        DECLARED,
    ),
    mutant(
        "settings can be changed",
        CONFIG,
        'raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")',
        "self.__dict__[name] = _value",
        DECLARED,
    ),
    mutant(
        "an instrument of before the first scrape is not exported",
        TELEMETRY,
        "for create in self._waiting:",
        "for create in self._waiting[1:]:",
        "tests/unit/telemetry/test_metrics.py",
    ),
    mutant(
        "an instrument of after the first scrape is not exported",
        TELEMETRY,
        "create(self._meter)\n",
        "self._waiting.append(create)\n",
        "tests/unit/telemetry/test_metrics.py",
    ),
    mutant(
        "a connection for pages has no deadline",
        TELEMETRY,
        "self._timer = threading.Timer(seconds, self._end)",
        "self._timer = threading.Timer(seconds, str)",
        "tests/contract/server/test_page_bounds.py",
    ),
    mutant(
        "a span that cannot be encoded takes its half of the batch along",
        TELEMETRY,
        "                self.export(spans[half:])\n",
        "",
        "tests/unit/telemetry/test_span_queue.py",
    ),
    mutant(
        "a forked child sends spans by the connection of its parent",
        TELEMETRY,
        "if os.getpid() != self._process:",
        "if False:",
        "tests/unit/telemetry/test_forked_children.py",
    ),
    mutant(
        "a forked child pushes metrics by the connection of its parent",
        TELEMETRY,
        "if os.getpid() == self._process:",
        "if True:",
        "tests/unit/telemetry/test_forked_children.py",
    ),
    mutant(
        "each failed export is a line of the log",
        TELEMETRY,
        "if is_failing and not was_failing:",
        "if is_failing:",
        "tests/unit/telemetry/test_exports.py",
    ),
    mutant(
        "the end of a process waits for a collector that does not respond",
        TELEMETRY,
        "while last.is_alive() and not self.is_in_outage and",
        "while last.is_alive() and",
        "tests/unit/telemetry/test_exports.py",
    ),
    mutant(
        "a collector that takes one of two sources ends the outage of the other",
        TELEMETRY,
        "self._failing.discard(source)",
        "self._failing.clear()",
        "tests/unit/telemetry/test_exports.py",
    ),
    mutant(
        "the exporter's filter of repeated lines hides why an export failed",
        TELEMETRY,
        "filters.insert(0, _FILTER)",
        "filters.append(_FILTER)",
        "tests/unit/telemetry/test_exports.py",
    ),
    mutant(
        "a signal handler that ends a span waits for its own thread",
        TELEMETRY,
        "self._lock = threading.RLock()",
        "self._lock = threading.Lock()",
        "tests/unit/telemetry/test_span_queue.py",
    ),
    mutant(
        "a span has a text of a caller of any length",
        TELEMETRY,
        "it[:MAX_TEXT_CHARS] if isinstance(it, str) else it for",
        "it for",
        "tests/unit/telemetry/test_spans.py",
    ),
    mutant(
        "a span is made below a parent that is not sampled",
        TELEMETRY,
        "if of.is_valid and not of.trace_flags.sampled:",
        "if False:",
        "tests/unit/telemetry/test_spans.py",
    ),
    mutant(
        "the SDK is set up with the first instrument",
        TELEMETRY,
        "        self.meter = WaitingMeter()\n",
        "        self.meter = WaitingMeter()\n        from opentelemetry.sdk.metrics import MeterProvider as _\n",
        LIGHT,
    ),
    mutant(
        "a traceback in JSON has the frames of the cause only",
        "slotmesh",
        "following, is_cause = context, False",
        "break",
        "tests/unit/telemetry/test_log.py",
    ),
    mutant(
        "what a field holds steers the terminal",
        "slotmesh",
        "return printable_text(repr(value))",
        "return str(value)",
        "tests/unit/telemetry/test_log.py",
    ),
    mutant(
        "each command loads all of them",
        "slotmesh/cli",
        "    for name in names:\n        command = getattr(",
        "    for name in COMMANDS:\n        command = getattr(",
        LIGHT,
    ),
    mutant(
        "the client is loaded by whoever needs Tls",
        "slotmesh/client",
        "import grpc\n\nfrom slotmesh.runtime.channels import PLAIN_TEXT",
        "import grpc\n\nimport slotmesh.client.mesh\nfrom slotmesh.runtime.channels import PLAIN_TEXT",
        LIGHT,
    ),
    mutant(
        "the address of a Kubernetes Service is taken for a setting",
        "slotmesh/config",
        'return variable.endswith("_PORT") and _SERVICE_LINK.fullmatch(value) is not None',
        "return False",
        "tests/unit/test_member_settings.py",
    ),
    mutant(
        "a process that starts is ready for a probe that accepts standbys",
        "slotmesh/telemetry",
        '.split("&") and self._stands_by()',
        '.split("&")',
        "tests/unit/telemetry/test_pages.py",
    ),
)
