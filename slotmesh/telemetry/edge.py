"""The metrics of a server's edge: streams that are open or were ended, quotas and who was refused for them."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.metrics import Meter

from slotmesh.runtime.edge import Edge
from slotmesh.runtime.open_streams import StreamCut
from slotmesh.security.quotas import Quota
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import observe_counter, observe_gauge


def observe_edge(meter: Meter, edge: Edge, quotas: Iterable[Quota] = ()) -> None:
    """Registers them. `quotas`: those of the service, beside the edge's own."""
    held = (edge.stream_quota, *quotas)
    rates = () if edge.change_quota is None else (edge.change_quota,)
    observe_gauge(meter, names.SERVER_STREAMS, lambda: {(): len(edge.streams.open)})
    observe_counter(meter, names.SERVER_STREAM_CUTS, lambda: {(why.value,): edge.streams.cut[why] for why in StreamCut})
    observe_counter(meter, names.QUOTA_REFUSALS, lambda: {(each.kind.value,): each.refused for each in (*held, *rates)})
    observe_gauge(
        meter,
        names.QUOTA_LARGEST,
        lambda: {(each.kind.value,): max(each.held.values(), default=0) / each.most for each in held},
    )
