"""Maintenance of a store: merges small segments, deletes unreferenced objects, erases records, verifies a store."""

from __future__ import annotations

from txnstore.compactor.backup.backup import BackupProgress, BackupReport, backup
from txnstore.compactor.backup.restore import RestoreReport, restore, restore_in_place
from txnstore.compactor.backup.watch import BackupRound
from txnstore.compactor.backup.watch import watch as watch_backup
from txnstore.compactor.compact.compaction import compact
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.compactor.compact.on_request import plan_merges
from txnstore.compactor.compact.report import CompactionProgress, CompactionReport, PartitionCompaction
from txnstore.compactor.doctor.doctor import doctor
from txnstore.compactor.doctor.findings import DoctorReport, Finding, Severity
from txnstore.compactor.erase.erase import erase
from txnstore.compactor.erase.report import ErasedObject, ErasedPartition, EraseReport, Trace
from txnstore.compactor.maintain.maintenance import Maintenance, MaintenanceCounts, MaintenanceRound, TaskResult
from txnstore.compactor.repair.contents import StoreContents
from txnstore.compactor.repair.plan import Loss, Repair, RepairPlan
from txnstore.compactor.repair.repair import plan_repairs, repair
from txnstore.compactor.retention import PartitionRetention, RetentionReport, delete_records, retain
from txnstore.compactor.vacuum.vacuum import Deleted, VacuumReport, vacuum
from txnstore.compactor.verify.rules import RuleReport
from txnstore.compactor.verify.verify import VerifyReport, verify
from txnstore.core.invariants.common import Violation

__all__ = [
    "BackupProgress", "BackupReport", "BackupRound", "CompactionProgress", "CompactionReport", "Deleted",
    "DoctorReport", "EraseReport", "ErasedObject", "ErasedPartition", "Finding", "Loss", "Maintenance",
    "MaintenanceCounts", "MaintenanceRound", "MergePlan", "PartitionCompaction", "PartitionRetention", "Repair",
    "RepairPlan", "RestoreReport", "RetentionReport", "RuleReport", "Severity", "StoreContents", "TaskResult",
    "Trace", "VacuumReport", "VerifyReport", "Violation", "backup", "compact", "delete_records", "doctor", "erase",
    "plan_merges", "plan_repairs", "repair", "restore", "restore_in_place", "retain", "vacuum", "verify",
    "watch_backup",
]  # fmt: skip

if __name__ != "txnstore.compactor":
    raise ImportError("this folder is the package 'txnstore.compactor': import it by that name")
