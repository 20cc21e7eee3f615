"""`report`: what happened in a time range, as figures in Parquet and as one HTML page that needs nothing else."""

from __future__ import annotations

from tallystick.spark.jobs.report.job import run_report
from tallystick.spark.jobs.report.settings import ReportSettings, ReportSummary

__all__ = ["ReportSettings", "ReportSummary", "run_report"]
