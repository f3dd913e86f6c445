"""Link types of the pack. Values are frozen option objects and, for reports, a ReportHandle."""

from comfy_api.latest import io

StoreLink = io.Custom("CARNATOR_STORE")
ProbeLink = io.Custom("CARNATOR_PROBE")
GateLink = io.Custom("CARNATOR_GATE")
ReportLink = io.Custom("CARNATOR_REPORT")

CATEGORY = "Carnator"
