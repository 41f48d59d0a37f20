//! Incarnations: registered before their first byte, fenced by being closed, never forgotten.
//!
//! Opening, closing and expiry raise the head's fence, so that a decision in flight is made again (I20).

use stash_catalog::{
    Cas, CatalogError, Committed, IncarnationRow, IncarnationState, Misuse, OpenIncarnation, Opened, View,
};
use stash_types::{CommitId, Frontier, IncarnationId, LaunchToken, ReplicaName, SinkId, Timestamp};

use super::Result;
use super::state::{Sink, State, inconsistent};

/// An incarnation and its last commit, by which a lost reply is read back.
#[derive(Clone, Debug)]
pub(super) struct Incarnation {
    pub(super) row: IncarnationRow,
    pub(super) commit: Option<(CommitId, Committed)>,
}

impl Incarnation {
    pub(super) fn is_open(&self) -> bool {
        self.row.state == IncarnationState::Open
    }

    /// What the incarnation's last commit was answered, if this is it.
    pub(super) fn answered(&self, commit: CommitId) -> Option<Committed> {
        self.commit.filter(|(id, _)| *id == commit).map(|(_, committed)| committed)
    }
}

/// Which of a sink's open incarnations to close.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which<'a> {
    One(IncarnationId),
    OfReplica(&'a ReplicaName),
    RanOut,
    Open,
}

impl Which<'_> {
    fn names(self, row: &IncarnationRow, now: Timestamp) -> bool {
        match self {
            Which::One(id) => row.id == id,
            Which::OfReplica(replica) => row.replica == *replica,
            Which::RanOut => row.lease_until <= now,
            Which::Open => true,
        }
    }
}

impl Sink {
    pub(super) fn known(&self, id: IncarnationId) -> Result<&Incarnation> {
        let sink = self.head.sink;
        self.incarnation(id).ok_or_else(|| Misuse::NoSuchIncarnation { sink, incarnation: id }.into())
    }

    pub(super) fn of_launch(&self, launch: LaunchToken) -> Option<&IncarnationRow> {
        self.incarnations.iter().map(|incarnation| &incarnation.row).find(|row| row.launch == launch)
    }

    pub(super) fn known_mut(&mut self, id: IncarnationId) -> Result<&mut Incarnation> {
        let sink = self.head.sink;
        let found = self.incarnations.iter_mut().find(|incarnation| incarnation.row.id == id);
        found.ok_or_else(|| Misuse::NoSuchIncarnation { sink, incarnation: id }.into())
    }
}

impl State {
    /// Head and incarnation at once.
    pub(super) fn view(&self, sink: SinkId, id: IncarnationId) -> Result<View> {
        let sink = self.sink(sink)?;
        Ok(View { head: sink.head.clone(), incarnation: sink.known(id)?.row.clone() })
    }

    /// The incarnations of a sink, oldest first: those that are open, or all of them.
    pub(super) fn all_incarnations(&self, sink: SinkId, with_closed: bool) -> Result<Vec<IncarnationRow>> {
        let rows = self.sink(sink)?.incarnations.iter().map(|incarnation| &incarnation.row);
        Ok(rows.filter(|row| with_closed || row.state == IncarnationState::Open).cloned().collect())
    }

    /// The incarnation that a launch opened.
    pub(super) fn launched(&self, sink: SinkId, launch: LaunchToken) -> Result<Option<IncarnationRow>> {
        Ok(self.sink(sink)?.of_launch(launch).cloned())
    }

    /// Opens an incarnation if the head is as expected, or reads the one that the launch opened before.
    pub(super) fn open_incarnation(
        &mut self,
        now: Timestamp,
        request: OpenIncarnation,
    ) -> Result<Cas<Opened>> {
        let OpenIncarnation { sink, replica, launch, id, as_of, expected_upper, expected_fence, lease_ms } =
            request;
        if as_of == u64::MAX {
            return inconsistent(
                "the as-of of an incarnation must be a time, not the empty frontier".to_owned(),
            );
        }
        let standing = self.live_sink(sink)?;
        if let Some(launched) = standing.of_launch(launch) {
            return launched_before(launched, &replica);
        }
        if (standing.head.upper, standing.head.fence) != (expected_upper, expected_fence) {
            return Ok(Cas::Conflict(standing.head.clone()));
        }
        if self.sinks.values().any(|sink| sink.incarnation(id).is_some()) {
            return inconsistent(format!("incarnation {id} was used before: draw a new id"));
        }
        self.raise_fence(sink)?;
        let reason = format!("replaced by {id} of the same replica");
        let closed = self.close_where(now, sink, &reason, Which::OfReplica(&replica))?;
        self.stamp(sink)?;
        self.record(now, sink, Some(id), "opened", format!("replica {replica} as of {as_of}"));
        let row = IncarnationRow {
            id,
            sink,
            replica,
            launch,
            as_of,
            resolved: Frontier::at(as_of),
            state: IncarnationState::Open,
            last: None,
            opened: now,
            lease_until: now.plus_millis(lease_ms),
        };
        self.sink_mut(sink)?.incarnations.push(Incarnation { row: row.clone(), commit: None });
        Ok(Cas::Done(Opened { incarnation: row, created: true, closed }))
    }

    /// Extends the lease.
    pub(super) fn renew_lease(
        &mut self,
        now: Timestamp,
        sink: SinkId,
        id: IncarnationId,
        lease_ms: u64,
    ) -> Result<()> {
        if let IncarnationState::Closed { reason } = &self.live_sink(sink)?.known(id)?.row.state {
            return Err(CatalogError::IncarnationClosed { sink, incarnation: id, reason: reason.clone() });
        }
        self.sink_mut(sink)?.known_mut(id)?.row.lease_until = now.plus_millis(lease_ms);
        self.stamp(sink)?;
        Ok(())
    }

    /// Closes one incarnation; `false` when it was closed already.
    pub(super) fn close_incarnation(
        &mut self,
        now: Timestamp,
        sink: SinkId,
        id: IncarnationId,
        reason: &str,
    ) -> Result<bool> {
        if !self.sink(sink)?.known(id)?.is_open() {
            return Ok(false);
        }
        self.raise_fence(sink)?;
        self.close_where(now, sink, reason, Which::One(id))?;
        self.stamp(sink)?;
        Ok(true)
    }

    /// Closes open incarnations of a sink; the caller raises the fence. Returns them in order of their ids.
    pub(super) fn close_where(
        &mut self,
        now: Timestamp,
        sink: SinkId,
        reason: &str,
        which: Which<'_>,
    ) -> Result<Vec<IncarnationId>> {
        let mut closed = Vec::new();
        for one in &mut self.sink_mut(sink)?.incarnations {
            if one.is_open() && which.names(&one.row, now) {
                one.row.state = IncarnationState::Closed { reason: reason.to_owned() };
                closed.push(one.row.id);
            }
        }
        for id in &closed {
            self.record(now, sink, Some(*id), "closed", reason.to_owned());
        }
        closed.sort();
        Ok(closed)
    }
}

/// The answer to a process whose launch opened an incarnation before, whatever the head is now.
fn launched_before(row: &IncarnationRow, replica: &ReplicaName) -> Result<Cas<Opened>> {
    let launch = row.launch;
    if row.replica != *replica {
        return inconsistent(format!("launch {launch} is of replica {}, not of {replica}", row.replica));
    }
    match row.state {
        IncarnationState::Open => {
            Ok(Cas::Done(Opened { incarnation: row.clone(), created: false, closed: vec![] }))
        }
        IncarnationState::Closed { .. } => Err(Misuse::LaunchUsed { launch, incarnation: row.id }.into()),
    }
}
