"""Mutants of the rules of groups whose members a gateway keeps."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from txnstore.chain.ages import Ages
from txnstore.connection import Connection
from txnstore.core.authorization import rights
from txnstore.core.groups import classic, membership
from txnstore.core.groups import fold as groups_fold
from txnstore.core.groups import offsets as groups_offsets
from txnstore.gateway import cold, frames, peers
from txnstore.gateway.admin.topics import Topics
from txnstore.gateway.cold import ColdBatches
from txnstore.gateway.commits import Commits
from txnstore.gateway.fetch import Fetch
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.groups.offsets import GroupOffsets
from txnstore.gateway.groups.stored import ChainGenerations
from txnstore.gateway.metadata import Metadata
from txnstore.gateway.peers import Peers
from txnstore.gateway.produce import Produce
from txnstore.gateway.records import columns
from txnstore.gateway.repetitions import Repetitions
from txnstore.gateway.server import Server, _Connection

_RULES = "unit/core/test_classic_groups.py::"
_COMMITS = "unit/gateway/test_commits.py::"
_METADATA = "integration/gateway/test_metadata.py::"
_FAILED = "integration/gateway/test_failed_batches.py::"
_FRAMES = "unit/gateway/test_frames.py::"
_COLD = "unit/gateway/test_cold.py::"
_EPOCHS = "unit/core/test_consumer_groups.py::"
#: Two gateways of one group, often enough.
_GATEWAYS = {"actors": ("producer:a/1", "gateway:q/2", "gateway:q/3"), "operations": 20, "pace_ms": 200}

GATEWAYS = (
    Mutant(
        "a gateway takes one of another store for a peer",
        Peers._ask,
        "$response[_ERROR] == _OF_ANOTHER_STORE",
        "False",
        test="integration/gateway/test_two_gateways.py::test_a_gateway_of_another_store_is_no_peer",
    ),
    Mutant(
        "a gateway names a coordinator that has just ended",
        Peers.confirm,
        "while $asked := {self.leader($chain) for $chain in $chains} - $confirmed:",
        "while $asked := set($chains) - set($chains) - $confirmed:",
        test="unit/gateway/test_peers.py::test_a_gateway_where_nothing_listens_is_no_coordinator",
    ),
    Mutant(
        "a group is loaded as it was known, not as it is",
        ChainGenerations.load,
        "(await $self._freshness.head())",
        "$self._freshness.view",
        test="unit/gateway/test_stored.py::test_what_another_gateway_has_stored_is_loaded",
    ),
    Mutant(
        "one gateway leads all chains of a small store",
        peers._leaders.__wrapped__,
        "if $led[$node] < -(-$chains // len($live))",
        "",
        test="unit/gateway/test_peers.py::test_each_gateway_leads_as_many_chains_as_the_others[2-4]",
    ),
    Mutant(
        "clients are not told of a gateway that has died, and librdkafka never looks for the next coordinator",
        Peers.named,
        "or $now - self._heard.get($node, -_NAMED) < _NAMED",
        "",
        test="unit/gateway/test_peers.py::test_clients_are_told_of_a_peer_for_a_minute_after_its_last_answer",
    ),
    Mutant(
        "tools of Java wait for a gateway that has died",
        Metadata._named,
        "$peer.software == _JAVA",
        "False",
        test="integration/gateway/test_two_gateways.py::test_java_is_told_of_the_gateways_that_live",
    ),
    Mutant(
        "clients are told for ever of a gateway that has died, and tools ask it",
        Peers.named,
        "$now - self._heard.get($node, -_NAMED) < _NAMED",
        "True",
        test="unit/gateway/test_peers.py::test_clients_are_told_of_a_peer_for_a_minute_after_its_last_answer",
    ),
    Mutant(
        "a batch overtakes an earlier one of its partition, whose commit is under way",
        Commits._start,
        "if $lane not in $busy",
        "",
        test=_COMMITS + "test_batches_of_a_partition_keep_their_order[3-plain]",
    ),
    Mutant(
        "batches behind one that the storage failed to take are appended",
        Produce._fail,
        "not isinstance($error, _REPEATED)",
        "True",
        test=_FAILED + "test_batches_of_the_flush_of_a_failed_one_fail_with_it",
    ),
    Mutant(
        "a batch that comes after the refusal of one before it is appended",
        Produce._fail,
        "self._repetitions.expect($staged.line, $staged.raw.base_sequence, $error)",
        "pass",
        test=_FAILED + "test_a_batch_that_comes_just_after_a_failed_one_fails_with_it",
    ),
    Mutant(
        "a batch behind one of a transaction that was not known is appended",
        Produce._identity,
        "self._repetitions.expect(_line($raw, $tp), $raw.base_sequence, $error)",
        "pass",
        test=_FAILED + "test_a_batch_behind_one_of_a_transaction_that_was_not_known_fails_with_it",
    ),
    Mutant(
        "a client that does not repeat a refused batch is held back for ever",
        Repetitions.check,
        "self._clock() < $refused.until and ",
        "",
        test="unit/gateway/test_repetitions.py::test_a_client_that_does_not_repeat_its_batch_is_held_back_for_30_seconds",
    ),
    Mutant(
        "a batch that was withdrawn is committed",
        Commits._start,
        " if not $each.future.done()",
        "",
        test=_FAILED + "test_batches_that_wait_for_the_commit_behind_a_failed_one_fail_with_it",
    ),
    Mutant(
        "rows of a topic with a schema are kept as a client sent them",
        Produce._keep,
        "$staged.topic.schema is not None",
        "False",
        test="integration/gateway/test_typed_topics.py::test_an_offset_reads_the_same_at_each_gateway",
    ),
    Mutant(
        "a record without a time has none for who reads it from memory",
        Produce._keep,
        "$staged.has_times or $append_time is not None",
        "True",
        test="integration/gateway/test_differences.py::test_a_record_without_a_time_has_that_of_its_write",
    ),
    Mutant(
        "records of several appends have the time of the last one",
        columns._encode,
        "$append_time and $times.min() == $times.max()",
        "$append_time",
        test="integration/gateway/test_differences.py::"
        "test_the_time_of_the_append_is_of_that_type_until_a_compaction_joins_batches",
    ),
    Mutant(
        "a batch of a transaction overtakes an earlier one of its partition",
        Commits._lane,
        'return "transaction", $command.producer.producer_id',
        "return object()",
        test=_COMMITS + "test_batches_of_a_partition_keep_their_order[3-transaction]",
    ),
    Mutant(
        "batches of a topic that the chain has no copy of are refused",
        Connection.submit_all,
        "isinstance($answers[$place], UnknownTopicOrPartitionError)",
        "False",
        test=_COMMITS + "test_batches_of_a_chain_share_an_entry[3]",
    ),
    Mutant(
        "a gateway leaves an abandoned transaction open at the end of a log",
        Freshness._poll,
        "self._connection.unblock, _open_txns($view)",
        "self._connection.unblocked, $view",
        test="integration/gateway/test_abandoned_records.py::"
        "test_an_abandoned_transaction_at_the_end_of_a_log_ends_for_who_waits[1]",
    ),
    Mutant(
        "a reader of committed records gets what another has read of an open transaction",
        cold._name,
        ".partition, $isolation, ",
        ".partition, ",
        test=_COLD + "test_a_reader_of_committed_records_gets_nothing_that_others_have_read",
    ),
    Mutant(
        "a request of a transaction is begun after its client has gone",
        _Connection._serve_next,
        "$self._stream.is_given_up and",
        "False and",
        test="unit/gateway/test_server.py::test_a_request_of_a_transaction_is_not_begun_after_its_client_has_gone",
    ),
    Mutant(
        "a response has records twice that were encoded for a reader with a newer view",
        Fetch._records,
        "if $data and $encoded.first_offset < $position:",
        "if $data and $encoded.last_offset < $position:",
        test=_COLD + "test_a_response_has_each_offset_once",
    ),
    Mutant(
        "consumers that ask for the same batch at the same time read it each",
        ColdBatches.read,
        "$self._running.get($names[0])",
        "None",
        test=_COLD + "test_ten_consumers_of_a_topic_read_each_segment_once[_together]",
    ),
    Mutant(
        "large pieces are decoded at the same time, without a bound",
        ColdBatches._read,
        "await $held.add",
        "",
        test=_COLD + "test_what_is_decoded_at_the_same_time_is_bounded",
    ),
    Mutant(
        "a damaged segment hides the records before it",
        cold._encode_first,
        "len($parts) == 1",
        "True",
        test="integration/gateway/test_requests.py::test_a_damaged_segment_hides_nothing_before_it",
    ),
    Mutant(
        "a gateway stores a generation after one that it does not know",
        classic.store_generation,
        "if $group.generation != $command.expected:",
        "if False:",
        settings=_GATEWAYS,
    ),
    Mutant(
        "a gateway replaces a static member that another gateway has replaced",
        classic._check_replacement,
        "or _ids($old) - _ids($new) != set($command.replaces)",
        "",
        test=_RULES + "test_a_late_replacement_does_not_fence_a_newer_instance",
    ),
    Mutant(
        "the assignment of a generation changes",
        classic._check_replacement,
        "or lasting_assignments($old) != lasting_assignments($new)",
        "",
        test=_RULES + "test_within_a_generation_nothing_else_changes",
    ),
    Mutant(
        "a repeated generation is refused",
        classic.store_generation,
        "if ($group.generation, _without_time($group.classic)) == ($command.generation, $new):",
        "if False:",
        test=_RULES + "test_the_same_generation_again_succeeds_and_writes_nothing",
    ),
    Mutant(
        "writers that do not know generations may go on",
        classic.store_generation,
        "$draft.require(GROUPS)",
        "pass",
        test=_RULES + "test_a_generation_is_one_event_and_needs_writers_that_know_it",
    ),
    Mutant(
        "a gateway takes a group from members with leases",
        classic.store_generation,
        "if any(($member.member_id, $member.seen_at) not in $command.expired for $member in $group.members.values()):",
        "if False:",
        test=_RULES + "test_a_group_has_members_of_one_kind",
    ),
    Mutant(
        "a member with a lease joins members of a gateway",
        membership.join,
        "if $group.kind != $command.kind:",
        "if False:",
        test=_RULES + "test_a_group_has_members_of_one_kind",
    ),
    Mutant(
        "a member of a gateway commits in any generation",
        membership.check_membership,
        "= _generation_of($group, $offsets.member_id)",
        "= $offsets.generation if $group.classic else _generation_of($group, $offsets.member_id)",
        settings=_GATEWAYS,
    ),
    Mutant(
        "who is no member of a gateway commits",
        membership.require_any_member,
        "        require_member($group, $name, $member_id, $instance_id)\n        return\n",
        "        require_member($group, $name, $member_id, $instance_id)\n    return\n",
        settings=_GATEWAYS,
    ),
    Mutant(
        "a commit without membership is accepted while a gateway keeps members",
        membership.expire_if_none_live,
        "_group($draft, $name).classic_members or ",
        "",
        settings=_GATEWAYS,
    ),
    Mutant(
        "offsets expire while a gateway keeps members",
        groups_offsets.expired_offsets,
        "$group.has_members_at_gateway or ",
        "",
        test=_RULES + "test_no_time_ends_the_members_of_a_gateway",
    ),
    Mutant(
        "a group expires while a gateway keeps members",
        groups_offsets.is_dead,
        "$group.has_members_at_gateway or ",
        "",
        test=_RULES + "test_no_time_ends_the_members_of_a_gateway",
    ),
    Mutant(
        "offsets expire without a delay after a gateway has emptied the group",
        groups_fold._generation_stored,
        "$state.timestamp if $emptied else $group.emptied_at",
        "$group.emptied_at",
        test=_RULES + "test_offsets_expire_a_week_after_the_group_became_empty",
    ),
    Mutant(
        "a lease ends a member of KIP-848",
        Ages.expired_members,
        "if $group is not None and $group.has_members_at_gateway:",
        "if False:",
        test="protocol/store/test_classic_groups.py::test_members_of_kip_848_have_no_leases",
    ),
    Mutant(
        "a member of KIP-848 is at the newest generation before it has reconciled it",
        membership._reconcile,
        "$epoch is None or set($member.held).issubset($member.target)",
        "True",
        test=_EPOCHS + "test_off_07_a_member_commits_in_its_epoch_until_it_has_reconciled",
    ),
    Mutant(
        "a member of KIP-848 commits in the generation of its group",
        membership._generation_of,
        "if $group.epochs is None else",
        "if True else",
        test=_EPOCHS + "test_off_07_a_member_commits_in_its_epoch_until_it_has_reconciled",
    ),
    Mutant(
        "the epoch of a member that left stays",
        groups_fold._without_epoch,
        "$group.epochs.discard($member_id)",
        "$group.epochs",
        test=_EPOCHS + "test_a_gateway_names_who_is_gone",
    ),
    Mutant(
        "a command that only names who is gone removes nobody",
        membership.leave,
        "if expire($draft, $command.group, $command.expired) or $member is not None:",
        "if $member is not None:",
        test=_EPOCHS + "test_those_who_are_gone_leave_without_a_command_of_another",
    ),
    Mutant(
        "a gateway that may not read with the group cannot remove those who are gone",
        rights._of_leave,
        "bool($command.member_id) or $command.instance_id is not None",
        "True",
        test="protocol/authorization/test_rights.py",
    ),
    Mutant(
        "offsets of a topic that is read are deleted",
        groups_offsets.delete_offsets,
        "if $tp.topic not in $topics and any(",
        "if any(",
        test=_RULES + "test_offsets_of_topics_that_are_read_stay",
    ),
    Mutant(
        "the end of a transaction restores a deleted offset",
        groups_fold._offsets_deleted,
        "$pending = $pending.insert($producer_id, _without($offsets, $event.partitions))",
        "pass",
        test=_RULES + "test_pending_offsets_are_deleted_too",
    ),
    Mutant(
        "a topic is looked up by the empty name that Java sends beside its id",
        Metadata._asked,
        "if $topic_id is not None:",
        "if $topic_id is not None and False:",
        test=_METADATA + "test_a_topic_is_found_by_its_id[12-]",
    ),
    Mutant(
        "the page-wise description of all topics names those that the client may not describe",
        Metadata.describe_topic_partitions,
        " if $self._is_visible($name, $peer)",
        "",
        test=_METADATA + "test_a_list_of_all_topics_has_only_those_that_the_client_may_describe",
    ),
    Mutant(
        "a description lacks what another gateway has just changed",
        Metadata.describe_topic_partitions,
        "await $self._services.freshness.since_request()",
        "await $self._services.freshness.recent()",
        test="integration/gateway/test_two_gateways.py::test_a_description_has_what_others_have_just_changed",
    ),
    Mutant(
        "a client that may not describe the cluster is told what it may do to it",
        Metadata._cluster_operations,
        '$self._services.may($peer, Right("DESCRIBE", "CLUSTER", (CLUSTER,)))',
        "True",
        test=_METADATA + "test_operations_on_the_cluster_are_those_of_the_client[dave-0]",
    ),
    Mutant(
        "the limit of a gateway for batches counts more than that of the topic",
        Produce._max_bytes,
        '"max.message.bytes" in $config.explicit',
        "False and $config",
        test="integration/gateway/test_produce_fetch.py::test_a_gateway_has_a_limit_for_topics_without_one[1]",
    ),
    Mutant(
        "a gateway that has ended leads on for three seconds",
        Peers._note,
        'elif $answer != "silent":',
        "elif False:",
        test="unit/gateway/test_peers.py::test_a_peer_that_has_ended_is_gone_sooner_than_one_that_is_slow",
    ),
    Mutant(
        "the reason for the refusal of a commit is looked up in a view that is older than the refusal",
        GroupOffsets._illegal_generation,
        "(await self._services.freshness.head())",
        "self._services.freshness.view",
        test="integration/gateway/test_two_gateways.py::test_a_commit_is_refused_for_what_the_group_is_now",
    ),
    Mutant(
        "a commit in the first rebalance of a group is told that there is no group",
        GroupOffsets._illegal_generation,
        "self._coordinator.is_completing($commit.group, $commit.member_id, $commit.generation)",
        "False",
        test="integration/gateway/admin/test_groups.py"
        "::test_a_commit_in_the_first_rebalance_of_a_group_is_told_of_it[9]",
    ),
    Mutant(
        "a topic of brokers is created for who asks for its metadata",
        Metadata._find,
        "and $name not in INTERNAL_TOPICS",
        "",
        test=_METADATA + "test_a_topic_of_brokers_is_not_created_by_who_asks_for_it",
    ),
    Mutant(
        "a topic that has been deleted elsewhere cannot be created",
        Topics._create,
        "await $services.view_with(lambda $view: $asked.name not in $view.topics)",
        "$services.freshness.view",
        test="integration/gateway/test_two_gateways.py::test_a_topic_is_created_that_has_been_deleted_elsewhere",
    ),
    Mutant(
        "a response follows on a fetch that has none",
        _Connection._leave_out,
        "$self._is_closed = True",
        "pass",
        test="unit/gateway/test_server.py::test_nothing_is_sent_after_a_fetch_that_is_left_out",
    ),
    Mutant(
        "a count is taken that the frame does not hold",
        frames._array,
        "0 <= $count * $item.least <= $walk.size - $at",
        "0 <= $count",
        test=_FRAMES + "test_it_is_said_what_is_wrong_with_a_frame",
    ),
    Mutant(
        "a count is compared with a byte for each item",
        frames._array,
        "$count * $item.least <= $walk.size - $at",
        "$count <= $walk.size - $at",
        test=_FRAMES + "test_it_is_said_what_is_wrong_with_a_frame",
    ),
    Mutant(
        "a length of variable size is taken that the frame does not hold",
        frames._compact_bytes_step,
        "0 < $length <= $walk.size - $at + 1",
        "0 < $length",
        test=_FRAMES + "test_it_is_said_what_is_wrong_with_a_frame",
    ),
    Mutant(
        "a length of a fixed size may be negative",
        frames._bytes_step,
        "0 <= $length <= $walk.size - $at",
        "$length <= $walk.size - $at",
        test=_FRAMES + "test_no_length_or_count_is_taken_that_the_frame_does_not_hold",
    ),
    Mutant(
        "what must be there is null",
        frames._without,
        "if $is_nullable:",
        "if True:",
        test=_FRAMES + "test_no_length_or_count_is_taken_that_the_frame_does_not_hold",
    ),
    Mutant(
        "a length of variable size is read modulo 2**31",
        frames._Walk.varint,
        "$number >= 1 << 31",
        "$number >= 1 << 33",
        test=_FRAMES + "test_it_is_said_what_is_wrong_with_a_frame",
    ),
    Mutant(
        "a field with a tag hides what follows it",
        frames._tagged_step,
        "$at != $end",
        "$at > $end",
        test=_FRAMES + "test_fields_with_tags_take_their_lengths",
    ),
    Mutant(
        "a field with a tag comes twice",
        frames._tagged_step,
        "$tag <= $last or $tag not in $known",
        "$tag not in $known",
        test=_FRAMES + "test_fields_with_tags_take_their_lengths",
    ),
    Mutant(
        "items of arrays are not counted",
        frames._array,
        "$walk.count($count * $item.values)",
        "pass",
        test=_FRAMES + "test_decoded_values_take_no_more_memory_than_is_counted",
    ),
    Mutant(
        "the values of a request take memory beside the budget",
        _Connection._read_request,
        "await $held.add($frame.decoded_size)",
        "pass",
        test="unit/gateway/test_server.py::test_the_values_of_a_request_count_in_the_budget",
    ),
    Mutant(
        "a change that arrived while the process was suspended is carried out",
        _Connection._read_frame,
        "$is_stale and $start.api not in _HARMLESS",
        "False",
        test="unit/gateway/test_server.py::test_no_change_is_begun_that_arrived_before_the_process_woke",
    ),
    Mutant(
        "what a full buffer has no room for came after the process woke",
        Server._look,
        "$connection.woke()",
        "$connection.read_all()",
        test="unit/gateway/test_server.py::test_no_change_is_begun_that_arrived_before_the_process_woke",
    ),
    Mutant(
        "all that ever arrives came before the process woke",
        _Connection.read_all,
        "self._stream.mark_stale(self._stream.buffered)",
        "pass",
        test="unit/gateway/test_server.py::test_connections_without_a_change_outlast_a_suspension",
    ),
    Mutant(
        "a process that wakes continues the changes that it has begun",
        Server._look,
        "$task.cancel()",
        "pass",
        test="unit/gateway/test_server.py::test_a_change_under_way_is_given_up_when_the_process_wakes",
    ),
    Mutant(
        "a negative offset is a position",
        groups_offsets.committed,
        " and $value.value.offset >= 0",
        "",
        test="protocol/core/test_offsets.py::test_a_negative_offset_is_none",
    ),
)
