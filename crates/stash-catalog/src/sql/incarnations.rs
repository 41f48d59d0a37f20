//! Incarnations: registered before their first byte, fenced by being closed, never forgotten.
//!
//! Opening, closing and expiry raise the head's fence, so that a decision in flight is made again (I20).

use stash_types::{CommitId, Frontier, IncarnationId, LaunchToken, SinkId};

use super::chain::head_in;
use super::link::args;
use super::write::{Tx, Write};
use super::{Result, Sql, head_columns, incarnation_columns};
use crate::rows::{
    Committed, HeadRow, HeadStatus, IncarnationRow, IncarnationState, OpenIncarnation, Opened, View,
};
use crate::{Cas, CatalogError, Misuse};

/// An incarnation, with the last commit it made.
pub(crate) struct Offerer {
    pub(crate) row: IncarnationRow,
    pub(crate) commit: Option<(CommitId, Committed)>,
}

impl Offerer {
    /// What its commit of that id did, if that was its last.
    pub(crate) fn committed(&self, id: CommitId) -> Option<Committed> {
        self.commit.filter(|(known, _)| *known == id).map(|(_, committed)| committed)
    }
}

/// Head and incarnation, by one statement: one snapshot, and one round trip where the database is far.
pub(crate) async fn view_in(tx: &mut Tx<'_>, sink: SinkId, id: IncarnationId) -> Result<(HeadRow, Offerer)> {
    let row = tx
        .row(
            concat!(
                "SELECT * FROM (SELECT ",
                head_columns!(),
                " FROM chains WHERE sink = $1) AS head LEFT JOIN (SELECT ",
                incarnation_columns!(),
                " FROM incarnations WHERE id = $2 AND sink = $1) AS offerer USING (sink)"
            ),
            args![sink, id],
        )
        .await?;
    let Some(row) = row else { return Err(Misuse::NoSuchSink { sink: sink.to_string() }.into()) };
    let head = tx.fields("chains", &row).head()?;
    let fields = tx.fields("incarnations", &row);
    if fields.text_opt("id")?.is_none() {
        return Err(Misuse::NoSuchIncarnation { sink, incarnation: id }.into());
    }
    let commit = match fields.parse_opt("commit_id")? {
        Some(id) => Some((id, fields.committed()?)),
        None => None,
    };
    Ok((head, Offerer { row: fields.incarnation()?, commit }))
}

/// Head and incarnation in one snapshot.
pub(crate) async fn view(catalog: &Sql, sink: SinkId, id: IncarnationId) -> Result<View> {
    const OP: &str = "view";
    let mut held = catalog.reader(OP).await?;
    let (head, offerer) = view_in(&mut catalog.each(OP, &mut held), sink, id).await?;
    Ok(View { head, incarnation: offerer.row })
}

/// The incarnations of a sink, oldest first: those that are open, or all of them.
pub(crate) async fn all(catalog: &Sql, sink: SinkId, with_closed: bool) -> Result<Vec<IncarnationRow>> {
    const OP: &str = "incarnations";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    head_in(&mut snapshot, sink).await?;
    let rows = snapshot
        .rows(
            concat!(
                "SELECT ",
                incarnation_columns!(),
                " FROM incarnations WHERE sink = $1 AND (closed IS NULL OR $2 = 1) ORDER BY opened_revision"
            ),
            args![sink, with_closed],
        )
        .await?;
    rows.iter().map(|row| catalog.fields("incarnations", row).incarnation()).collect()
}

/// The incarnation that a launch opened.
pub(crate) async fn launched(
    catalog: &Sql,
    sink: SinkId,
    launch: LaunchToken,
) -> Result<Option<IncarnationRow>> {
    const OP: &str = "launched";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    head_in(&mut snapshot, sink).await?;
    launched_in(&mut snapshot, sink, launch).await
}

/// Opens an incarnation if the head is as expected, or reads the one the launch opened before.
pub(crate) async fn open(catalog: &Sql, request: &OpenIncarnation) -> Result<Cas<Opened>> {
    const OP: &str = "open incarnation";
    let OpenIncarnation { sink, replica, launch, id, as_of, expected_upper, expected_fence, lease_ms } =
        request;
    let (sink, launch, id, as_of) = (*sink, *launch, *id, *as_of);
    if as_of == u64::MAX {
        let what = "the as-of of an incarnation must be a time, not the empty frontier".to_owned();
        return Err(Misuse::Inconsistent { what }.into());
    }
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let taken = write
        .row(
            "UPDATE chains SET fence = fence + 1
             WHERE sink = $1 AND upper = $2 AND fence = $3 AND status <> 'dropped' RETURNING sink",
            args![sink, *expected_upper, *expected_fence],
        )
        .await?;
    if taken.is_none() && head_in(&mut write, sink).await?.status == HeadStatus::Dropped {
        return Err(CatalogError::SinkDropped { sink });
    }
    if let Some(known) = launched_in(&mut write, sink, launch).await? {
        if known.replica != *replica {
            let what = format!("launch {launch} is of replica {}, not of {replica}", known.replica);
            return Err(Misuse::Inconsistent { what }.into());
        }
        return match known.state {
            IncarnationState::Open => {
                Ok(Cas::Done(Opened { incarnation: known, created: false, closed: vec![] }))
            }
            IncarnationState::Closed { .. } => {
                Err(Misuse::LaunchUsed { launch, incarnation: known.id }.into())
            }
        };
    }
    if taken.is_none() {
        return Ok(Cas::Conflict(head_in(&mut write, sink).await?));
    }
    let reason = format!("replaced by {id} of the same replica");
    let closed = close_where(&mut write, sink, &reason, Which::OfReplica(replica.as_str())).await?;
    if write.row("SELECT id FROM incarnations WHERE id = $1", args![id]).await?.is_some() {
        let what = format!("incarnation {id} was used before: draw a new id");
        return Err(Misuse::Inconsistent { what }.into());
    }
    write.record(sink, Some(id), "opened", &format!("replica {replica} as of {as_of}")).await?;
    let revision = write.stamp(sink).await?;
    let opened = IncarnationRow {
        id,
        sink,
        replica: replica.clone(),
        launch,
        as_of,
        resolved: Frontier::at(as_of),
        state: IncarnationState::Open,
        last: None,
        opened: write.now,
        lease_until: write.now.plus_millis(*lease_ms),
    };
    write
        .rows(
            "INSERT INTO incarnations
                (id, sink, replica, launch, as_of, resolved, opened, opened_revision, lease_until)
             VALUES ($1, $2, $3, $4, $5, $5, $6, $7, $8)",
            args![id, sink, replica, launch, opened.resolved, opened.opened, revision, opened.lease_until],
        )
        .await?;
    write.commit(revision).await?;
    Ok(Cas::Done(Opened { incarnation: opened, created: true, closed }))
}

async fn launched_in(tx: &mut Tx<'_>, sink: SinkId, launch: LaunchToken) -> Result<Option<IncarnationRow>> {
    let sql =
        concat!("SELECT ", incarnation_columns!(), " FROM incarnations WHERE sink = $1 AND launch = $2");
    let row = tx.row(sql, args![sink, launch]).await?;
    row.map(|row| tx.fields("incarnations", &row).incarnation()).transpose()
}

/// Extends the lease.
pub(crate) async fn renew(catalog: &Sql, sink: SinkId, id: IncarnationId, lease_ms: u64) -> Result<()> {
    const OP: &str = "renew lease";
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    write.take_live_head(sink, 0).await?;
    if let IncarnationState::Closed { reason } = view_in(&mut write, sink, id).await?.1.row.state {
        return Err(CatalogError::IncarnationClosed { sink, incarnation: id, reason });
    }
    let until = write.now.plus_millis(lease_ms);
    write.rows("UPDATE incarnations SET lease_until = $1 WHERE id = $2", args![until, id]).await?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await
}

/// Closes one incarnation; `false` when it was closed already.
pub(crate) async fn close(catalog: &Sql, sink: SinkId, id: IncarnationId, reason: &str) -> Result<bool> {
    const OP: &str = "close incarnation";
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    write.take_head(sink, 1).await?;
    if view_in(&mut write, sink, id).await?.1.row.state != IncarnationState::Open {
        return Ok(false);
    }
    close_where(&mut write, sink, reason, Which::One(id)).await?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await?;
    Ok(true)
}

/// Which of a sink's open incarnations to close.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which<'a> {
    One(IncarnationId),
    OfReplica(&'a str),
    RanOut,
    Open,
}

/// Closes open incarnations of a sink whose head row is held.
pub(super) async fn close_where(
    write: &mut Write<'_>,
    sink: SinkId,
    reason: &str,
    which: Which<'_>,
) -> Result<Vec<IncarnationId>> {
    let (id, replica, before) = match which {
        Which::One(id) => (Some(id), None, None),
        Which::OfReplica(replica) => (None, Some(replica), None),
        Which::RanOut => (None, None, Some(write.now.0)),
        Which::Open => (None, None, None),
    };
    let rows = write
        .rows(
            "UPDATE incarnations SET closed = $1
             WHERE sink = $2 AND closed IS NULL AND ($3 IS NULL OR id = $3) AND ($4 IS NULL OR replica = $4)
               AND ($5 IS NULL OR lease_until <= $5)
             RETURNING id",
            args![reason, sink, id, replica, before],
        )
        .await?;
    let mut closed = Vec::with_capacity(rows.len());
    for row in &rows {
        let id: IncarnationId = write.fields("incarnations", row).parse("id")?;
        write.record(sink, Some(id), "closed", reason).await?;
        closed.push(id);
    }
    closed.sort();
    Ok(closed)
}
