//! Incarnations: registered before their first byte, fenced by being closed, never forgotten.
//!
//! Opening, closing and expiry raise the head's fence, so that a decision in flight is made again (I20).

use stash_types::{IncarnationId, SinkId};

use super::connection::Write;
use super::decode::{Fields, bytes, int};
use super::{Result, SqliteCatalog};
use crate::rows::{HeadStatus, IncarnationRow, IncarnationState, OpenIncarnation, Opened, View};
use crate::{Cas, CatalogError, HeadRow, Misuse};

macro_rules! incarnation_columns {
    () => {
        "id, sink, replica, launch, as_of, resolved, closed, last_lower, last_upper, last_outcome, last_from, \
         opened, lease_until, commit_id, commit_revision, commit_seq, commit_upper, commit_fence"
    };
}
pub(super) use incarnation_columns;

/// Head and incarnation in one snapshot.
pub(super) async fn view(catalog: &SqliteCatalog, sink: SinkId, id: IncarnationId) -> Result<View> {
    const OP: &str = "view";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    let head = super::chain::head_in(catalog, &mut snapshot, sink).await?;
    let row = sqlx::query(concat!(
        "SELECT ",
        incarnation_columns!(),
        " FROM incarnations WHERE id = ? AND sink = ?"
    ))
    .bind(id.to_string())
    .bind(sink.to_string())
    .fetch_optional(&mut *snapshot)
    .await
    .map_err(|error| catalog.failed(OP, error))?;
    match row {
        Some(row) => {
            let incarnation = Fields::new(&catalog.location, "incarnations", &row).incarnation()?;
            Ok(View { head, incarnation })
        }
        None => Err(Misuse::NoSuchIncarnation { sink, incarnation: id }.into()),
    }
}

/// All incarnations of a sink, oldest first.
pub(super) async fn all(catalog: &SqliteCatalog, sink: SinkId) -> Result<Vec<IncarnationRow>> {
    const OP: &str = "incarnations";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    super::chain::head_in(catalog, &mut snapshot, sink).await?;
    let rows = sqlx::query(concat!(
        "SELECT ",
        incarnation_columns!(),
        " FROM incarnations WHERE sink = ? ORDER BY opened_revision"
    ))
    .bind(sink.to_string())
    .fetch_all(&mut *snapshot)
    .await
    .map_err(|error| catalog.failed(OP, error))?;
    rows.iter().map(|row| Fields::new(&catalog.location, "incarnations", row).incarnation()).collect()
}

/// Opens an incarnation if the head is as expected, or reads the one the launch opened before.
pub(super) async fn open(catalog: &SqliteCatalog, request: OpenIncarnation) -> Result<Cas<Opened>> {
    const OP: &str = "open incarnation";
    let OpenIncarnation { sink, replica, launch, id, as_of, expected_upper, expected_fence, lease_ms } =
        request;
    if as_of == u64::MAX {
        let what = "the as-of of an incarnation must be a time, not the empty frontier".to_owned();
        return Err(Misuse::Inconsistent { what }.into());
    }
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let taken = sqlx::query(
        "UPDATE chains SET fence = fence + 1
         WHERE sink = ? AND upper = ? AND fence = ? AND status <> 'dropped' RETURNING sink",
    )
    .bind(sink.to_string())
    .bind(bytes(expected_upper))
    .bind(int(expected_fence))
    .fetch_optional(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    if taken.is_none()
        && let Some(refusal) = refusal(&mut write, sink).await?
    {
        return Err(refusal);
    }
    if let Some(known) = launched(&mut write, sink, &launch.to_string()).await? {
        if known.replica != replica {
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
        return Ok(Cas::Conflict(super::chain::head_in(catalog, &mut write.tx, sink).await?));
    }
    let reason = format!("replaced by {id} of the same replica");
    let closed = close_where(&mut write, sink, &reason, Which::OfReplica(replica.as_str())).await?;
    let revision = write.stamp(sink).await?;
    let lease_until = write.now.plus_millis(lease_ms);
    sqlx::query(
        "INSERT INTO incarnations
            (id, sink, replica, launch, as_of, resolved, opened, opened_revision, lease_until)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7, ?8)",
    )
    .bind(id.to_string())
    .bind(sink.to_string())
    .bind(replica.as_str())
    .bind(launch.to_string())
    .bind(bytes(stash_types::Frontier::at(as_of)))
    .bind(write.at())
    .bind(int(revision))
    .bind(int(lease_until.0))
    .execute(&mut *write.tx)
    .await
    .map_err(|error| match error.as_database_error().is_some_and(|e| e.is_unique_violation()) {
        true => {
            Misuse::Inconsistent { what: format!("incarnation {id} was used before: draw a new id") }.into()
        }
        false => write.failed(error),
    })?;
    write.record(sink, Some(id), "opened", &format!("replica {replica} as of {as_of}")).await?;
    let opened = IncarnationRow {
        id,
        sink,
        replica,
        launch,
        as_of,
        resolved: stash_types::Frontier::at(as_of),
        state: IncarnationState::Open,
        last: None,
        opened: write.now,
        lease_until,
    };
    write.commit(revision).await?;
    Ok(Cas::Done(Opened { incarnation: opened, created: true, closed }))
}

/// Why the head row could not be taken, when that is not a conflict.
async fn refusal(write: &mut Write<'_>, sink: SinkId) -> Result<Option<CatalogError>> {
    let head: HeadRow = super::chain::head_in(write.catalog, &mut write.tx, sink).await?;
    Ok(matches!(head.status, HeadStatus::Dropped).then_some(CatalogError::SinkDropped { sink }))
}

async fn launched(write: &mut Write<'_>, sink: SinkId, launch: &str) -> Result<Option<IncarnationRow>> {
    sqlx::query(concat!(
        "SELECT ",
        incarnation_columns!(),
        " FROM incarnations WHERE sink = ? AND launch = ?"
    ))
    .bind(sink.to_string())
    .bind(launch)
    .fetch_optional(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?
    .map(|row| Fields::new(&write.catalog.location, "incarnations", &row).incarnation())
    .transpose()
}

/// The incarnation in this transaction; `NoSuchIncarnation` when the sink has none of that id.
pub(super) async fn in_write(
    write: &mut Write<'_>,
    sink: SinkId,
    id: IncarnationId,
) -> Result<IncarnationRow> {
    let row = sqlx::query(concat!(
        "SELECT ",
        incarnation_columns!(),
        " FROM incarnations WHERE id = ? AND sink = ?"
    ))
    .bind(id.to_string())
    .bind(sink.to_string())
    .fetch_optional(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    match row {
        Some(row) => Fields::new(&write.catalog.location, "incarnations", &row).incarnation(),
        None => Err(Misuse::NoSuchIncarnation { sink, incarnation: id }.into()),
    }
}

/// Extends the lease.
pub(super) async fn renew(
    catalog: &SqliteCatalog,
    sink: SinkId,
    id: IncarnationId,
    lease_ms: u64,
) -> Result<()> {
    const OP: &str = "renew lease";
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    write.take_live_head(sink, 0).await?;
    if let IncarnationState::Closed { reason } = in_write(&mut write, sink, id).await?.state {
        return Err(CatalogError::IncarnationClosed { sink, incarnation: id, reason });
    }
    sqlx::query("UPDATE incarnations SET lease_until = ? WHERE id = ?")
        .bind(int(write.now.plus_millis(lease_ms).0))
        .bind(id.to_string())
        .execute(&mut *write.tx)
        .await
        .map_err(|error| write.failed(error))?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await
}

/// Closes one incarnation; `false` when it was closed already.
pub(super) async fn close(
    catalog: &SqliteCatalog,
    sink: SinkId,
    id: IncarnationId,
    reason: &str,
) -> Result<bool> {
    const OP: &str = "close incarnation";
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    write.take_head(sink, 1).await?;
    if in_write(&mut write, sink, id).await?.state != IncarnationState::Open {
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
        Which::One(id) => (Some(id.to_string()), None, None),
        Which::OfReplica(replica) => (None, Some(replica), None),
        Which::RanOut => (None, None, Some(write.at())),
        Which::Open => (None, None, None),
    };
    let rows = sqlx::query(
        "UPDATE incarnations SET closed = ?1
         WHERE sink = ?2 AND closed IS NULL AND (?3 IS NULL OR id = ?3) AND (?4 IS NULL OR replica = ?4)
           AND (?5 IS NULL OR lease_until <= ?5)
         RETURNING id",
    )
    .bind(reason)
    .bind(sink.to_string())
    .bind(id)
    .bind(replica)
    .bind(before)
    .fetch_all(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    let mut closed = Vec::with_capacity(rows.len());
    for row in &rows {
        let id: IncarnationId = Fields::new(&write.catalog.location, "incarnations", row).parse("id")?;
        write.record(sink, Some(id), "closed", reason).await?;
        closed.push(id);
    }
    closed.sort();
    Ok(closed)
}
