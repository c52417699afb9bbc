"""The waiting rooms as metrics. Read when somebody scrapes; nothing is counted on the way of a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tandem.core.types import ServiceClass
from tandem.gateway.admission.admission import Admission
from tandem.gateway.admission.rooms import RoomName


class AdmissionMetrics(Collector):
    """Registers itself. Labels: the two rooms and the two classes, so twelve series and never more, and the wait."""

    def __init__(self, admission: Admission, registry: CollectorRegistry) -> None:
        self._admission = admission
        registry.register(self)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = [
            GaugeMetricFamily(f"tandem_gateway_waiting_{what}", text, labels=("room", "class"))
            for what, text in (
                ("requests", "Requests in a waiting room."),
                ("tokens", "Their prompt tokens and expected output tokens."),
                ("bytes", "Their bodies."),
            )
        ]
        for room in get_args(RoomName):
            for service_class in get_args(ServiceClass):
                counts = self._admission.occupancy(room, service_class)
                for family, count in zip(families, counts, strict=True):
                    family.add_metric((room, service_class), count)
        longest = GaugeMetricFamily("tandem_gateway_longest_wait_seconds", "Of the requests that wait now.")
        longest.add_metric((), self._admission.longest_wait_s())
        return [*families, longest]
