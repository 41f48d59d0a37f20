//! The conformance suite: what every catalog does, one behaviour a case.
//!
//! A backend runs it with [`catalog_suite!`](crate::catalog_suite), which makes one test of each case, or
//! walks [`CASES`]. A case is given a fresh, empty catalog through two handles: where handles are separate,
//! the second one sees what another process would.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "a conformance suite fails by panicking")]

mod chain;
mod consumers;
mod deletions;
mod expiry;
mod histories;
mod incarnations;
mod races;
mod sinks;
mod world;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::Catalog;
use crate::testing::{ManualClock, SeededIds};
pub use world::{World, at, declaration, span};

/// What a case is given.
#[derive(Clone)]
pub struct Setup {
    /// A handle on a fresh catalog.
    pub catalog: Arc<dyn Catalog>,
    /// Another handle on the same one, or the same handle where there can be only one.
    pub other: Arc<dyn Catalog>,
    /// The clock of both.
    pub clock: Arc<ManualClock>,
    /// Draws ids that neither handle draws.
    pub ids: Arc<SeededIds>,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("catalog", &self.catalog.location()).finish_non_exhaustive()
    }
}

/// One behaviour: it panics where the catalog does not have it.
pub type Case = fn(Setup) -> Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! cases {
    (($d:tt) $($noun:ident: $($name:ident),* $(,)?;)*) => {
        /// Every case by its name.
        pub const CASES: &[(&str, Case)] = &[$($((stringify!($name), |setup| Box::pin($noun::$name(setup)))),*),*];

        /// Makes one test of each case of the suite. Takes an async function that makes a
        /// [`Setup`](crate::suite::Setup) and whatever must live as long as the test; or an option of both, where
        /// the backend may be missing and that was reported.
        #[macro_export]
        macro_rules! catalog_suite {
            ($d setup:path) => {
                $($(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        let made = $crate::suite::Made::made($d setup().await);
                        let Some((setup, _held)) = made else { return };
                        $crate::suite::run(stringify!($name), setup).await;
                    }
                )*)*
            };
        }
    };
}

/// What a setup function of [`catalog_suite!`](crate::catalog_suite) returns.
pub trait Made {
    /// What must live as long as the test.
    type Held;
    /// What was made, if the backend is there.
    fn made(self) -> Option<(Setup, Self::Held)>;
}

impl<T> Made for (Setup, T) {
    type Held = T;
    fn made(self) -> Option<(Setup, T)> {
        Some(self)
    }
}

impl<T> Made for Option<(Setup, T)> {
    type Held = T;
    fn made(self) -> Option<(Setup, T)> {
        self
    }
}

/// Runs the case of that name.
pub async fn run(name: &str, setup: Setup) {
    let (_, case) = CASES.iter().find(|(known, _)| *known == name).expect("a case of that name");
    let catalog = Arc::clone(&setup.catalog);
    case(setup).await;
    catalog.close().await;
}

cases! { ($)
    sinks:
        a_sink_is_found_by_name_and_by_id,
        an_equal_declaration_finds_the_sink_that_stands,
        a_declaration_that_differs_is_refused_by_the_property,
        a_sink_that_covers_no_time_is_refused,
        an_unknown_sink_is_named_in_the_refusal,
        a_dry_drop_tells_and_changes_nothing,
        a_drop_closes_unlinks_queues_and_frees_the_name,
        a_dropped_sink_refuses_writers_and_consumers;
    incarnations:
        an_opening_registers_and_fences,
        the_processes_of_a_launch_share_one_incarnation,
        a_launch_whose_incarnation_is_closed_is_used_up,
        an_opening_closes_the_older_ones_of_its_replica_only,
        an_opening_against_an_old_head_conflicts,
        an_id_is_never_given_twice,
        closing_is_final_and_happens_once,
        a_lease_that_ran_out_is_closed_and_a_renewed_one_is_not;
    chain:
        an_accepted_batch_reads_as_it_was_written,
        a_commit_against_an_old_head_conflicts_and_writes_nothing,
        the_offer_moves_the_resolved_upper_and_is_recorded,
        a_request_that_contradicts_itself_is_refused,
        a_resolved_upper_does_not_move_back,
        a_drop_that_landed_unseen_lets_the_next_try_look_again,
        a_closed_incarnation_commits_nothing,
        a_queued_key_is_not_linked,
        a_key_is_linked_once,
        what_is_not_kept_is_queued_in_the_same_transaction,
        what_is_kept_is_not_queued_although_it_is_given_as_not_kept_too,
        an_empty_batch_extends_the_last_row,
        an_empty_batch_without_a_row_before_it_is_a_row,
        a_drop_writes_no_row_and_moves_no_upper,
        a_poison_at_the_upper_moves_nothing_and_fences,
        a_chain_that_ended_accepts_nothing_but_drops,
        the_same_commit_twice_is_made_once,
        a_commit_is_read_back_although_another_came_after_it,
        the_chain_is_read_in_pages_from_any_frontier;
    consumers:
        a_consumer_starts_where_it_asks,
        a_newer_session_fences_the_older,
        only_batch_uppers_are_acknowledged,
        within_a_batch_nothing_is_acknowledged_wherever_its_updates_lie,
        anywhere_in_a_proven_empty_stretch_is_acknowledged,
        the_slowest_consumer_holds,
        a_batch_whose_extent_grew_leaves_an_empty_rest,
        an_acknowledgement_again_changes_nothing,
        without_consumers_nothing_is_released,
        a_consumer_that_leaves_lets_go_of_what_only_it_held,
        the_beginning_is_refused_once_it_is_gone,
        an_unknown_consumer_is_refused;
    deletions:
        referenced_and_queued_keys_are_passed_over,
        the_sweep_queues_only_what_its_writer_cannot_link,
        keys_of_another_shard_are_refused,
        a_deferred_key_waits_longer_each_time,
        rows_of_released_batches_go_with_their_keys,
        each_key_is_judged_in_the_order_asked,
        what_happened_is_recorded_and_found_by_key;
    expiry:
        what_outlived_the_retention_goes_as_a_prefix,
        without_a_retention_nothing_outlives_it,
        while_a_consumer_is_present_nothing_outlives_the_retention,
        an_absent_consumer_lets_go_of_what_the_others_acknowledged,
        where_all_are_absent_the_retention_decides,
        without_an_absent_hold_nobody_is_ever_absent,
        a_consumer_below_what_expired_stands_there_until_it_skips,
        an_acknowledgement_below_what_expired_is_taken,
        a_renewed_session_is_present_and_a_fenced_one_stays_fenced,
        a_dry_expiry_tells_and_changes_nothing,
        expiring_again_changes_nothing,
        an_expiry_fences_what_was_decided_before,
        a_clock_that_goes_back_lets_go_of_nothing,
        the_chain_goes_on_behind_an_end_that_expired,
        a_duration_of_zero_is_refused,
        an_acknowledgement_and_an_expiry_never_lose_a_batch,
        a_registration_and_an_expiry_never_lose_a_batch,
        a_session_that_is_heard_at_the_same_moment_loses_nothing_or_reads_that_it_expired;
    races:
        of_eight_commits_against_one_head_exactly_one_is_done,
        an_opening_fences_a_commit_that_was_decided_before,
        a_registration_and_an_acknowledgement_never_lose_a_batch,
        a_key_is_either_linked_or_queued,
        equal_declarations_at_once_make_one_sink,
        a_write_wakes_who_waits_on_the_other_handle,
        waiting_ends_when_patience_does,
        a_write_that_is_given_up_leaves_nothing_open,
        the_revision_rises_with_every_write;
    histories:
        whatever_happens_the_chain_is_gapless_and_every_key_has_one_owner;
}
